//! `match` blocks: what an answer must be to count as well. Pure: an answer in, or why not out.

use super::cause::Cause;
use super::hello;
use crate::snapshot::VariableId;
use pcre2::bytes::Regex;
use std::fmt;

/// Bytes of a body that are looked at, as in nginx Plus.
pub const MAX_BODY: usize = 256 * 1024;
/// Bytes of an answer that are shown in a log line.
const SHOWN: usize = 60;

/// All of them have to hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// `status`; none: anything.
    pub status: Option<Statuses>,
    /// `header`
    pub headers: Vec<Header>,
    /// `body`
    pub body: Option<(Test, Regex)>,
    /// `require`: variables, with their names. Judged by `require`.
    pub require: Vec<(Box<str>, VariableId)>,
}

/// `status 200 301-308`, `status ! 500`
#[derive(Clone, Debug)]
pub struct Statuses {
    /// From and to, both included.
    pub ranges: Vec<(u16, u16)>,
    /// None of them.
    pub not: bool,
}

/// Whether an expression is to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is.
    Yes,
    /// It is not.
    No,
}

impl Test {
    fn holds(self, is: bool) -> bool {
        is == (self == Test::Yes)
    }

    /// Neither holds of what a pattern gives up on.
    fn matches(self, regex: &Regex, subject: &[u8]) -> bool {
        regex.is_match(subject).is_ok_and(|is| self.holds(is))
    }
}

/// `header NAME ...`
#[derive(Clone, Debug)]
pub struct Header {
    /// Its name.
    pub name: Box<[u8]>,
    /// As in the configuration, for the log.
    pub text: Box<str>,
    /// What of it.
    pub value: Value,
}

/// What a header must be.
#[derive(Clone, Debug)]
pub enum Value {
    /// It is there.
    There,
    /// It is not.
    Missing,
    /// It is this, or not.
    Is(Test, Box<[u8]>),
    /// It matches, or not.
    Matches(Test, Regex),
}

/// What bytes must come back.
#[derive(Clone, Debug)]
pub enum Expect {
    /// These, from the beginning.
    Bytes(Box<[u8]>),
    /// Some that match.
    Regex(Regex),
    /// A TLS server's first message.
    ServerHello,
    /// An MQTT broker's CONNACK without a reason against it.
    ConnAck,
}

/// An answer to be judged.
pub trait Answer {
    /// Its status.
    fn status(&self) -> u16;
    /// The values of a header.
    fn header<'a>(&'a self, name: &'a [u8]) -> Box<dyn Iterator<Item = &'a [u8]> + 'a>;
    /// The body, at most its first [`MAX_BODY`].
    fn body(&self) -> &[u8];
}

impl Match {
    /// What holds without `match`: 2xx and 3xx.
    pub fn standard() -> Match {
        Match { status: Some(Statuses { ranges: vec![(200, 399)], not: false }), ..Match::default() }
    }

    /// Whether an answer is right.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn judge(&self, answer: &dyn Answer) -> Result<(), Cause> {
        if let Some(statuses) = &self.status
            && !statuses.hold(answer.status())
        {
            return Err(Cause::Status { status: answer.status(), wanted: statuses.to_string().into() });
        }
        if let Some(header) = self.headers.iter().find(|h| !h.holds(answer)) {
            let came = answer.header(&header.name).next().map(shown);
            let came = came.map_or_else(|| "it did not come".to_owned(), |v| format!("came as \"{v}\""));
            return Err(Cause::Header(format!("{}: {came}", header.text).into()));
        }
        if let Some((test, regex)) = &self.body
            && !test.matches(regex, answer.body())
        {
            let sign = if *test == Test::Yes { "~" } else { "!~" };
            let text = format!("{sign} \"{}\": began with \"{}\"", regex.as_str(), shown(answer.body()));
            return Err(Cause::Body(text.into()));
        }
        Ok(())
    }
}

impl Statuses {
    fn hold(&self, status: u16) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&status)) != self.not
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.not { "none of" } else { "" })?;
        for (i, (from, to)) in self.ranges.iter().enumerate() {
            f.write_str(if i > 0 || self.not { " " } else { "" })?;
            if from == to { write!(f, "{from}")? } else { write!(f, "{from}-{to}")? }
        }
        Ok(())
    }
}

impl Header {
    fn holds(&self, answer: &dyn Answer) -> bool {
        let mut values = answer.header(&self.name);
        match &self.value {
            Value::There => values.next().is_some(),
            Value::Missing => values.next().is_none(),
            Value::Is(test, wanted) => test.holds(values.any(|v| *v == **wanted)),
            Value::Matches(Test::Yes, regex) => values.any(|v| Test::Yes.matches(regex, v)),
            Value::Matches(Test::No, regex) => values.all(|v| Test::No.matches(regex, v)),
        }
    }
}

