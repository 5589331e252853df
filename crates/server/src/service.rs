//! The thread for everything that may wait or allocate freely and is no connection: DNS now; certificates, exports later.
//! It runs tokio, so that libraries feel at home; worker threads hand it work and await the outcome in their own loops.

use std::future::Future;
use std::sync::{Mutex, OnceLock};
use tokio::sync::{mpsc, oneshot};

type Work = Box<dyn FnOnce() + Send>;

struct Service {
    works: Mutex<mpsc::UnboundedSender<Work>>,
    runtime: tokio::runtime::Handle,
}

static SERVICE: OnceLock<Service> = OnceLock::new();

fn service() -> &'static Service {
    SERVICE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs only memory and two descriptors");
        let handle = runtime.handle().clone();
        let (works, mut receiver) = mpsc::unbounded_channel::<Work>();
        let thread = std::thread::Builder::new().name("service".into()).spawn(move || {
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                while let Some(work) = receiver.recv().await {
                    work();
                }
            });
        });
        thread.expect("a process may have one thread more");
        Service { works: Mutex::new(works), runtime: handle }
    })
}

/// Runs a future on the service thread. `make` is called there, so what it makes need not be `Send`. `None`: it panicked.
pub async fn ask<T, F>(make: impl FnOnce() -> F + Send + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (tx, rx) = oneshot::channel();
    let work: Work = Box::new(move || {
        tokio::task::spawn_local(async move {
            let _ = tx.send(make().await);
        });
    });
    let sent = service().works.lock().expect("nothing panics while it is locked").send(work);
    debug_assert!(sent.is_ok(), "the service thread lives as long as the process");
    rx.await.ok()
}

/// Runs a future on the service thread for as long as it takes; nobody waits for it.
pub fn spawn<F: Future<Output = ()> + 'static>(make: impl FnOnce() -> F + Send + 'static) {
    let work: Work = Box::new(move || drop(tokio::task::spawn_local(make())));
    let sent = service().works.lock().expect("nothing panics while it is locked").send(work);
    debug_assert!(sent.is_ok(), "the service thread lives as long as the process");
}

/// Runs what takes long on a thread for such things. `None`: it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    service().runtime.spawn_blocking(work).await.ok()
}
