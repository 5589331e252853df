//! `mp4`: `FILE.mp4?start=10&end=20` is answered with that stretch of time, a file of its own (nginx's `ngx_http_mp4_module`).
//! The tables are cut in `wire::mp4`; here the file is looked through.

use super::{ignored, root, static_files};
use crate::config::setters;
use crate::config::{Directive, http};
use crate::files::{self, Data, Kind, OpenedFile};
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request};
use crate::{inherited, log_error, merged_values};
use std::os::fd::OwnedFd;
use wire::http1::target::argument;
use wire::mp4::{self, Around, Cut, Wanted};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("mp4", |s, _| {
        s.level.conf.core.handler = Some(Content::Now(handler));
        Ok(())
    }),
    // A `moov` is read at once, whatever its size; heads of boxes one by one.
    http("mp4_buffer_size", ignored::size),
    http("mp4_max_buffer_size", |s, n| setters::size(&mut s.level.conf.mp4.mp4_max_buffer_size, n)),
    http("mp4_start_key_frame", |s, n| setters::flag(&mut s.level.conf.mp4.mp4_start_key_frame, n)),
];

/// A longer `ftyp` box is refused (nginx's limit).
const MAX_FTYP: u64 = 1024;
/// So many boxes of a file are looked at.
const MAX_BOXES: usize = 4096;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// A longer `moov` box is refused.
        mp4_max_buffer_size: u64 = 10 * 1024 * 1024,
        /// Video starts with the key frame before the start.
        mp4_start_key_frame: bool = false,
    }
}

inherited!(Conf, |_| true);

/// What is sent.
enum Answer {
    Whole,
    Stretch { ftyp: Vec<u8>, cut: Cut },
}

fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    if r.get(r.head.uri).ends_with(b"/") {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let path = root::path_of(r);
    let found = match files::open(r, &path) {
        Ok(found) => found,
        Err(failure) => return static_files::failed(r, &path, failure),
    };
    if found.facts.kind != Kind::File {
        return Verdict::Decline;
    }
    let answer = match wanted(r) {
        None => Answer::Whole,
        Some(wanted) => {
            // One part of it at a time, as of any film that was asked for from somewhere on.
            r.answer.single_range = true;
            match look(r, &found, wanted) {
                Ok(answer) => answer,
                Err(text) => {
                    log_error!(r, Error, "{text} in \"{}\"", String::from_utf8_lossy(&path));
                    return Verdict::Status(500);
                }
            }
        }
    };
    match answer {
        Answer::Whole => static_files::respond(r, &found),
        Answer::Stretch { ftyp, cut } => respond(r, &found, &ftyp, &cut),
    }
}

/// The stretch that the arguments ask for. Players send times with any number of digits.
fn wanted(r: &Request) -> Option<Wanted> {
    let args = r.get(r.head.args);
    let time = |name: &[u8]| argument(args, name).and_then(milliseconds);
    let (start, end) = (time(b"start"), time(b"end").filter(|n| *n > 0));
    let begin = start.unwrap_or(0);
    let length = end.and_then(|end| end.checked_sub(begin)).filter(|n| *n > 0);
    let key_frame = *r.conf().mp4.mp4_start_key_frame;
    (start.is_some() || end.is_some()).then_some(Wanted { start: begin, length, key_frame })
}

/// Seconds with a fraction of any length (`ngx_http_mp4_atofp`).
fn milliseconds(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    if text.is_empty() || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    let mut digits = whole.iter().chain(fraction.iter().chain(b"000").take(3));
    let ms = digits.try_fold(0i64, |n, d| n.checked_mul(10)?.checked_add(i64::from(d - b'0')))?;
    u64::try_from(ms).ok()
}

