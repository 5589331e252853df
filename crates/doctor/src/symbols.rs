//! Which function of a program is at a place in its file: ELF's symbols (System V ABI, chapters 4 and 5; 64 bits, little-endian). For `exits`.
//! What is read may be anybody's file: lengths are checked, sizes bounded, nothing is indexed blindly.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `ET_EXEC` and `ET_DYN` have a few program headers and some dozens of sections.
const MOST_HEADERS: u64 = 1_024;
/// Symbols that are looked through: a large program with all of its own has a million.
const MOST_SYMBOLS: u64 = 8 << 20;
/// Symbols that are read at once.
const AT_ONCE: u64 = 4_096;
/// The longest name that is read.
const LONGEST_NAME: usize = 1_024;
const PAGE: u64 = 4_096;

/// `PT_LOAD`, `PF_X`, `SHT_SYMTAB`, `SHT_DYNSYM`, `STT_FUNC`; sizes of a program header, a section header and a symbol.
const LOAD: u32 = 1;
const EXECUTABLE: u32 = 1;
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
const FUNCTION: u8 = 2;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;

/// Where in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A byte of its file (what the kernel tells since Linux 6.2).
    File(u64),
    /// So many bytes behind the start of its code's mapping (before that).
    Code(u64),
}

/// A function, and the address by which tools like `addr2line` know the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// How far into it.
    pub offset: u64,
    /// The place's address in the program.
    pub address: u64,
}

/// Reads so many bytes at a place; none if they are not there.
type ReadAt<'r> = dyn Fn(u64, &mut [u8]) -> Option<()> + 'r;

/// The function of a program at a place; none if it has no symbols, or is no such program.
pub fn function(program: &Path, place: Place) -> Option<Function> {
    let file = File::open(program).ok()?;
    find(&|at, buffer| file.read_exact_at(buffer, at).ok(), place)
}

/// The same in a file's bytes, wherever they are.
pub fn find(read: &ReadAt<'_>, place: Place) -> Option<Function> {
    let mut header = [0; 64];
    read(0, &mut header)?;
    // 64 bits, little-endian.
    if !header.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return None;
    }
    let address = address_of(read, &header, place)?;
    let sections = table(read, u64_at(&header, 40), u16_at(&header, 60), SECTION_HEADER)?;
    let of_kind = |kind| sections.chunks_exact(SECTION_HEADER).find(move |s| u32_at(s, 4) == kind);
    // What a program keeps for itself, or, where it was stripped, what it offers to others.
    [SYMTAB, DYNSYM].into_iter().filter_map(of_kind).find_map(|symbols| {
        let names = sections.chunks_exact(SECTION_HEADER).nth(u32_at(symbols, 40) as usize)?;
        let (name, value) = covering(read, (u64_at(symbols, 24), u64_at(symbols, 32)), address)?;
        let name = string(read, u64_at(names, 24).checked_add(u64::from(name))?)?;
        Some(Function { name: demangled(&name), offset: address - value, address })
    })
}

fn table(read: &ReadAt<'_>, at: u64, count: u16, size: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; u64::from(count).min(MOST_HEADERS) as usize * size];
    read(at, &mut bytes)?;
    Some(bytes)
}

fn address_of(read: &ReadAt<'_>, header: &[u8], place: Place) -> Option<u64> {
    let segments = table(read, u64_at(header, 32), u16_at(header, 56), PROGRAM_HEADER)?;
    let code = |s: &&[u8]| u32_at(s, 0) == LOAD && u32_at(s, 4) & EXECUTABLE != 0;
    segments.chunks_exact(PROGRAM_HEADER).filter(code).find_map(|s| {
        let (offset, address, length) = (u64_at(s, 8), u64_at(s, 16), u64_at(s, 32));
        let at = match place {
            Place::File(at) => at,
            Place::Code(behind) => (offset / PAGE * PAGE).checked_add(behind)?,
        };
        let within = at.checked_sub(offset).filter(|n| *n < length)?;
        address.checked_add(within)
    })
}

