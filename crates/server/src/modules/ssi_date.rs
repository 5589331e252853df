//! Dates as `strftime` writes them in the C locale: `config timefmt` of SSI. Times are those of `wire`'s calendar.

use crate::master::sys::{LocalTime, local_time, zone_name};

/// More than this a date cannot have (`NGX_HTTP_SSI_DATE_LEN`).
const LIMIT: usize = 2048;
const DAY: i64 = 24 * 60 * 60;
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment with what is asked of it.
struct Moment {
    seconds: i64,
    time: LocalTime,
    weekday: usize,
    /// 0 to 365.
    year_day: i64,
    zone: String,
}

/// Formats a moment in seconds since 1970, as UTC or in the local zone. None: the result is too long.
pub fn format(seconds: i64, gmt: bool, format: &[u8]) -> Option<Vec<u8>> {
    let moment = if gmt { utc(seconds) } else { local(seconds) };
    let mut out = Vec::new();
    write(&moment, format, &mut out);
    (out.len() < LIMIT).then_some(out)
}

fn utc(seconds: i64) -> Moment {
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let time = LocalTime {
        year: year as i32,
        month: month as u32,
        day: day as u32,
        hour: (rest / 3600) as u32,
        minute: (rest / 60 % 60) as u32,
        second: (rest % 60) as u32,
        offset_minutes: 0,
    };
    moment(seconds, time, "GMT".to_owned())
}

fn local(seconds: i64) -> Moment {
    moment(seconds, local_time(seconds), zone_name(seconds))
}

fn moment(seconds: i64, time: LocalTime, zone: String) -> Moment {
    let days = days(time.year as i64, time.month as i64, time.day as i64);
    let weekday = (days + 4).rem_euclid(7) as usize;
    Moment { seconds, weekday, year_day: days - self::days(time.year as i64, 1, 1), time, zone }
}

/// Days since 1970 of a date of the Gregorian calendar; years begin in March here, so that a leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil(days: i64) -> (i64, i64, i64) {
    // A year is within one of this guess; months and days follow by counting.
    let mut year = 1970 + days.div_euclid(366);
    while self::days(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut month = 12;
    while self::days(year, month, 1) > days {
        month -= 1;
    }
    (year, month, days - self::days(year, month, 1) + 1)
}

/// Year and week of ISO 8601.
fn iso_week(m: &Moment) -> (i64, i64) {
    let monday_based = (m.weekday as i64 + 6) % 7;
    let year = m.time.year as i64;
    let week = (m.year_day - monday_based + 10) / 7;
    if week < 1 {
        let weeks = weeks(year - 1);
        return (year - 1, weeks);
    }
    if week > weeks(year) { (year + 1, 1) } else { (year, week) }
}

fn weeks(year: i64) -> i64 {
    let first = (days(year, 1, 1) + 3).rem_euclid(7);
    let leap = days(year + 1, 1, 1) - days(year, 1, 1) == 366;
    if first == 3 || (first == 2 && leap) { 53 } else { 52 }
}

fn write(m: &Moment, format: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while at < format.len() && out.len() < LIMIT {
        let byte = format[at];
        at += 1;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        // `E` and `O` ask for other digits, which the C locale has not.
        while matches!(format.get(at), Some(b'E' | b'O')) {
            at += 1;
        }
        match format.get(at) {
            Some(&kind) => field(m, kind, out),
            None => out.push(b'%'),
        }
        at += 1;
    }
}

fn field(m: &Moment, kind: u8, out: &mut Vec<u8>) {
    let t = &m.time;
    let hour12 = (t.hour + 11) % 12 + 1;
    let (day, month) = (DAYS[m.weekday], MONTHS[t.month as usize - 1]);
    let text = match kind {
        b'a' => day[..3].to_owned(),
        b'A' => day.to_owned(),
        b'b' | b'h' => month[..3].to_owned(),
        b'B' => month.to_owned(),
        b'c' => return write(m, b"%a %b %e %H:%M:%S %Y", out),
        b'C' => format!("{:02}", t.year.div_euclid(100)),
        b'd' => format!("{:02}", t.day),
        b'D' | b'x' => return write(m, b"%m/%d/%y", out),
        b'e' => format!("{:2}", t.day),
        b'F' => return write(m, b"%Y-%m-%d", out),
        b'g' => format!("{:02}", iso_week(m).0.rem_euclid(100)),
        b'G' => iso_week(m).0.to_string(),
        b'H' => format!("{:02}", t.hour),
        b'I' => format!("{hour12:02}"),
        b'j' => format!("{:03}", m.year_day + 1),
        b'k' => format!("{:2}", t.hour),
        b'l' => format!("{hour12:2}"),
        b'm' => format!("{:02}", t.month),
        b'M' => format!("{:02}", t.minute),
        b'n' => "\n".to_owned(),
        b'p' => if t.hour < 12 { "AM" } else { "PM" }.to_owned(),
        b'P' => if t.hour < 12 { "am" } else { "pm" }.to_owned(),
        b'r' => return write(m, b"%I:%M:%S %p", out),
        b'R' => return write(m, b"%H:%M", out),
        b's' => m.seconds.to_string(),
        b'S' => format!("{:02}", t.second),
        b't' => "\t".to_owned(),
        b'T' | b'X' => return write(m, b"%H:%M:%S", out),
        b'u' => ((m.weekday + 6) % 7 + 1).to_string(),
        b'U' => format!("{:02}", (m.year_day + 7 - m.weekday as i64) / 7),
        b'V' => format!("{:02}", iso_week(m).1),
        b'w' => m.weekday.to_string(),
        b'W' => format!("{:02}", (m.year_day + 7 - (m.weekday as i64 + 6) % 7) / 7),
        b'y' => format!("{:02}", t.year.rem_euclid(100)),
        b'Y' => t.year.to_string(),
        b'z' => {
            let (sign, minutes) = if t.offset_minutes < 0 { ('-', -t.offset_minutes) } else { ('+', t.offset_minutes) };
            format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
        }
        b'Z' => m.zone.clone(),
        b'%' => "%".to_owned(),
        other => format!("%{}", other as char),
    };
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gmt(seconds: i64, text: &str) -> String {
        String::from_utf8(format(seconds, true, text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn fields() {
        assert_eq!(gmt(0, "%A, %d-%b-%Y %H:%M:%S %Z"), "Thursday, 01-Jan-1970 00:00:00 GMT");
        assert_eq!(gmt(1_795_212_069, "%a %e %B %y %j %I%p %z %u %w %%"), "Fri 20 November 26 324 10PM +0000 5 5 %");
        assert_eq!(gmt(1_709_164_800, "%F %T %R"), "2024-02-29 00:00:00 00:00");
        assert_eq!(gmt(1_704_067_199, "%G-%V %U %W"), "2023-52 53 52");
        assert_eq!(gmt(-1, "%F %s"), "1969-12-31 -1");
        assert_eq!(gmt(0, "IF"), "IF");
    }
}
