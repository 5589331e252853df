//! Text to assignments. A file that is written as `sysctl` wants it is read as `sysctl` reads it. One that a web page has passed through
//! (several settings on a line, lines cut in the middle of words, blanks in names, capitals) is put together again, and each repair is noted.

use super::table;

/// A longer file holds no settings. Bounds the time: repairs look at every name of the table.
pub(crate) const MOST_BYTES: usize = 128 << 10;
/// A name has no more bytes than this.
const LONGEST: usize = 128;
/// Blanks that can be left out of one name.
const MOST_CUTS: usize = 6;

/// A setting and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// 1-based line of its name's first letter.
    pub(crate) line: usize,
    /// The name, repaired; empty: there is none.
    pub(crate) name: String,
    /// The value, with single blanks.
    pub(crate) value: String,
    /// As it was written, if that is another name.
    pub(crate) written: Option<String>,
    /// Whether it stands behind a `#`.
    pub(crate) is_comment: bool,
}

/// A piece of text and where it began; whether the line broke before it without a blank.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    line: usize,
}

/// All assignments of a text.
pub(crate) fn read(text: &str) -> Vec<Assignment> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.iter().all(|l| is_plain(l)) {
        return lines.iter().enumerate().filter_map(|(at, l)| plain(at + 1, l)).collect();
    }
    garbled(&lines)
}

/// Whether a line is empty, a comment, or one assignment whose name has no blank.
fn is_plain(line: &str) -> bool {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';']) {
        return true;
    }
    line.split_once('=').is_some_and(|(name, value)| {
        !name.trim().contains(char::is_whitespace) && !name.trim().is_empty() && !value.contains('=')
    })
}

fn plain(line: usize, text: &str) -> Option<Assignment> {
    let text = text.trim();
    if text.starts_with(['#', ';']) {
        return None;
    }
    // A leading - says that a failure is no failure.
    let (name, value) = text.trim_start_matches('-').split_once('=')?;
    let (name, written) = repair(name.trim());
    Some(Assignment { line, name, value: words(value), written, is_comment: false })
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The name as the kernel has it, and as it was written if that differs.
fn repair(written: &str) -> (String, Option<String>) {
    // sysctl takes slashes as well as dots.
    let mut name: String = written.trim_start_matches('#').to_lowercase();
    if !name.contains('.') {
        name = name.replace('/', ".");
    }
    if table::find(&name).is_none()
        && let Some(near) = table::nearest(&name)
    {
        name = near;
    }
    let differs = name != written.trim_start_matches('#');
    (name, differs.then(|| written.to_owned()))
}

/// Everything between two `=` is the value of the one before and the name of the one after.
fn garbled(lines: &[&str]) -> Vec<Assignment> {
    let segments = segments(lines);
    let mut found = Vec::new();
    let mut open: Option<Assignment> = None;
    for (number, tokens) in segments.iter().enumerate() {
        let is_last = number + 1 == segments.len();
        let at = if is_last { tokens.len() } else { name_at(tokens) };
        let value: Vec<&str> = tokens[..at].iter().map(|t| t.text.as_str()).collect();
        if let Some(mut done) = open.take() {
            done.value = value.join(" ");
            found.push(done);
        }
        if is_last {
            break;
        }
        let written: Vec<&str> = tokens[at..].iter().map(|t| t.text.as_str()).collect();
        let (name, _) = repair(&written.concat());
        let written = written.join(" ");
        let is_comment = written.starts_with('#');
        let line = tokens.get(at).or(tokens.last()).map_or(1, |t| t.line);
        let differs = written.trim_start_matches('#') != name;
        open = Some(Assignment { line, name, value: String::new(), written: differs.then_some(written), is_comment });
    }
    found
}

/// The text cut at every `=`, in words. A line that was broken in the middle of a word is put together again, unless the next one begins with
/// a name that is known.
fn segments(lines: &[&str]) -> Vec<Vec<Token>> {
    let mut segments: Vec<Vec<Token>> = vec![Vec::new()];
    let mut joins = false;
    for (at, line) in lines.iter().enumerate() {
        let begins = line.split(['=', ' ', '\t']).next().unwrap_or_default().to_lowercase();
        joins = joins && !line.starts_with(char::is_whitespace) && table::find(&begins).is_none();
        for (number, part) in line.split('=').enumerate() {
            if number > 0 {
                segments.push(Vec::new());
                joins = false;
            }
            let segment = segments.last_mut().expect("there is always one");
            for word in part.split_whitespace() {
                match segment.last_mut().filter(|_| joins) {
                    Some(token) => token.text.push_str(word),
                    None => segment.push(Token { text: word.to_owned(), line: at + 1 }),
                }
                joins = false;
            }
        }
        joins = !line.is_empty() && !line.ends_with(char::is_whitespace);
    }
    segments
}

/// Where in a segment the name begins: so that what follows is a name that is known; else one that is nearly known; else at the last word
/// that looks like one. Its length: there is none.
fn name_at(tokens: &[Token]) -> usize {
    let first = tokens.len().saturating_sub(MOST_CUTS);
    let joined = |at: usize| -> String {
        tokens[at..].iter().map(|t| t.text.as_str()).collect::<String>().trim_start_matches('#').to_lowercase()
    };
    let names = || (first..tokens.len()).filter(|&at| joined(at).len() <= LONGEST && starts_a_name(&tokens[at].text));
    names()
        .find(|&at| table::find(&joined(at)).is_some())
        .or_else(|| names().find(|&at| table::nearest(&joined(at)).is_some()))
        .or_else(|| names().find(|&at| joined(at).contains('.')))
        .unwrap_or(tokens.len())
}

fn starts_a_name(word: &str) -> bool {
    word.trim_start_matches('#').starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        read(text)
            .iter()
            .map(|a| format!("{}{}:{}={}", if a.is_comment { "#" } else { "" }, a.line, a.name, a.value))
            .collect()
    }

    #[test]
    fn files_as_they_should_be() {
        let text =
            "# all\n\nnet.core.somaxconn = 4096\n-net/ipv4/tcp_mem=1  2\t3\n; x = y\nkernel.core_pattern = /a b\n";
        assert_eq!(
            shown(text),
            ["3:net.core.somaxconn=4096", "4:net.ipv4.tcp_mem=1 2 3", "6:kernel.core_pattern=/a b"]
        );
    }

    #[test]
    fn pages_that_were_copied() {
        let text = "vm.swappiness = 0 net.ipv4.conf.default.rp_\nfilter=0 Net.ipv4.tcp_mem = 1 2 3 = 4 5 6 NE T.ipv4.tcp_tw_reuse = 1 #net. ipv4.tcp_ Keepalive_time = Kerntl.shmall = 6553\n5 Kernel.msgmax = 7\nnet.core.somaxconn=9";
        let expected = [
            "1:vm.swappiness=0",
            "1:net.ipv4.conf.default.rp_filter=0",
            "2:net.ipv4.tcp_mem=1 2 3",
            "2:=4 5 6",
            "2:net.ipv4.tcp_tw_reuse=1",
            "#2:net.ipv4.tcp_keepalive_time=",
            "2:kernel.shmall=65535",
            "3:kernel.msgmax=7",
            "4:net.core.somaxconn=9",
        ];
        assert_eq!(shown(text), expected);
        assert_eq!(read(text)[4].written.as_deref(), Some("NE T.ipv4.tcp_tw_reuse"));
    }

    #[test]
    fn nonsense_ends() {
        for text in ["", "=", "= =", "a b c", "=1 2 3", &"x=".repeat(1000)] {
            read(text);
        }
    }
}
