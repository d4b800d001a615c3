//! Memory shared with eBPF programs or with another thread or daemon: an mmapped array map, or a file on tmpfs.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// Memory that somebody else writes too, seen as a slice of values.
#[derive(Debug)]
pub struct Mapping<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the mapping is plain shared memory, valid from any thread until it is dropped.
unsafe impl<T: Send> Send for Mapping<T> {}

impl<T> Mapping<T> {
    /// Maps the first `len` values of a file, or of an array map that was made mmapable; `T` must be the type of its values
    /// and its size a multiple of 8.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn new(map: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * size_of::<T>(),
                protection,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<T>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the first value, for atomic and volatile access to memory that others write.
    pub fn as_ptr(&self) -> *mut T {
        self.start.as_ptr()
    }

    /// `len` values from `from`.
    ///
    /// # Safety
    /// Nobody may be writing them.
    pub unsafe fn part(&self, from: usize, len: usize) -> &[T] {
        assert!(from + len <= self.len);
        // SAFETY: inside the mapping; quiescent by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(from), len) }
    }

    /// `len` values from `from`, writable.
    ///
    /// # Safety
    /// Nobody may be reading or writing them.
    pub unsafe fn part_mut(&mut self, from: usize, len: usize) -> &mut [T] {
        assert!(from + len <= self.len);
        // SAFETY: inside the mapping; quiescent by the caller's promise, exclusive by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(from), len) }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the region that `new` mapped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * size_of::<T>()) };
    }
}
