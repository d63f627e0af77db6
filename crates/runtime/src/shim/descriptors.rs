//! Closes the descriptors that a program would inherit, except standard input, output and error.
//!
//! The standard library opens everything with `CLOEXEC`. Polis itself may have inherited descriptors without
//! it, from a shell, a supervisor or an IDE, and a program could read and write what they refer to, whatever
//! its sandbox.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// The directory with an entry for each open descriptor of this process.
const DESCRIPTORS: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// Marks all descriptors above standard error to be closed by `exec`. The process must have one thread.
#[allow(unsafe_code)]
pub(super) fn close_on_exec() -> io::Result<()> {
    let entries = fs::read_dir(DESCRIPTORS)
        .map_err(|error| io::Error::new(error.kind(), format!("{DESCRIPTORS}: {error}")))?;
    for entry in entries {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number > 2) else { continue };
        // SAFETY: the number is that of a descriptor which is open now: the kernel lists open descriptors,
        // the process has one thread, and this loop closes none (that of the directory itself stays open
        // until `entries` is dropped). The flag neither closes nor changes the descriptor for its owner.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok(())
}
