//! Text to assignments. A file that is written as `sysctl` wants it is read as `sysctl` reads it. One that a web page has passed through
//! (several settings on a line, lines cut in the middle of words, blanks in names, capitals) is put together again, and each repair is noted. A
//! name that no kernel has stays as it is, with what may have been meant beside it: what a machine is told to do is nobody's guess.

use super::table;
use std::cell::Cell;

/// A longer file holds no settings. Bounds the time: repairs look at every name of the table.
pub(crate) const MOST_BYTES: usize = 128 << 10;
/// A name has no more bytes than this.
const LONGEST: usize = 128;
/// Names that no kernel has and for which a near one is looked for: a profile has fewer settings, a book more words.
const MOST_GUESSES: u32 = 1_000;
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
    /// The name that may have been meant, where no kernel has this one.
    pub(crate) meant: Option<String>,
    /// Whether it stands behind a `#`.
    pub(crate) is_comment: bool,
}

/// A piece of text and where it began; whether the line broke before it without a blank.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    line: usize,
}

/// Whether the kernel that is judged for has a setting of a name, as far as that can be asked.
pub(crate) type Has<'h> = dyn Fn(&str) -> bool + 'h;

/// What names there are.
struct Names<'h> {
    has: &'h Has<'h>,
    guesses: Cell<u32>,
}

impl Names<'_> {
    fn exists(&self, name: &str) -> bool {
        table::is_known(name) || (self.has)(name)
    }

    fn nearest(&self, name: &str) -> Option<String> {
        let left = self.guesses.get().checked_sub(1).filter(|_| name.len() <= LONGEST && name.contains('.'))?;
        self.guesses.set(left);
        table::nearest(name)
    }
}

