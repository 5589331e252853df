//! Ironweir's binary: command lines only.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use server::config::read::{Which, read};
use std::sync::Arc;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let get = |f: &str| args.iter().position(|a| a == f).map(|i| args[i + 1].clone());
    let prefix = std::path::PathBuf::from(get("-p").unwrap_or("/usr/local/nginx".into()));
    let file = prefix.join(get("-c").unwrap_or("conf/nginx.conf".into()));
    let which = Which { file, prefix, globals: get("-g").unwrap_or_default().into_bytes() };
    let reading = read(&conf::Disk, &which, 1);
    for p in &reading.problems {
        eprintln!("nginx: [{}] {}", p.level.name(), p.render_line(&reading.sources));
    }
    let Some(mut snapshot) = reading.snapshot else { std::process::exit(1) };
    let files = server::log::file::OpenFiles::default();
    let log = snapshot.open_logs(&files).expect("logs");
    server::log::error::set_default_log(log);
    let snapshot = Arc::new(snapshot);
    let mut sockets = Vec::new();
    for (i, l) in snapshot.listens.iter().enumerate() {
        let server::settings::ListenAddress::Inet(a) = &l.address else { panic!() };
        let fds = (0..snapshot.process.threads)
            .map(|_| {
                let s = socket2::Socket::new(socket2::Domain::for_address(*a), socket2::Type::STREAM, None).unwrap();
                s.set_reuse_address(true).unwrap();
                s.set_reuse_port(true).unwrap();
                s.bind(&(*a).into()).unwrap();
                s.listen(l.backlog).unwrap();
                s.set_nonblocking(true).unwrap();
                s.set_tcp_nodelay(true).unwrap();
                s.into()
            })
            .collect();
        sockets.push(server::worker::process::Sockets { listen: i, fds });
    }
    let w = server::worker::process::Workers::start(&snapshot, sockets).unwrap();
    std::fs::write(&snapshot.process.pid, format!("{}\n", std::process::id())).unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1000));
        let _ = &w;
    }
}
