//! A service for the tests of the master: its configuration is a file of lines, its worker answers each connection
//! with its process id, the configuration's number and the text of the line `answer`.
//! Run by `tests/processes.rs`; not an example of style for anything else.
#![allow(clippy::unwrap_used)]

use server::listen::socket::ListenSocket;
use server::log::error::{self, ErrorLog, Level};
use server::master::{FATAL, Options, Order, Plan, Service, Worker, WorkerStart, run, sys};
use server::process_settings::{DirectorySpec, ErrorLogSpec, ErrorLogTarget, ListenAddress, ListenSpec, User};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct File {
    path: PathBuf,
}

impl Service for File {
    fn load(&mut self) -> Result<Plan, Vec<String>> {
        let text = std::fs::read_to_string(&self.path).map_err(|e| vec![e.to_string()])?;
        let mut plan = Plan { payload: text.as_bytes().into(), ..Plan::default() };
        for line in text.lines() {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "answer" => {}
                "daemon" => plan.process.daemon = value == "on",
                "master_process" => plan.process.master_process = value == "on",
                "threads" => plan.process.threads = value.parse().expect("a number"),
                "user" => plan.process.user = user(value),
                "rlimit_core" => plan.process.rlimit_core = Some(value.parse().expect("bytes")),
                "working_directory" => plan.process.working_directory = Some(value.into()),
                "directory" => plan.directories.push(DirectorySpec { path: value.into(), mode: 0o700 }),
                "priority" => plan.process.priority = value.parse().expect("a number"),
                "pid" => plan.process.pid = value.into(),
                "listen" => plan.listens.push(ListenSpec::new(address(value))),
                "error_log" => plan
                    .error_logs
                    .push(ErrorLogSpec { target: ErrorLogTarget::File(value.into()), level: Level::Debug }),
                _ => return Err(vec![format!("unknown directive \"{name}\"")]),
            }
        }
        Ok(plan)
    }

    fn balancer(&self) -> fn(server::master::balancer::BalancerLine) -> i32 {
        |_| 0
    }

    fn worker(&self) -> Worker {
        Box::new(work)
    }
}

fn user(name: &str) -> Option<User> {
    let (uid, gid) = sys::user_by_name(name)?;
    Some(User { name: name.to_owned(), uid, gid })
}

fn address(text: &str) -> ListenAddress {
    match text.strip_prefix("unix:") {
        Some(path) => ListenAddress::Unix(path.into()),
        None => ListenAddress::Inet(text.parse().expect("an address with a port")),
    }
}

/// What all connections see.
struct Shared {
    answer: Mutex<String>,
    generation: AtomicU64,
    open: AtomicU64,
}

fn answer_of(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    text.lines().find_map(|line| line.strip_prefix("answer ")).unwrap_or("").to_owned()
}

fn work(start: WorkerStart) -> i32 {
    let answer = answer_of(&start.payload);
    if answer == "fatal" {
        return FATAL;
    }
    let shared = Arc::new(Shared {
        answer: Mutex::new(answer),
        generation: AtomicU64::new(start.generation),
        open: AtomicU64::new(0),
    });
    let mut link = start.link;
    let mut accepting: HashMap<u64, Arc<AtomicBool>> = HashMap::new();
    let mut listen = |sockets: Vec<ListenSocket>, shared: &Arc<Shared>| {
        accepting.retain(|id, on| {
            let stays = sockets.iter().any(|socket| socket.id == *id);
            on.store(stays, Ordering::SeqCst);
            stays
        });
        for socket in sockets {
            accepting.entry(socket.id).or_insert_with(|| accept_on(socket, Arc::clone(shared)));
        }
    };
    let all =
        |listeners: Vec<server::listen::socket::Listener>| listeners.into_iter().flat_map(|l| l.sockets).collect();
    listen(all(start.listeners), &shared);
    link.applied(start.generation);
    loop {
        match link.wait(None) {
            Some(Order::Reload(reload)) => {
                let answer = answer_of(&reload.payload);
                if answer == "refuse" {
                    link.failed(reload.generation, "told to refuse");
                    continue;
                }
                *shared.answer.lock().expect("nobody panics with it") = answer;
                let old = shared.generation.swap(reload.generation, Ordering::SeqCst);
                listen(all(reload.listeners), &shared);
                link.applied(reload.generation);
                link.reporter().done(old);
            }
            Some(Order::Reopen(reopen)) => reopen.apply(),
            Some(Order::Quit) => {
                listen(Vec::new(), &shared);
                while shared.open.load(Ordering::SeqCst) > 0 {
                    if let Some(Order::Terminate) = link.wait(Some(Duration::from_millis(5))) {
                        return 0;
                    }
                }
                return 0;
            }
            Some(Order::Terminate) => return 0,
            Some(Order::MasterGone | Order::Try(_) | Order::EndTrial | Order::Balanced(_) | Order::HandOver(_))
            | None => {}
        }
    }
}

fn accept_on(socket: ListenSocket, shared: Arc<Shared>) -> Arc<AtomicBool> {
    let on = Arc::new(AtomicBool::new(true));
    let listener = TcpListener::from(socket.fd.try_clone().expect("a descriptor is left"));
    let flag = Arc::clone(&on);
    std::thread::spawn(move || {
        while flag.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, _)) => {
                    shared.open.fetch_add(1, Ordering::SeqCst);
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || {
                        serve(stream, &shared);
                        shared.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    on
}

/// A line for each line, as long as the client stays.
fn serve(mut stream: std::net::TcpStream, shared: &Shared) {
    stream.set_nonblocking(false).expect("a socket");
    let mut buf = [0; 64];
    while stream.read(&mut buf).is_ok_and(|n| n > 0) {
        let answer = shared.answer.lock().expect("nobody panics with it").clone();
        let line = format!("{} {} {answer}\n", std::process::id(), shared.generation.load(Ordering::SeqCst));
        if stream.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let path = PathBuf::from(&arguments[1]);
    error::set_default_log(ErrorLog::initial(arguments.get(2).map(|log| log.as_ref())));
    error::mirror_to_stderr(true);
    run(&mut File { path }, Options { arguments, version: "nginx/1.31.5".to_owned() })
}