/// Of a table of symbols (where it is, how many bytes), the function that covers an address: where its name is, and where it begins.
fn covering(read: &ReadAt<'_>, (at, bytes): (u64, u64), address: u64) -> Option<(u32, u64)> {
    let count = (bytes / SYMBOL as u64).min(MOST_SYMBOLS);
    let mut buffer = Vec::new();
    let mut first = 0;
    while first < count {
        let some = (count - first).min(AT_ONCE);
        buffer.resize(some as usize * SYMBOL, 0);
        read(at.checked_add(first * SYMBOL as u64)?, &mut buffer)?;
        let covers = |s: &&[u8]| {
            let (value, size) = (u64_at(s, 8), u64_at(s, 16));
            s[4] & 15 == FUNCTION && address >= value && address - value < size.max(1)
        };
        if let Some(symbol) = buffer.chunks_exact(SYMBOL).find(covers) {
            return Some((u32_at(symbol, 0), u64_at(symbol, 8)));
        }
        first += some;
    }
    None
}

fn string(read: &ReadAt<'_>, at: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0; 1];
    while bytes.len() < LONGEST_NAME {
        read(at.checked_add(bytes.len() as u64)?, &mut byte)?;
        if byte[0] == 0 {
            break;
        }
        bytes.push(byte[0]);
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// `_ZN6server6listen6accept17h0123456789abcdefE` is `server::listen::accept`. What is mangled otherwise stays as it is.
fn demangled(name: &str) -> String {
    let parts = || -> Option<String> {
        let mut rest = name.strip_prefix("_ZN")?;
        let mut all = Vec::new();
        while !rest.starts_with('E') {
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let length: usize = rest[..digits].parse().ok()?;
            all.push(rest.get(digits..digits.checked_add(length)?)?);
            rest = rest.get(digits + length..)?;
        }
        // Rust's last part is a hash.
        if all.len() > 1 && all.last().is_some_and(|l| l.len() == 17 && l.starts_with('h')) {
            all.pop();
        }
        Some(all.join("::"))
    };
    parts().unwrap_or_else(|| name.to_owned())
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something that nothing else is called, and that stays a function.
    #[inline(never)]
    extern "C" fn a_place_in_this_program(n: u64) -> u64 {
        std::hint::black_box(n) + 1
    }

    #[test]
    fn a_function_of_this_program_is_found_in_its_file() {
        let at = a_place_in_this_program as *const () as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mapping = maps.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (from, to) = fields[0].split_once('-')?;
            (hex(from)..hex(to)).contains(&at).then(|| (hex(from), hex(fields[2]), fields[5].to_owned()))
        });
        let (from, offset, path) = mapping.unwrap();
        for place in [Place::File(at - from + offset), Place::Code(at - from)] {
            let found = function(Path::new(&path), place).unwrap_or_else(|| panic!("{place:?} in {path}"));
            assert!(found.name.ends_with("a_place_in_this_program") && found.offset == 0, "{found:?}");
        }
        assert_eq!(function(Path::new(&path), Place::File(u64::MAX)), None);
        assert_eq!(function(Path::new("/proc/self/maps"), Place::File(0)), None);
    }

    #[test]
    fn files_that_are_cut_or_lie_have_no_functions() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let head = &program[..4_096];
        let of = |bytes: &[u8]| {
            let read = |at: u64, buffer: &mut [u8]| -> Option<()> {
                let at = usize::try_from(at).ok()?;
                buffer.copy_from_slice(bytes.get(at..at.checked_add(buffer.len())?)?);
                Some(())
            };
            find(&read, Place::Code(0))
        };
        (0..head.len()).step_by(7).for_each(|n| assert_eq!(of(&head[..n]), None));
        let mut wild = head.to_vec();
        wild[32..64].fill(0xff);
        assert_eq!(of(&wild), None);
    }

    #[test]
    fn names_are_shown_as_they_were_written() {
        for (mangled, shown) in [
            ("_ZN6server6listen6accept17h0123456789abcdefE", "server::listen::accept"),
            ("ngx_http_process_request", "ngx_http_process_request"),
            ("_ZN99xE", "_ZN99xE"),
            ("_ZN", "_ZN"),
            ("_RNvC6server4main", "_RNvC6server4main"),
        ] {
            assert_eq!(demangled(mangled), shown);
        }
    }
}