impl Expect {
    /// Whether what has come so far is right; `None`: more may make it so.
    pub fn judge(&self, came: &[u8]) -> Option<Result<(), Cause>> {
        match self {
            Expect::Bytes(wanted) if came.starts_with(wanted) => Some(Ok(())),
            Expect::Bytes(wanted) if wanted.starts_with(came) => None,
            Expect::Bytes(_) => Some(Err(self.cause(came))),
            Expect::Regex(regex) => regex.is_match(came).unwrap_or(false).then_some(Ok(())),
            Expect::ServerHello => hello::judge(came),
            Expect::ConnAck => Some(wire::mqtt::connack(came)?.map_err(|_| self.cause(came))),
        }
    }

    /// What is wrong when no more comes.
    pub fn cause(&self, came: &[u8]) -> Cause {
        let wanted = match self {
            Expect::Bytes(bytes) => format!("\"{}\"", shown(bytes)),
            Expect::Regex(regex) => format!("~ \"{}\"", regex.as_str()),
            Expect::ServerHello => return hello::cut_short(),
            Expect::ConnAck => match wire::mqtt::connack(came) {
                Some(Err(code)) if code != u8::MAX => format!("MQTT CONNACK without a reason (it is {code})"),
                _ => "MQTT CONNACK".to_owned(),
            },
        };
        Cause::Body(format!("wanted {wanted}, came \"{}\"", shown(came)).into())
    }
}

/// Foreign bytes for a line of the log: few, and none that could harm it.
pub fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN { "..." } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Given(u16, &'static str, &'static str);

    impl Answer for Given {
        fn status(&self) -> u16 {
            self.0
        }
        fn header<'a>(&'a self, name: &'a [u8]) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
            Box::new(std::iter::once(self.1.as_bytes()).filter(move |v| name == b"Server" && !v.is_empty()))
        }
        fn body(&self) -> &[u8] {
            self.2.as_bytes()
        }
    }

    fn regex(text: &str) -> Regex {
        Regex::new(text).expect("an expression")
    }

    #[test]
    fn every_part_has_to_hold_and_the_first_that_does_not_is_named() {
        let header = |value| Header { name: b"Server"[..].into(), text: "Server = a".into(), value };
        let all = Match {
            status: Some(Statuses { ranges: vec![(200, 200), (301, 303)], not: false }),
            headers: vec![header(Value::Is(Test::Yes, b"a"[..].into()))],
            body: Some((Test::No, regex("error"))),
            require: Vec::new(),
        };
        assert_eq!(all.judge(&Given(302, "a", "fine")), Ok(()));
        let says = |given| all.judge(&given).expect_err("it does not hold").to_string();
        assert_eq!(says(Given(503, "a", "")), "answered 503, wanted 200 301-303");
        assert_eq!(says(Given(200, "b", "")), "header did not match: Server = a: came as \"b\"");
        assert_eq!(says(Given(200, "", "")), "header did not match: Server = a: it did not come");
        let body = says(Given(200, "a", "an error\n"));
        assert_eq!(body, "body did not match: !~ \"error\": began with \"an error\\n\"");
        assert!(header(Value::Missing).holds(&Given(0, "", "")) && header(Value::There).holds(&Given(0, "x", "")));
        assert!(header(Value::Matches(Test::No, regex("^n"))).holds(&Given(0, "x", "")));
    }

    #[test]
    fn brokers_accept_or_say_why_not() {
        assert_eq!(Expect::ConnAck.judge(b"\x20\x02"), None);
        assert_eq!(Expect::ConnAck.judge(b"\x20\x02\0\0"), Some(Ok(())));
        let refused = Expect::ConnAck.judge(b"\x20\x02\0\x05").and_then(Result::err).expect("refused").to_string();
        assert!(refused.contains("(it is 5)"), "{refused}");
        assert!(matches!(Expect::ConnAck.judge(b"220 mail"), Some(Err(Cause::Body(_)))));
    }

    #[test]
    fn bytes_are_waited_for_as_long_as_they_may_come() {
        let bytes = Expect::Bytes(b"+PONG"[..].into());
        assert_eq!(bytes.judge(b"+PO"), None);
        assert_eq!(bytes.judge(b"+PONG\r\n"), Some(Ok(())));
        assert!(matches!(bytes.judge(b"-ERR"), Some(Err(Cause::Body(_)))));
        let expression = Expect::Regex(regex("^2.0"));
        assert_eq!((expression.judge(b"5"), expression.judge(b"250")), (None, Some(Ok(()))));
    }
}
