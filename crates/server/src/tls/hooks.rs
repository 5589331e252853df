//! Where modules take part in a TLS handshake with a client, the same for TCP and QUIC. Who stands there is written in `modules`.
//! From: `connection::handshake`, `tls::quic`. To: the hooks, then the library.
//!
//! ```text
//! ClientHello whole ─> CLIENT_HELLO ─> the server's settings ─> CERTIFICATE ─> the library shakes hands
//!                      which server,   (refused, or nothing     which certificate
//!                      other rules      in common: an alert)    is shown
//! ```

use super::server::Context;
use super::settings::Protocols;
use super::verify::Trust;
use crate::connection::Client;
use crate::connection::handshake::{self, Facts};
use crate::log::error::Level;
use crate::request::Request;
use crate::request::route::Site;
use crate::snapshot::{ServerId, ThreadSnapshot};
use rustls::{AlertDescription as Alert, ServerConfig};
use std::any::Any;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context as Task, Poll, Waker};
use wire::tls::ClientHello;

/// A handshake of which the ClientHello is there: what hooks look at, and what they may change.
pub struct Asked<'h> {
    /// The configuration: that of `http`, or of `stream`.
    pub snapshot: &'h Rc<ThreadSnapshot>,
    /// The servers of the address.
    pub site: &'h Site,
    /// Who asks.
    pub client: &'h Rc<Client>,
    /// The session that the handshake is a part of, in `stream`; in `http` there is no request yet.
    pub session: Option<&'h mut Request>,
    /// The ClientHello's bytes, with the head of the message.
    pub message: &'h [u8],
    /// What stands where in them.
    pub hello: &'h ClientHello,
    /// The name that is asked for, as servers are found by it.
    pub name: Option<String>,
    /// A server has that name.
    pub named: bool,
    /// The server whose settings hold.
    pub server: ServerId,
    /// Those settings, from the second list of hooks on.
    pub context: Option<Arc<Context>>,
    /// What the library goes by. A hook of the first list that sets it has settled everything.
    pub config: Option<Arc<ServerConfig>>,
    /// Whom the client's certificate must come from, where a hook has said so.
    pub trust: Option<Arc<Trust>>,
    /// The handshake is all that the client wants.
    pub is_all: bool,
    /// What programs in Lua keep.
    pub lua: Kept,
}

/// What programs in Lua keep for one handshake.
#[derive(Default)]
pub struct Kept {
    /// What would be the connection's first request.
    pub request: Option<Box<Request>>,
    /// What `set_protocols` said.
    pub protocols: Option<Protocols>,
    /// Where the library puts the session that a program is to keep; what it is, is the program's business.
    pub kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// A handshake is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the client is told.
    pub alert: Alert,
    /// How the log ranks it.
    pub level: Level,
    /// What the log says.
    pub text: String,
}

