//! A connection to a Redis for who asks and waits for the answers, one batch at a time: counts that servers share. On the service thread. Channels have a
//! connection of their own (`link`), where what is told comes between the answers.

use super::conf::Redis;
use super::open::{self, Halves, NO_REDIS, Opened};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use wire::resp::{self, Parsed, Value};

/// A connection, and the scripts that were left there.
pub(in crate::modules) struct Session {
    halves: Halves,
    /// What `EVALSHA` calls them, in their order.
    pub(in crate::modules) scripts: Vec<String>,
    out: Vec<u8>,
    input: Vec<u8>,
    asked: usize,
}

impl Session {
    /// Connects to the first of its servers that answers.
    ///
    /// # Errors
    /// Why none does.
    pub(in crate::modules) async fn open(redis: &Redis, scripts: &[&str]) -> Result<Session, String> {
        let mut why = String::new();
        for place in &redis.given.servers {
            why = match timeout(redis.given.connect_timeout, open::open(redis.target(), place, scripts)).await {
                Ok(Ok(Opened { is_cluster: true, .. })) => {
                    format!("{place}: it is a Redis Cluster; limits are shared by a single Redis only")
                }
                Ok(Ok(Opened { halves, scripts, .. })) => {
                    return Ok(Session { halves, scripts, out: Vec::new(), input: Vec::new(), asked: 0 });
                }
                Ok(Err(why)) => format!("{place}: {why}"),
                Err(_) => format!("{place}: no answer in nchan_redis_connect_timeout"),
            };
        }
        Err(why)
    }

    /// Adds a command to the batch.
    pub(in crate::modules) fn command(&mut self, words: &[&[u8]]) {
        resp::command(words, &mut self.out);
        self.asked += 1;
    }

    /// Sends the batch and gives its answers, by their numbers, as they come.
    ///
    /// # Errors
    /// Why the connection is of no use any more.
    pub(in crate::modules) async fn answers(
        &mut self,
        redis: &Redis,
        mut each: impl FnMut(usize, &Value<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let talk = async {
            self.halves.1.write_all(&self.out).await.map_err(open::shown)?;
            self.halves.1.flush().await.map_err(open::shown)?;
            self.out.clear();
            for number in 0..std::mem::take(&mut self.asked) {
                loop {
                    match resp::parse(&self.input) {
                        Ok(Parsed::Whole(Value::Error(text), _)) => {
                            return Err(format!("it says \"{}\"", String::from_utf8_lossy(text)));
                        }
                        Ok(Parsed::Whole(value, size)) => {
                            each(number, &value)?;
                            drop(value);
                            self.input.drain(..size);
                            break;
                        }
                        Ok(Parsed::Needs(_)) => {}
                        Err(resp::NoReply) => return Err(NO_REDIS.to_owned()),
                    }
                    if self.halves.0.read_buf(&mut self.input).await.map_err(open::shown)? == 0 {
                        return Err("it has closed the connection".to_owned());
                    }
                }
            }
            Ok(())
        };
        let done = timeout(redis.given.command_timeout, talk).await;
        done.unwrap_or_else(|_| Err("no answer in nchan_redis_command_timeout".to_owned()))
    }
}
