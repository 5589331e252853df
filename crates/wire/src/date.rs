//! Dates as text, from and to Unix seconds. The clock is the caller's.

/// A moment taken apart, in some time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// Year; the formats below show its last four digits.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute.
    pub minute: u8,
    /// Second; there are no leap seconds in Unix time.
    pub second: u8,
    /// Day of the week, 0 is Sunday.
    pub weekday: u8,
}

const DAY: i64 = 86_400;
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
const WEEKDAYS: &[u8; 21] = b"SunMonTueWedThuFriSat";

impl Civil {
    /// The moment `unix_seconds`, in UTC.
    pub fn from_unix(unix_seconds: i64) -> Self {
        let (days, second) = (unix_seconds.div_euclid(DAY), unix_seconds.rem_euclid(DAY));
        let (year, month, day) = civil_from_days(days);
        Self {
            year,
            month,
            day,
            hour: (second / 3600) as u8,
            minute: (second / 60 % 60) as u8,
            second: (second % 60) as u8,
            // 1 January 1970 was a Thursday.
            weekday: (days + 4).rem_euclid(7) as u8,
        }
    }

    fn month_name(&self) -> &'static [u8] {
        let at = 3 * (usize::from(self.month) - 1);
        &MONTHS[at..at + 3]
    }

    fn weekday_name(&self) -> &'static [u8] {
        let at = 3 * usize::from(self.weekday);
        &WEEKDAYS[at..at + 3]
    }
}

/// Days in 400 years.
const ERA: i64 = 146_097;
/// Days from 1 March of year 0 to 1 January 1970.
const EPOCH: i64 = 719_468;

/// Year, month and day of a day counted from 1 January 1970 (Gregorian, also before 1582).
///
/// Years are counted from March, so that the leap day comes last and months have a regular length.
pub fn civil_from_days(days: i64) -> (i64, u8, u8) {
    let days = days.saturating_add(EPOCH);
    let (era, day_of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month as u8, day as u8)
}

/// The day counted from 1 January 1970 of a date; the reverse of [`civil_from_days`]. `month` is 1 to 12.
pub fn days_from_civil(year: i64, month: u8, day: u8) -> i64 {
    let (month, day) = (i64::from(month), i64::from(day));
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * ERA + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - EPOCH
}

/// `Fri, 20 Nov 2026 20:41:09 GMT` (RFC 9110 section 5.6.7).
pub fn format_http(unix_seconds: i64) -> [u8; 29] {
    let civil = Civil::from_unix(unix_seconds);
    let mut text = *b"Www, dd Mmm yyyy hh:mm:ss GMT";
    text[0..3].copy_from_slice(civil.weekday_name());
    put_two(&mut text, 5, civil.day);
    text[8..11].copy_from_slice(civil.month_name());
    put_year(&mut text, 12, civil.year);
    put_time(&mut text, 17, &civil);
    text
}

/// `Thu, 31-Dec-37 23:55:55 GMT`; after 2037 with a year of four digits (`ngx_http_cookie_time`).
pub fn write_cookie(unix_seconds: i64, out: &mut Vec<u8>) {
    let date = format_http(unix_seconds);
    out.extend_from_slice(&date[..7]);
    out.push(b'-');
    out.extend_from_slice(&date[8..11]);
    out.push(b'-');
    out.extend_from_slice(if date[12..16] > b"2037"[..] { &date[12..16] } else { &date[14..16] });
    out.extend_from_slice(&date[16..]);
}

/// `20/Nov/2026:20:41:09 +0000`, as `$time_local`. `offset_minutes` is local time minus UTC.
pub fn format_log(unix_seconds: i64, offset_minutes: i32) -> [u8; 26] {
    let civil = Civil::from_unix(unix_seconds + 60 * i64::from(offset_minutes));
    let mut text = *b"dd/Mmm/yyyy:hh:mm:ss +hhmm";
    put_two(&mut text, 0, civil.day);
    text[3..6].copy_from_slice(civil.month_name());
    put_year(&mut text, 7, civil.year);
    put_time(&mut text, 12, &civil);
    put_offset(&mut text, 21, offset_minutes, 24);
    text
}

