//! Ids of messages, and where a subscriber of one or several channels stands: nchan's `time:tag,tag,...`.

use crate::limits::{MAX_CHANNELS, MAX_ID_TEXT};

/// The id of a message in its channel. Later messages have larger ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The second of publishing, Unix time.
    pub time: i64,
    /// Counts the channel's messages in that second from 0. -1: before all of them.
    pub tag: i32,
}

impl Id {
    /// Before all messages.
    pub const START: Id = Id { time: 0, tag: -1 };

    /// The next one in second `now`, or in its own if that is later.
    #[must_use]
    pub fn next(self, now: i64) -> Id {
        if now > self.time { Id { time: now, tag: 0 } } else { Id { time: self.time, tag: self.tag.saturating_add(1) } }
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.time, self.tag.max(0))
    }
}

/// The text is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

/// Where a subscriber stands: the last second that it has seen something of, and in each of its channels the last message of that
/// second, -1 for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The second.
    pub time: i64,
    tags: Vec<i32>,
}

impl Position {
    /// Of `tags` as they stand after the colon, or in `Etag`: numbers, `-` for none, brackets around the channel of the last message.
    ///
    /// # Errors
    /// It is no list of tags, or one of more channels than anybody may have.
    pub fn parse_tags(time: i64, tags: &[u8]) -> Result<Position, BadId> {
        if tags.is_empty() || tags.len() > MAX_ID_TEXT {
            return Err(BadId);
        }
        let tags = tags.split(|b| *b == b',').map(parse_tag).collect::<Result<Vec<_>, _>>()?;
        if tags.len() > MAX_CHANNELS {
            return Err(BadId);
        }
        Ok(Position { time, tags })
    }

    /// Of the whole text: `1450755280:0`.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8]) -> Result<Position, BadId> {
        let colon = text.iter().position(|b| *b == b':').ok_or(BadId)?;
        let time = parse_number(&text[..colon])?;
        Position::parse_tags(time, &text[colon + 1..])
    }

    /// How many channels it speaks of.
    pub fn channels(&self) -> usize {
        self.tags.len()
    }

    /// Where it stands in the channel of that number; before all of the second where it says nothing of it.
    pub fn of(&self, channel: usize) -> Id {
        Id { time: self.time, tag: self.tags.get(channel).copied().unwrap_or(-1) }
    }
}

fn parse_tag(text: &[u8]) -> Result<i32, BadId> {
    let text = match text {
        [b'[', inner @ .., b']'] => inner,
        text => text,
    };
    match text {
        b"-" | b"-1" => Ok(-1),
        digits => i32::try_from(parse_number(digits)?).map_err(|_| BadId),
    }
}

fn parse_number(digits: &[u8]) -> Result<i64, BadId> {
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(BadId);
    }
    Ok(digits.iter().fold(0, |n, d| n * 10 + i64::from(d - b'0')))
}

/// Appends the tags of a subscriber that has just taken a message of the channel `active`; `tags` gives that of each.
pub(crate) fn write_tags(tags: impl ExactSizeIterator<Item = i32>, active: Option<usize>, out: &mut Vec<u8>) {
    let several = tags.len() > 1;
    for (number, tag) in tags.enumerate() {
        if number > 0 {
            out.push(b',');
        }
        let bracket = several && active == Some(number);
        if bracket {
            out.push(b'[');
        }
        if tag < 0 && several {
            out.push(b'-');
        } else {
            out.extend_from_slice(tag.max(0).to_string().as_bytes());
        }
        if bracket {
            out.push(b']');
        }
    }
}
