//! Datagrams of a listening socket: each goes to its client's session, or begins one. To: `stream::udp`.

use super::{BATCH, Listener, pktinfo};
use crate::connection::{self, Address};
use crate::process_settings::ListenAddress;
use runtime::TaskId;
use socket2::SockAddr;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::Poll;

/// The longest datagram there is.
const LONGEST: usize = 65535;
/// Datagrams that wait for their session at most; more are lost, as they would be in a full socket buffer.
const WAITING: usize = 64;

/// A client, and the address that it sends to.
type Key = (Address, Option<IpAddr>);

/// The sessions of one socket.
#[derive(Default)]
struct Table {
    flows: RefCell<HashMap<Key, Rc<Flow>>>,
}

/// One client's datagrams.
pub struct Flow {
    key: Key,
    to: SockAddr,
    listener: Rc<Listener>,
    table: Rc<Table>,
    waiting: RefCell<VecDeque<Box<[u8]>>>,
    task: Cell<TaskId>,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Takes what comes until the listener is closed.
pub async fn receive_loop(listener: Rc<Listener>) {
    listener.task.set(Some(runtime::current()));
    let table = Rc::new(Table::default());
    loop {
        poll_fn(|_| if listener.closed.get() { Poll::Ready(()) } else { listener.registration.poll_readable() }).await;
        if listener.closed.get() {
            receive_some(&listener, &table, usize::MAX);
            listener.registration.remove(&listener.fd);
            return;
        }
        if receive_some(&listener, &table, BATCH) {
            listener.registration.clear_readable();
        } else {
            runtime::yield_now().await;
        }
    }
}

/// True when nothing more is there.
fn receive_some(listener: &Rc<Listener>, table: &Rc<Table>, at_most: usize) -> bool {
    let mut buffer = BUFFER.take();
    buffer.resize(LONGEST, 0);
    let mut done = false;
    for _ in 0..at_most {
        match pktinfo::receive(listener.fd.as_fd(), &mut buffer) {
            Ok(got) => take(listener, table, &buffer[..got.len], got.from, got.to),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                if e.kind() != io::ErrorKind::WouldBlock {
                    let e = crate::log::os_error(&e);
                    crate::log::process_line(crate::log::error::Level::Alert, format_args!("recvmsg() failed ({e})"));
                }
                done = true;
                break;
            }
        }
    }
    BUFFER.set(buffer);
    done
}

fn take(listener: &Rc<Listener>, table: &Rc<Table>, bytes: &[u8], from: SockAddr, to: Option<IpAddr>) {
    let remote = match (from.as_socket(), from.as_pathname()) {
        (Some(a), _) => Address::Inet(a),
        (None, path) => Address::Unix(path.map(Into::into).unwrap_or_default()),
    };
    let key = (remote, to);
    let known = table.flows.borrow().get(&key).cloned();
    if let Some(flow) = known {
        let mut waiting = flow.waiting.borrow_mut();
        if waiting.len() < WAITING {
            waiting.push_back(bytes.into());
        }
        runtime::wake(flow.task.get());
        return;
    }
    let flow = Rc::new(Flow {
        key: key.clone(),
        to: from,
        listener: listener.clone(),
        table: table.clone(),
        waiting: RefCell::new(VecDeque::from([bytes.into()])),
        task: Cell::new(TaskId::NOBODY),
    });
    let local = match (to, &listener.address) {
        (Some(ip), ListenAddress::Inet(a)) => Address::Inet((ip, a.port()).into()),
        (_, ListenAddress::Inet(a)) => Address::Inet(*a),
        (_, ListenAddress::Unix(path)) => Address::Unix(path.clone()),
    };
    listener.counts.accepted();
    if connection::begin::start_flow(flow.clone(), key.0.clone(), local, listener.number) {
        table.flows.borrow_mut().insert(key, flow);
    }
}

impl Flow {
    /// The running task is the session: it is woken by the client's next datagrams.
    pub fn adopt(&self) {
        self.task.set(runtime::current());
    }

    /// The next datagram.
    pub fn next(&self) -> Option<Box<[u8]>> {
        self.waiting.borrow_mut().pop_front()
    }

    /// Sends a datagram to the client, from the address that it had asked.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        pktinfo::send(self.listener.fd.as_fd(), bytes, &self.to, self.key.1)
    }

    /// The client's next datagram begins a new session; those that wait already are the next ones.
    pub fn release(&self) {
        let known = self.table.flows.borrow().get(&self.key).is_some_and(|f| std::ptr::eq(&**f, self));
        if known {
            self.table.flows.borrow_mut().remove(&self.key);
        }
        let waiting = self.waiting.take();
        if !crate::worker::draining() {
            for bytes in waiting {
                take(&self.listener, &self.table, &bytes, self.to.clone(), self.key.1);
            }
        }
    }
}
