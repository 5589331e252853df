//! A kept connection's requests for `return`, for small hot files and for small hot answers of a cache take nothing from the heap.
#![allow(unsafe_code, reason = "a counting allocator is unsafe by its trait")]

use server::config::read::{Which, read};
use server::listen::socket::Listeners;
use server::worker::process::Workers;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The test's own thread plays the client: what it allocates does not count.
    static CLIENT: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if !CLIENT.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the pointer came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: u64 = 500;

/// Allocations of the worker thread for `REQUESTS` requests on a connection that has seen some.
fn allocations(connection: &mut TcpStream, uri: &str) -> u64 {
    let request = format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n\r\n");
    let mut answer = [0u8; 4096];
    let mut ask = || {
        connection.write_all(request.as_bytes()).expect("the server reads");
        let n = connection.read(&mut answer).expect("the server answers");
        assert!(answer[..n].starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer[..n]));
    };
    (0..50).for_each(|_| ask());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..REQUESTS).for_each(|_| ask());
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn kept_connections_allocate_nothing() {
    CLIENT.set(true);
    let folder = std::env::temp_dir().join(format!("ironweir-allocations-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("logs")).expect("a temporary directory");
    std::fs::write(folder.join("small.txt"), "hot").expect("a file");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let text = format!(
        "events {{}} http {{ access_log off; keepalive_requests 100000; root {}; \
         proxy_cache_path {}/cache keys_zone=one:1m use_temp_path=off; \
         server {{ listen 127.0.0.1:{port}; location /return {{ return 200 \"ok\"; }} \
             location /cached {{ proxy_pass http://127.0.0.1:{port}/return; proxy_cache one; proxy_cache_valid 1h; }} }} }}",
        folder.display(),
        folder.display()
    );
    let mut bundle = conf::Bundle::default();
    let file = folder.join("nginx.conf");
    bundle.add_file(file.clone(), text);
    let which = Which { file, prefix: folder.clone(), globals: Vec::new(), error_log: None };
    let mut snapshot = read(&bundle, &which, 1).snapshot.expect("a good configuration");
    snapshot.open_logs(&Default::default()).expect("logs open");
    let snapshot = Arc::new(snapshot);
    let listeners = Listeners::default().open(&snapshot.listens, 1).expect("the port is free");
    let workers = Workers::start(&snapshot, &listeners.list, server::upgrade::move_over).expect("a thread");
    // A file is trusted once its last change is a while ago.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    let of_return = allocations(&mut connection, "/return");
    let of_file = allocations(&mut connection, "/small.txt");
    // The first fills the cache; the file is trusted a while later.
    allocations(&mut connection, "/cached");
    std::thread::sleep(std::time::Duration::from_millis(100));
    let of_hit = allocations(&mut connection, "/cached");
    drop(connection);
    workers.stop();
    let _ = std::fs::remove_dir_all(&folder);
    // The thread may write a line, fire a timer or the like meanwhile; a request itself takes nothing.
    assert!(of_return < 5, "{of_return} allocations in {REQUESTS} requests for `return`");
    assert!(of_hit < 5, "{of_hit} allocations in {REQUESTS} requests for a cached answer");
    assert!(of_file < 5, "{of_file} allocations in {REQUESTS} requests for a small file");
}