/// What a hook says.
pub type Verdict = Result<(), Refused>;
/// A hook that waits.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// A module's part in handshakes.
#[derive(Clone, Copy)]
pub enum Hook {
    /// Says its word at once.
    Now(fn(&mut Asked<'_>) -> Verdict),
    /// May wait; asked only when the first function says so. The handshake of a QUIC connection cannot wait, and is refused if it would
    /// have to.
    Later(fn(&Asked<'_>) -> bool, for<'a, 'h> fn(&'a mut Asked<'h>) -> Waiting<'a>),
}

impl<'h> Asked<'h> {
    /// A handshake as it begins: with the address's default server.
    pub fn new(
        snapshot: &'h Rc<ThreadSnapshot>,
        site: &'h Site,
        client: &'h Rc<Client>,
        message: &'h [u8],
        hello: &'h ClientHello,
    ) -> Asked<'h> {
        let name = hello.server_name.and_then(|name| handshake::host(name.of(message)));
        Asked {
            snapshot,
            site,
            client,
            session: None,
            message,
            hello,
            name,
            named: false,
            server: site.default,
            context: None,
            config: None,
            trust: None,
            is_all: false,
            lua: Kept::default(),
        }
    }

    /// What is noted of it with the client.
    pub fn facts(&self) -> Facts {
        let name = self.name.as_deref().filter(|_| self.named);
        handshake::facts(self.snapshot, self.message, self.hello, name, self.server, self.client.quic)
    }

    /// Work with variables: of the session, or of what would be the connection's first request.
    pub fn with_request<T>(&mut self, work: impl FnOnce(&mut Request) -> T) -> T {
        match &mut self.session {
            Some(session) => work(session),
            None => handshake::with_request(self.snapshot, self.client, self.server, work),
        }
    }
}

impl Refused {
    /// Something on this side went wrong.
    pub fn internal(level: Level, text: String) -> Refused {
        Refused { alert: Alert::InternalError, level, text }
    }
}

/// The server of the name that is asked for: the first hook.
pub fn server_by_name(asked: &mut Asked<'_>) -> Verdict {
    let found = asked.name.as_ref().map_or(Ok(None), |name| asked.site.find_early(name.as_bytes()));
    if let Some(server) = found.map_err(|failure| Refused::internal(Level::Alert, failure.to_string()))? {
        (asked.server, asked.named) = (server, true);
    }
    Ok(())
}

/// Who looks at a handshake that has come to its good end.
type Look = fn(&mut Asked<'_>);

/// The lists of hooks.
struct Hooks {
    client_hello: &'static [Hook],
    certificate: &'static [Hook],
    shaken: &'static [Look],
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Takes the hooks for which the ClientHello is enough, those that settle which certificate is shown, and those that look at the good end,
/// in their orders; the first lists stay.
pub fn install(client_hello: &'static [Hook], certificate: &'static [Hook], shaken: &'static [Look]) {
    let _ = HOOKS.set(Hooks { client_hello, certificate, shaken });
}

fn of_client_hello() -> &'static [Hook] {
    HOOKS.get().map_or(&[], |hooks| hooks.client_hello)
}

fn of_certificate() -> &'static [Hook] {
    HOOKS.get().map_or(&[], |hooks| hooks.certificate)
}

/// Asks the hooks for which the ClientHello is enough.
pub async fn client_hello(asked: &mut Asked<'_>) -> Verdict {
    run(of_client_hello(), asked).await
}

/// Asks the hooks that settle which certificate is shown. Gives what the library goes by.
pub async fn certificate(asked: &mut Asked<'_>) -> Result<Arc<ServerConfig>, Refused> {
    run(of_certificate(), asked).await?;
    settled(asked)
}

/// Tells the hooks that look at it that the handshake has come to its good end.
pub fn shaken(asked: &mut Asked<'_>) {
    HOOKS.get().map_or(&[][..], |hooks| hooks.shaken).iter().for_each(|hook| hook(asked));
}

/// The same as [`client_hello`], where nothing can wait.
pub fn client_hello_at_once(asked: &mut Asked<'_>) -> Verdict {
    run_at_once(of_client_hello(), asked)
}

/// The same as [`certificate`], where nothing can wait.
pub fn certificate_at_once(asked: &mut Asked<'_>) -> Result<Arc<ServerConfig>, Refused> {
    run_at_once(of_certificate(), asked)?;
    settled(asked)
}

fn settled(asked: &mut Asked<'_>) -> Result<Arc<ServerConfig>, Refused> {
    asked.config.take().ok_or_else(|| Refused::internal(Level::Alert, "no settings for the handshake".to_owned()))
}

async fn run(hooks: &[Hook], asked: &mut Asked<'_>) -> Verdict {
    for hook in hooks {
        match hook {
            Hook::Now(hook) => hook(asked)?,
            Hook::Later(wanted, hook) if wanted(asked) => hook(asked).await?,
            Hook::Later(..) => {}
        }
    }
    Ok(())
}

fn run_at_once(hooks: &[Hook], asked: &mut Asked<'_>) -> Verdict {
    for hook in hooks {
        match hook {
            Hook::Now(hook) => hook(asked)?,
            Hook::Later(wanted, hook) if wanted(asked) => {
                let mut work = hook(asked);
                match work.as_mut().poll(&mut Task::from_waker(Waker::noop())) {
                    Poll::Ready(verdict) => verdict?,
                    Poll::Pending => {
                        let text = "a hook waits, which the handshake of a QUIC connection cannot".to_owned();
                        return Err(Refused::internal(Level::Error, text));
                    }
                }
            }
            Hook::Later(..) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read::{Which, read};
    use crate::connection::Address;
    use std::future::poll_fn;
    use std::pin::pin;

    const CONF: &str =
        "events {} http { server { listen 127.0.0.1:8080; } server { listen 127.0.0.1:8080; server_name b.org; } }";

    /// Waits for one turn, then refuses.
    fn slow<'a>(_: &'a mut Asked<'_>) -> Waiting<'a> {
        Box::pin(async {
            let mut turns = 0;
            poll_fn(|_| {
                turns += 1;
                if turns > 1 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Err(Refused::internal(Level::Info, "it has waited".to_owned()))
        })
    }

    /// Hooks run in their order; one that is not wanted does not wait; QUIC refuses one that is.
    #[test]
    fn hooks_wait_where_they_can() {
        const HOOKS: &[Hook] = &[Hook::Now(server_by_name), Hook::Later(|asked| asked.named, slow)];
        let mut files = conf::Bundle::default();
        files.add_file("/c/nginx.conf", CONF);
        let which = Which { file: "/c/nginx.conf".into(), prefix: "/c".into(), globals: Vec::new(), error_log: None };
        let snapshot = read(&files, &which, 1).snapshot.expect("nothing is wrong with it");
        let (snapshot, hello) = (Rc::new(ThreadSnapshot::new(Arc::new(snapshot))), ClientHello::default());
        let client = Client::new(1, Address::Unix(Default::default()), 0, std::rc::Weak::new());
        let asked = |name: &str| {
            let asked = Asked::new(&snapshot, &snapshot.ports[0].any, &client, &[], &hello);
            Asked { name: Some(name.to_owned()), ..asked }
        };
        let mut unknown = asked("c.org");
        assert_eq!(run_at_once(HOOKS, &mut unknown), Ok(()));
        assert!(!unknown.named && unknown.server == snapshot.ports[0].any.default);
        let mut known = asked("b.org");
        let refused = run_at_once(HOOKS, &mut known).expect_err("it would have to wait");
        assert!(known.named && refused.text.contains("QUIC"));
        let mut work = pin!(run(HOOKS, &mut known));
        let mut task = Task::from_waker(Waker::noop());
        assert!(work.as_mut().poll(&mut task).is_pending());
        let Poll::Ready(Err(refused)) = work.poll(&mut task) else { panic!("it waits for one turn") };
        assert_eq!(refused.text, "it has waited");
    }
}