/// `2026-11-20T20:41:09+00:00`, as `$time_iso8601`. `offset_minutes` is local time minus UTC.
pub fn format_iso8601(unix_seconds: i64, offset_minutes: i32) -> [u8; 25] {
    let civil = Civil::from_unix(unix_seconds + 60 * i64::from(offset_minutes));
    let mut text = *b"yyyy-mm-ddThh:mm:ss+hh:mm";
    put_year(&mut text, 0, civil.year);
    put_two(&mut text, 5, civil.month);
    put_two(&mut text, 8, civil.day);
    put_time(&mut text, 11, &civil);
    put_offset(&mut text, 19, offset_minutes, 23);
    text
}

/// `2026/11/20 20:41:09`, as in the error log. `offset_minutes` is local time minus UTC.
pub fn format_error_log(unix_seconds: i64, offset_minutes: i32) -> [u8; 19] {
    let civil = Civil::from_unix(unix_seconds + 60 * i64::from(offset_minutes));
    let mut text = *b"yyyy/mm/dd hh:mm:ss";
    put_year(&mut text, 0, civil.year);
    put_two(&mut text, 5, civil.month);
    put_two(&mut text, 8, civil.day);
    put_time(&mut text, 11, &civil);
    text
}

/// `Nov 20 20:41:09`, as in syslog (RFC 3164 section 4.1.2). `offset_minutes` is local time minus UTC.
pub fn format_syslog(unix_seconds: i64, offset_minutes: i32) -> [u8; 15] {
    let civil = Civil::from_unix(unix_seconds + 60 * i64::from(offset_minutes));
    let mut text = *b"Mmm dd hh:mm:ss";
    text[0..3].copy_from_slice(civil.month_name());
    put_two(&mut text, 4, civil.day);
    if civil.day < 10 {
        text[4] = b' ';
    }
    put_time(&mut text, 7, &civil);
    text
}

fn put_two(text: &mut [u8], at: usize, number: u8) {
    text[at] = b'0' + number / 10 % 10;
    text[at + 1] = b'0' + number % 10;
}

fn put_year(text: &mut [u8], at: usize, year: i64) {
    let year = year.rem_euclid(10_000);
    put_two(text, at, (year / 100) as u8);
    put_two(text, at + 2, (year % 100) as u8);
}

fn put_time(text: &mut [u8], at: usize, civil: &Civil) {
    put_two(text, at, civil.hour);
    put_two(text, at + 3, civil.minute);
    put_two(text, at + 6, civil.second);
}

fn put_offset(text: &mut [u8], at: usize, offset_minutes: i32, minutes_at: usize) {
    text[at] = if offset_minutes < 0 { b'-' } else { b'+' };
    let minutes = offset_minutes.unsigned_abs();
    put_two(text, at + 1, (minutes / 60 % 100) as u8);
    put_two(text, minutes_at, (minutes % 60) as u8);
}

/// Reads a date in one of HTTP's three formats: `Sun, 10 Nov 2002 23:50:13`, `Sunday, 10-Nov-02 23:50:13`,
/// `Sun Nov 10 23:50:13 2002`. Gives Unix seconds.
///
/// As forgiving as `ngx_parse_http_time`: the day of the week and what follows the time are not looked at, and a month
/// is known by as few letters as tell it apart.
pub fn parse_http(text: &[u8]) -> Option<i64> {
    text.first_chunk().and_then(usual).or_else(|| parse_any(text))
}

/// `Sun, 10 Nov 2002 23:50:13`, of which nearly all dates are that anybody sends. `None`: it has to be looked at more closely.
fn usual(text: &[u8; 25]) -> Option<i64> {
    let two = |at: usize| {
        let (tens, ones) = (text[at].wrapping_sub(b'0'), text[at + 1].wrapping_sub(b'0'));
        (tens <= 9 && ones <= 9).then(|| u32::from(tens) * 10 + u32::from(ones))
    };
    let is_shaped = (text[3], text[4], text[7], text[11]) == (b',', b' ', b' ', b' ')
        && (text[16], text[19], text[22]) == (b' ', b':', b':')
        && !text[..3].iter().any(|byte| matches!(byte, b',' | b' '));
    if !is_shaped {
        return None;
    }
    let (day, year) = (two(5)?, two(12)? * 100 + two(14)?);
    let (hour, minute, second) = (two(17)?, two(20)?, two(23)?);
    let month = MONTHS.as_chunks::<3>().0.iter().position(|name| *name == text[8..11])? as u8 + 1;
    let is_whole = hour < 24 && minute < 60 && second < 60 && is_date(year, month, day);
    is_whole
        .then(|| days_from_civil(year.into(), month, day as u8) * DAY + i64::from(hour * 3600 + minute * 60 + second))
}