/// Looks through the boxes of a file.
fn look(r: &Request, found: &OpenedFile, wanted: Wanted) -> Result<Answer, String> {
    let (size, most) = (found.facts.size, *r.conf().mp4.mp4_max_buffer_size);
    let (mut ftyp, mut moov, mut mdat_end) = (None, None, None);
    let (mut at, mut boxes) = (0, 0);
    while at < size && (moov.is_none() || mdat_end.is_none()) {
        boxes += 1;
        if boxes > MAX_BOXES {
            return Err("too many mp4 atoms".to_owned());
        }
        let head = read(found, at, 16.min(size - at))?;
        let (name, head, len) = mp4::box_head(&head).ok_or("mp4 file truncated")?.map_err(|e| e.to_string())?;
        if len == 0 {
            break;
        }
        let end = at.checked_add(len).filter(|end| *end <= size).ok_or_else(|| format!("mp4 atom too large:{len}"))?;
        let (data, len) = (at + head as u64, len - head as u64);
        match &name {
            b"ftyp" if ftyp.is_some() => return Err("duplicate mp4 ftyp atom".to_owned()),
            b"ftyp" if len > MAX_FTYP => return Err(format!("mp4 ftyp atom is too large:{len}")),
            b"ftyp" => ftyp = Some([&(len as u32 + 8).to_be_bytes()[..], b"ftyp", &read(found, data, len)?].concat()),
            // As it is meant to be already: all of it, as it is.
            b"moov" if mdat_end.is_none() && wanted.start == 0 && wanted.length.is_none() => return Ok(Answer::Whole),
            b"moov" if moov.is_some() => return Err("duplicate mp4 moov atom".to_owned()),
            b"moov" if len > most => {
                return Err(format!("mp4 moov atom is too large:{len}, you may want to increase mp4_max_buffer_size"));
            }
            b"moov" => moov = Some(read(found, data, len)?),
            b"mdat" if mdat_end.is_some() => return Err("duplicate mp4 mdat atom".to_owned()),
            b"mdat" => mdat_end = Some(end),
            _ => {}
        }
        at = end;
    }
    let moov = moov.ok_or("no mp4 trak atoms were found")?;
    let mdat_end = mdat_end.ok_or("no mp4 mdat atom was found")?;
    let ftyp = ftyp.unwrap_or_default();
    let around = Around { file: size, mdat_end, before: ftyp.len() as u64 };
    let cut = mp4::cut(&moov, around, wanted).map_err(|e| e.to_string())?;
    Ok(Answer::Stretch { ftyp, cut })
}

/// Some bytes of the file.
fn read(found: &OpenedFile, at: u64, len: u64) -> Result<Vec<u8>, String> {
    match &found.data {
        Data::Nothing => Err("mp4 file truncated".to_owned()),
        Data::Memory(small) => {
            let range = at as usize..(at + len) as usize;
            small.bytes.get(range).map(<[u8]>::to_vec).ok_or("mp4 file truncated".to_owned())
        }
        Data::File(file) => read_file(file, at, len),
    }
}

fn read_file(file: &OwnedFd, at: u64, len: u64) -> Result<Vec<u8>, String> {
    let (mut bytes, mut got) = (vec![0; len as usize], 0);
    while got < bytes.len() {
        match rustix::io::pread(file, &mut bytes[got..], at + got as u64) {
            Ok(0) => return Err("mp4 file truncated".to_owned()),
            Ok(n) => got += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(format!("pread() failed ({})", crate::log::os_error(&e.into()))),
        }
    }
    Ok(bytes)
}

fn respond(r: &mut Request, found: &OpenedFile, ftyp: &[u8], cut: &Cut) -> Verdict {
    let head = [ftyp, &cut.head].concat();
    r.answer.single_range = true;
    if let Err(verdict) = static_files::begin(r, found.facts.mtime, head.len() as u64 + (cut.to - cut.from)) {
        return verdict;
    }
    static_files::send_parts(r, &head, found, cut.from, cut.to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, ms) in [("1", 1000), ("1.5", 1500), ("0.0019", 1), ("12.345678901234567890", 12_345), (".5", 500)] {
            assert_eq!(milliseconds(text.as_bytes()), Some(ms), "{text}");
        }
        for text in ["", "-1", "1.2.3", "x", "99999999999999999999"] {
            assert_eq!(milliseconds(text.as_bytes()), None, "{text}");
        }
    }
}