/// All assignments of a text.
pub(crate) fn read(text: &str, has: &Has) -> Vec<Assignment> {
    let names = &Names { has, guesses: Cell::new(MOST_GUESSES) };
    let lines: Vec<&str> = text.lines().collect();
    if lines.iter().all(|l| is_plain(l)) {
        return lines.iter().enumerate().filter_map(|(at, l)| plain(at + 1, l, names)).collect();
    }
    garbled(&lines, names)
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

fn plain(line: usize, text: &str, names: &Names) -> Option<Assignment> {
    let text = text.trim();
    if text.starts_with(['#', ';']) {
        return None;
    }
    // A leading - says that a failure is no failure.
    let (written, value) = text.trim_start_matches('-').split_once('=')?;
    let written = written.trim();
    let Repaired { name, meant, differs } = repair(written, names);
    let written = differs.then(|| written.to_owned());
    Some(Assignment { line, name, value: words(value), written, meant, is_comment: false })
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A name as far as it can be told.
struct Repaired {
    /// As some kernel has it, or, where none has, as it was written, in small letters.
    name: String,
    /// See [`Assignment::meant`].
    meant: Option<String>,
    /// Whether it was written otherwise.
    differs: bool,
}

/// A name's own letters come first, small ones second. What is near is only a suggestion: real settings are near each other.
fn repair(written: &str, names: &Names) -> Repaired {
    let bare = written.trim_start_matches('#');
    // sysctl takes slashes as well as dots.
    let dotted = if bare.contains('.') { bare.to_owned() } else { bare.replace('/', ".") };
    let small = dotted.to_lowercase();
    let (name, meant) = if names.exists(&dotted) {
        (dotted, None)
    } else if names.exists(&small) {
        (small, None)
    } else {
        let meant = names.nearest(&small);
        (small, meant)
    };
    let differs = name != bare;
    Repaired { name, meant, differs }
}

/// Everything between two `=` is the value of the one before and the name of the one after.
fn garbled(lines: &[&str], names: &Names) -> Vec<Assignment> {
    let segments = segments(lines);
    let mut found = Vec::new();
    let mut open: Option<Assignment> = None;
    for (number, tokens) in segments.iter().enumerate() {
        let is_last = number + 1 == segments.len();
        let at = if is_last { tokens.len() } else { name_at(tokens, names) };
        let value: Vec<&str> = tokens[..at].iter().map(|t| t.text.as_str()).collect();
        if let Some(mut done) = open.take() {
            done.value = value.join(" ");
            found.push(done);
        }
        if is_last {
            break;
        }
        let written: Vec<&str> = tokens[at..].iter().map(|t| t.text.as_str()).collect();
        let Repaired { name, meant, .. } = repair(&written.concat(), names);
        let written = written.join(" ");
        let is_comment = written.starts_with('#');
        let line = tokens.get(at).or(tokens.last()).map_or(1, |t| t.line);
        let written = Some(written).filter(|w| w.trim_start_matches('#') != name);
        open = Some(Assignment { line, name, value: String::new(), written, meant, is_comment });
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
        joins = joins && !line.starts_with(char::is_whitespace) && !table::is_known(&begins);
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
fn name_at(tokens: &[Token], names: &Names) -> usize {
    let first = tokens.len().saturating_sub(MOST_CUTS);
    let joined = |at: usize| -> String {
        tokens[at..].iter().map(|t| t.text.as_str()).collect::<String>().trim_start_matches('#').to_lowercase()
    };
    let places = || (first..tokens.len()).filter(|&at| joined(at).len() <= LONGEST && starts_a_name(&tokens[at].text));
    places()
        .find(|&at| table::is_known(&joined(at)))
        .or_else(|| places().find(|&at| names.nearest(&joined(at)).is_some()))
        .or_else(|| places().find(|&at| joined(at).contains('.')))
        .unwrap_or(tokens.len())
}

fn starts_a_name(word: &str) -> bool {
    word.trim_start_matches('#').starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        read(text, &|_| false)
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

    /// Each of these is one or two letters from a name of which more is known.
    #[test]
    fn a_real_setting_is_never_renamed() {
        const REAL: &[&str] = &[
            "net.ipv6.conf.all.forwarding",
            "net.ipv6.conf.all.accept_redirects",
            "net.ipv6.conf.eth7.forwarding",
            "net.ipv4.conf.all.arp_filter",
            "net.ipv4.tcp_retries1",
            "net.ipv6.neigh.default.gc_thresh3",
            "net.ipv6.route.max_size",
            "net.ipv4.conf.Eth0.rp_filter",
        ];
        let text = REAL.iter().map(|n| format!("{n} = 1\n")).collect::<String>();
        let garbled = format!("settings for you: {text}");
        for a in read(&text, &|_| false).iter().chain(&read(&garbled, &|_| false)) {
            assert!(REAL.contains(&a.name.as_str()) && a.meant.is_none() && a.written.is_none(), "{a:?}");
        }
        let unknown = &read("net.ipv4.tcp_retrles2 = 8", &|_| false)[0];
        assert_eq!(
            (unknown.name.as_str(), unknown.meant.as_deref()),
            ("net.ipv4.tcp_retrles2", Some("net.ipv4.tcp_retries2"))
        );
        let kernels = &read("net.ipv4.tcp_retrles2 = 8", &|n| n == "net.ipv4.tcp_retrles2")[0];
        assert_eq!(kernels.meant, None, "a kernel that has it is right");
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
            "2:kerntl.shmall=65535",
            "3:kernel.msgmax=7",
            "4:net.core.somaxconn=9",
        ];
        assert_eq!(shown(text), expected);
        let all = read(text, &|_| false);
        assert_eq!(all[4].written.as_deref(), Some("NE T.ipv4.tcp_tw_reuse"));
        assert_eq!((all[4].meant.as_deref(), all[6].meant.as_deref()), (None, Some("kernel.shmall")));
    }

    #[test]
    fn nonsense_ends() {
        for text in ["", "=", "= =", "a b c", "=1 2 3", &"x=".repeat(1000)] {
            read(text, &|_| false);
        }
    }
}
