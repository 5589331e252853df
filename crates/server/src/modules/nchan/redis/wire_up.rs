//! What is said to a Redis and what it says, as bytes: keys, scripts, entries of a channel. Nothing here waits.

use push::Id;
use wire::resp::Value;

/// Entries that are fetched at once.
pub(super) const PAGE: usize = 1000;

/// What is published where a channel is deleted: no message looks like it.
pub(super) const DELETED: &[u8] = b"deleted";

/// Adds a message to a channel's stream and tells who listens; gives its id, how many messages there are, and how many servers have heard it.
/// The second of the id is that of Redis' clock, so that servers whose clocks differ agree on what is later; it never goes back. Numbers of a
/// stream that is new begin with the microsecond: a Redis that has lost its streams goes on behind the ids that it gave.
/// Arguments: the message, how many are kept in Redis, seconds until the stream is forgotten (0: never), seconds until a message is (0: never),
/// how many are kept by servers, and the id of a copy, or nothing.
pub(super) const PUBLISH: &str = r"
local key, message, id = KEYS[1], ARGV[1], ARGV[6]
if id == '' then
  local time = redis.call('TIME')
  local now, number = time[1], '*'
  if redis.call('EXISTS', key) == 0 then number = time[2] end
  id = redis.pcall('XADD', key, 'MAXLEN', ARGV[2], now .. '-' .. number, 'm', message, 'l', ARGV[5])
  if type(id) == 'table' then
    local info, last = redis.call('XINFO', 'STREAM', key), now
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last = string.match(info[i + 1], '^%d+') end
    end
    id = redis.call('XADD', key, 'MAXLEN', ARGV[2], last .. '-*', 'm', message, 'l', ARGV[5])
  end
else
  local added = redis.pcall('XADD', key, 'MAXLEN', ARGV[2], id, 'm', message, 'l', ARGV[5])
  if type(added) == 'table' then return {id, 0, 0} end
end
if ARGV[3] == '0' then redis.call('PERSIST', key) else redis.call('EXPIRE', key, ARGV[3]) end
if ARGV[4] ~= '0' then
  redis.call('XTRIM', key, 'MINID', string.match(id, '^%d+') - ARGV[4])
end
local heard = 0
if ARGV[6] == '' then heard = redis.call('PUBLISH', key, id .. ' ' .. ARGV[5] .. '\n' .. message) end
return {id, redis.call('XLEN', key), heard}
";

/// Deletes a channel and tells who listens.
/// Its ids go on for a minute.
pub(super) const DELETE: &str = r"
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)
  redis.call('EXPIRE', KEYS[1], 60)
end
return redis.call('PUBLISH', KEYS[1], 'deleted')
";

/// How many messages a channel has, and servers that listen.
pub(super) const EXISTS: &str = r"
return redis.call('XLEN', KEYS[1]) + redis.call('PUBSUB', 'NUMSUB', KEYS[1])[2]
";

/// The group and the channel's own id, of a name.
pub(super) fn split(name: &[u8]) -> (&[u8], &[u8]) {
    let slash = name.iter().position(|b| *b == b'/').unwrap_or(name.len());
    (&name[..slash], name.get(slash + 1..).unwrap_or_default())
}

/// The key of a channel's stream, and the name under which its messages are told.
pub(super) fn key(namespace: &[u8], name: &[u8]) -> Vec<u8> {
    [namespace, b"ironweir:{", name, b"}"].concat()
}

/// The channel of a key.
pub(super) fn name_of<'k>(namespace: &[u8], key: &'k [u8]) -> Option<&'k [u8]> {
    key.strip_prefix(namespace)?.strip_prefix(b"ironweir:{")?.strip_suffix(b"}")
}

/// The key of what a group retains.
pub(super) fn retained_key(namespace: &[u8], group: &[u8]) -> Vec<u8> {
    [namespace, b"ironweir:retained:{", group, b"}"].concat()
}

/// What all keys of a group's channels look like.
pub(super) fn pattern(namespace: &[u8], group: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in [namespace, b"ironweir:{", group, b"/"].concat() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.extend_from_slice(b"*}");
    out
}

/// The id of an entry of a stream: `seconds-number`.
pub(super) fn id(text: &[u8]) -> Option<Id> {
    let (time, tag) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some(Id { time: time.parse().ok()?, tag: tag.parse().ok()? })
}

/// An id as Redis has it.
pub(super) fn id_text(id: Id) -> String {
    format!("{}-{}", id.time.max(0), id.tag.max(0))
}

/// What a message told to who listens says: its id, how many are kept, and its bytes.
pub(super) fn told(payload: &[u8]) -> Option<(Id, usize, &[u8])> {
    let end = payload.iter().take(64).position(|b| *b == b'\n')?;
    let (id_text, length) = std::str::from_utf8(&payload[..end]).ok()?.split_once(' ')?;
    Some((id(id_text.as_bytes())?, length.parse().ok()?, &payload[end + 1..]))
}

/// The same of an entry of a stream.
pub(super) fn entry<'v>(value: &'v Value<'_>) -> Option<(Id, usize, &'v [u8])> {
    let [key, fields] = value.list()? else { return None };
    let fields = fields.list()?;
    let field = |name: &[u8]| {
        let at = fields.iter().step_by(2).position(|field| field.text() == Some(name))?;
        fields.get(at * 2 + 1)?.text()
    };
    let length = std::str::from_utf8(field(b"l")?).ok()?.parse().ok()?;
    Some((id(key.text()?)?, length, field(b"m")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told() {
        assert_eq!(told(b"5-2 10\nabc\nd"), Some((Id { time: 5, tag: 2 }, 10, &b"abc\nd"[..])));
        for bad in [&b"deleted"[..], b"5 10\nx", b"5-x 10\nx", b"5-1\nx", b"5-99999999999 1\n"] {
            assert_eq!(told(bad), None, "{}", bad.escape_ascii());
        }
        let given = b"n*:";
        let key = key(given, b"g/a}");
        assert_eq!(name_of(given, &key), Some(&b"g/a}"[..]));
        assert_eq!(pattern(given, b"[g]"), br"n\*:ironweir:{\[g\]/*}");
        let fields = Value::List(vec![Value::Text(b"m"), Value::Text(b"x"), Value::Text(b"l"), Value::Text(b"3")]);
        let value = Value::List(vec![Value::Text(b"7-0"), fields]);
        assert_eq!(entry(&value), Some((Id { time: 7, tag: 0 }, 3, &b"x"[..])));
    }
}