fn parse_any(text: &[u8]) -> Option<i64> {
    /// Bytes after the day of the week that every format has.
    const SHORTEST: usize = 18;
    let stop = text.iter().position(|byte| matches!(byte, b',' | b' '))?;
    let rest = &text[stop + 1..];
    let blanks = rest.iter().position(|&byte| byte != b' ')?;
    let mut reader = Reader(&rest[blanks..]);
    if reader.0.len() < SHORTEST {
        return None;
    }
    let (year, month, day, time);
    if text[stop] == b' ' {
        month = reader.month()?;
        reader.expect(b' ')?;
        day = reader.day()?;
        reader.expect(b' ')?;
        time = reader.time()?;
        reader.expect(b' ')?;
        year = reader.number(4)?;
    } else {
        day = reader.number(2)?;
        let separator = reader.byte().filter(|byte| matches!(byte, b' ' | b'-'))?;
        month = reader.month()?;
        reader.expect(separator)?;
        year = if separator == b' ' { reader.number(4)? } else { century(reader.number(2)?) };
        reader.expect(b' ')?;
        time = reader.time()?;
    }
    is_date(year, month, day).then(|| days_from_civil(year.into(), month, day as u8) * DAY + i64::from(time))
}

/// Reads a date of RFC 3339 section 5.6: `2026-11-20T20:41:09.5Z`, `2026-11-20T21:41:09+01:00`. Gives Unix seconds;
/// fractions are dropped.
pub fn parse_rfc3339(text: &[u8]) -> Option<i64> {
    let mut reader = Reader(text);
    let year = reader.number(4)?;
    reader.expect(b'-')?;
    let month = reader.number(2).filter(|month| (1..=12).contains(month))? as u8;
    reader.expect(b'-')?;
    let day = reader.number(2).filter(|day| *day > 0)?;
    reader.byte().filter(|byte| matches!(byte, b'T' | b't' | b' '))?;
    let time = reader.time()?;
    let mut zone = reader.byte()?;
    if zone == b'.' {
        while zone == b'.' || zone.is_ascii_digit() {
            zone = reader.byte()?;
        }
    }
    let offset = match zone {
        b'Z' | b'z' => 0,
        b'+' | b'-' => {
            let hours = reader.number(2)?;
            reader.expect(b':')?;
            let minutes = i64::from(hours * 60 + reader.number(2)?);
            if zone == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let whole = reader.0.is_empty() && is_date(year, month, day);
    whole.then(|| days_from_civil(year.into(), month, day as u8) * DAY + i64::from(time) - 60 * offset)
}

/// Two-digit years from 70 on are of the last century.
fn century(year: u32) -> u32 {
    year + if year < 70 { 2000 } else { 1900 }
}

fn is_date(year: u32, month: u8, day: u32) -> bool {
    const LENGTHS: [u32; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    day <= LENGTHS[usize::from(month) - 1] + u32::from(leap && month == 2)
}

/// Takes pieces off the front of a date.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.byte()? == byte).then_some(())
    }

    fn number(&mut self, digits: usize) -> Option<u32> {
        (0..digits).try_fold(0, |number, _| {
            let digit = self.byte()?;
            digit.is_ascii_digit().then(|| number * 10 + u32::from(digit - b'0'))
        })
    }

    /// One or two digits, the first perhaps after a blank.
    fn day(&mut self) -> Option<u32> {
        if self.0.first() == Some(&b' ') {
            self.byte();
        }
        let day = self.number(1)?;
        if self.0.first() == Some(&b' ') { Some(day) } else { Some(day * 10 + self.number(1)?) }
    }

    fn month(&mut self) -> Option<u8> {
        let name = [self.byte()?, self.byte()?, self.byte()?];
        Some(match name {
            [b'J', b'a', _] => 1,
            [b'F', ..] => 2,
            [b'M', _, b'r'] => 3,
            [b'A', b'p', _] => 4,
            [b'M', ..] => 5,
            [b'J', _, b'n'] => 6,
            [b'J', ..] => 7,
            [b'A', ..] => 8,
            [b'S', ..] => 9,
            [b'O', ..] => 10,
            [b'N', ..] => 11,
            [b'D', ..] => 12,
            _ => return None,
        })
    }

    /// Second of the day.
    fn time(&mut self) -> Option<u32> {
        let hour = self.number(2)?;
        self.expect(b':')?;
        let minute = self.number(2)?;
        self.expect(b':')?;
        let second = self.number(2)?;
        (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: i64 = 1_795_207_269;

    #[test]
    fn cookie_times_have_short_years_until_2037() {
        for (at, text) in [
            (784_111_777, "Sun, 06-Nov-94 08:49:37 GMT"),
            (2_145_916_555, "Thu, 31-Dec-37 23:55:55 GMT"),
            (2_145_916_800, "Fri, 01-Jan-2038 00:00:00 GMT"),
        ] {
            let mut out = Vec::new();
            write_cookie(at, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn formats() {
        assert_eq!(&format_http(MOMENT), b"Fri, 20 Nov 2026 20:41:09 GMT");
        assert_eq!(&format_http(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&format_http(951_782_400), b"Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(&format_log(MOMENT, 0), b"20/Nov/2026:20:41:09 +0000");
        assert_eq!(&format_log(MOMENT, -210), b"20/Nov/2026:17:11:09 -0330");
        assert_eq!(&format_iso8601(MOMENT, 330), b"2026-11-21T02:11:09+05:30");
        assert_eq!(&format_error_log(MOMENT, 60), b"2026/11/20 21:41:09");
        assert_eq!(&format_syslog(MOMENT - 15 * DAY, 0), b"Nov  5 20:41:09");
    }

    #[test]
    fn days_and_back() {
        for days in (-800_000..800_000).step_by(37) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }

    #[test]
    fn parses_three_formats() {
        for text in [
            "Fri, 20 Nov 2026 20:41:09 GMT",
            "Friday, 20-Nov-26 20:41:09 GMT",
            "Fri Nov 20 20:41:09 2026",
            "x,20 Nov 2026 20:41:09",
            "Fri Nxx 20 20:41:09 2026 and more",
        ] {
            assert_eq!(parse_http(text.as_bytes()), Some(MOMENT), "{text}");
        }
        assert_eq!(parse_http(b"Sat Jan  3 00:00:00 1970"), Some(2 * DAY));
        assert_eq!(parse_http(b"Thu, 01-Jan-70 00:00:01 GMT"), Some(1));
        for bad in [
            "",
            "Fri",
            "Fri, 20 Nov 2026 20:41",
            "Fri, 31 Nov 2026 20:41:09 GMT",
            "Fri, 29 Feb 2026 20:41:09 GMT",
            "Fri, 20 Xov 2026 20:41:09 GMT",
            "Fri, 20 Nov 2026 24:41:09 GMT",
            "Fri, 20.Nov.2026 20:41:09 GMT",
            "Fri, 2 Nov 2026 20:41:09 GMT ",
            "Fri, 20-Nov 26 20:41:09 GMT",
            "20 Nov 2026 20:41:09 GMT",
        ] {
            assert_eq!(parse_http(bad.as_bytes()), None, "{bad}");
        }
        for seconds in (0..4_000_000_000).step_by(12_345_678) {
            assert_eq!(parse_http(&format_http(seconds)), Some(seconds));
        }
    }

    /// What is taken for the usual date means the same when it is looked at closely.
    #[test]
    fn the_usual_date_is_no_exception() {
        for date in ["Fri, 20 Nov 2026 20:41:09 GMT", "Sun, 31 Dec 0000 23:59:59", "Mon, 29 Feb 2028 00:00:00  "] {
            for at in 0..date.len() {
                for byte in b" ,-:09aZ\0" {
                    let mut text = date.as_bytes().to_vec();
                    text[at] = *byte;
                    let shown = String::from_utf8_lossy(&text).into_owned();
                    assert_eq!(parse_http(&text), parse_any(&text), "{shown}");
                    assert_eq!(parse_http(&text[..at]), parse_any(&text[..at]), "{shown}");
                }
            }
        }
    }

    #[test]
    fn parses_rfc3339() {
        for text in ["2026-11-20T20:41:09Z", "2026-11-20T20:41:09.25Z", "2026-11-20t21:41:09+01:00"] {
            assert_eq!(parse_rfc3339(text.as_bytes()), Some(MOMENT), "{text}");
        }
        assert_eq!(parse_rfc3339(&format_iso8601(MOMENT, -210)), Some(MOMENT));
        for bad in ["", "2026-11-20T20:41:09", "2026-11-31T20:41:09Z", "2026-00-20T20:41:09Z", "2026-11-20T20:41:09Zx"]
        {
            assert_eq!(parse_rfc3339(bad.as_bytes()), None, "{bad}");
        }
    }
}
