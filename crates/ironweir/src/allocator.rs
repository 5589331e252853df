//! The binary's allocator: mimalloc, asked for memory in the plain way wherever that is aligned as it has to be. The crate's own asks for an
//! alignment each time, which mimalloc looks after by itself: it takes the long way, and more memory, for all sizes that are no power of two
//! whose next block does not happen to lie right, and for all above 1 kB. One of the files with `unsafe`.
#![allow(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

mod mimalloc_c {
    use std::ffi::c_void;

    unsafe extern "C" {
        // In mimalloc.h: `void mi_collect(bool force)`. It works on the thread's own heap and asks nothing of its caller.
        pub(super) safe fn mi_collect(force: bool);
        pub(super) fn mi_malloc(size: usize) -> *mut c_void;
        pub(super) fn mi_zalloc(size: usize) -> *mut c_void;
        pub(super) fn mi_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    }
}

/// How mimalloc's blocks are aligned that are larger than a word (`MI_MAX_ALIGN_SIZE`); all are by a word.
const BLOCK: usize = 16;

/// See the module's head.
struct Allocator;

/// Whether a block of so many bytes is aligned like this, whoever asks.
#[inline]
fn is_aligned(size: usize, align: usize) -> bool {
    align <= align_of::<usize>() || align <= BLOCK && size > size_of::<usize>()
}

// SAFETY: mimalloc's blocks are as large as was asked for, and aligned as `is_aligned` says; what it says nothing of, the crate's own
// implementation is asked for. All of them are freed in the same way.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the functions ask for.
        unsafe {
            match is_aligned(layout.size(), layout.align()) {
                true => mimalloc_c::mi_malloc(layout.size()).cast(),
                false => mimalloc::MiMalloc.alloc(layout),
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match is_aligned(layout.size(), layout.align()) {
                true => mimalloc_c::mi_zalloc(layout.size()).cast(),
                false => mimalloc::MiMalloc.alloc_zeroed(layout),
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { mimalloc::MiMalloc.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match is_aligned(size, layout.align()) {
                true => mimalloc_c::mi_realloc(memory.cast::<c_void>(), size).cast(),
                false => mimalloc::MiMalloc.realloc(memory, layout, size),
            }
        }
    }
}

/// Gives what the calling thread has freed back to the system.
pub(crate) fn release() {
    mimalloc_c::mi_collect(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever size, alignment and way: the memory is aligned, and keeps what was there.
    #[test]
    fn memory_is_aligned() {
        for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
            for size in (1..300).chain([1000, 1024, 1025, 3000, 9000, 70_000, 3 << 20]) {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                // SAFETY: the layouts are those that the memory has.
                unsafe {
                    let plain = ALLOCATOR.alloc(layout);
                    let zeroed = ALLOCATOR.alloc_zeroed(layout);
                    assert!(
                        plain.addr().is_multiple_of(align) && zeroed.addr().is_multiple_of(align),
                        "{size} by {align}"
                    );
                    assert_eq!((*zeroed, *zeroed.add(size - 1)), (0, 0));
                    plain.write(7);
                    let larger = ALLOCATOR.realloc(plain, layout, size * 2 + 1);
                    assert!(larger.addr().is_multiple_of(align) && *larger == 7, "{size} by {align}, grown");
                    let layout_of_larger = Layout::from_size_align(size * 2 + 1, align).expect("a layout");
                    let smaller = ALLOCATOR.realloc(larger, layout_of_larger, 1);
                    assert!(smaller.addr().is_multiple_of(align) && *smaller == 7, "{size} by {align}, shrunk");
                    ALLOCATOR.dealloc(smaller, Layout::from_size_align(1, align).expect("a layout"));
                    ALLOCATOR.dealloc(zeroed, layout);
                }
            }
        }
    }
}
