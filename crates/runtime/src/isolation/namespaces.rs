//! Creates the namespaces of a container.
//!
//! Root creates them directly. Another user first enters a user namespace, in which only their own user and
//! group exist, and has all capabilities there; the program loses them again.
//!
//! The shim stays in the namespaces of the host, except for the user namespace. One of its threads enters the
//! others and starts the launcher from there, so that the shim can open sockets on both sides.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;

use rustix::process::{Pid, PidfdFlags, getegid, geteuid, pidfd_open};
use rustix::thread::{
    CapabilitySet, CapabilitySets, ThreadNameSpaceType, UnshareFlags, capabilities,
    configure_capability_in_ambient_set, move_into_thread_name_spaces, set_capabilities, unshare_unsafe,
};

/// Moves the calling thread into new namespaces.
#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "threads share their descriptors");
    // SAFETY: the call is unsafe only with `FILES`, which would give this thread a descriptor table of its
    // own, so that descriptors of other threads would refer to nothing, or to something else, in it.
    unsafe { unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Enters a user namespace, unless this process is root: that of the process `join`, or a new one, in which
/// this user and group are `inside`. The process must have one thread.
pub(crate) fn enter_user_namespace(join: Option<i32>, inside: Option<(u32, u32)>) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    if let Some(other) = join.and_then(Pid::from_raw) {
        let other = pidfd_open(other, PidfdFlags::empty())?;
        return Ok(move_into_thread_name_spaces(other.as_fd(), ThreadNameSpaceType::USER)?);
    }
    let (inside_user, inside_group) = inside.unwrap_or((user.as_raw(), group.as_raw()));
    unshare(UnshareFlags::NEWUSER)?;
    // A group can be mapped only by a process that cannot drop groups, which may deny access.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{inside_user} {} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("{inside_group} {} 1", group.as_raw()))?;
    Ok(())
}

/// Moves the calling thread into new network, IPC and UTS namespaces; its children get a new PID namespace.
/// Afterwards the thread cannot start threads.
pub(crate) fn enter_instance_namespaces() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS)?;
    enter_process_namespace()
}

/// Gives the children of the calling thread a new PID namespace, and the capabilities to prepare the rest.
pub(crate) fn enter_process_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID)?;
    if !geteuid().is_root() {
        keep_capabilities()?;
    }
    Ok(())
}

/// Moves the calling thread into a new mount namespace.
pub(crate) fn enter_mount_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)
}

/// Keeps the capabilities of the calling thread in the user namespace when it executes a program.
pub(crate) fn keep_capabilities() -> io::Result<()> {
    let CapabilitySets { permitted, .. } = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: permitted })?;
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if permitted.contains(capability) {
            configure_capability_in_ambient_set(capability, true)?;
        }
    }
    Ok(())
}
