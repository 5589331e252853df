//! The binary's allocator.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[allow(unsafe_code)]
mod mimalloc_c {
    unsafe extern "C" {
        // In mimalloc.h: `void mi_collect(bool force)`. It works on the thread's own heap and asks nothing of its caller.
        pub(super) safe fn mi_collect(force: bool);
    }
}

/// Gives what the calling thread has freed back to the system.
pub(crate) fn release() {
    mimalloc_c::mi_collect(true);
}
