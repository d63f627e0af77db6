//! Isolation of the processes of an instance: namespaces, identity, control group, system calls, disk.
//!
//! ```text
//!   Polis ─► shim ──────────────────► launcher, pid 1 ─────────► program, pid 2
//!            host's namespaces;       own namespaces and root,   the same rights
//!            cgroup, ports, disk      own uid, no capabilities
//! ```
//!
//! - [`report`], [`probe`]: what this machine can give;
//! - [`namespaces`]: creates the namespaces of a container;
//! - [`root`], `image_root`: the root file system of a container;
//! - [`identity`]: gives up user id and capabilities;
//! - [`seccomp`]: the system calls that a program may not make;
//! - [`cgroup`]: limits of memory, CPU and processes;
//! - [`disk`]: the limit of disk space;
//! - [`network`], [`netlink`], [`redirect`]: the network namespace and its connections to the outside;
//! - [`egress`]: which destinations are open;
//! - [`listener`]: which socket listens at an address.
//!
//! Everything here works as root and as an ordinary user with user namespaces, and leaves nothing behind when
//! the shim is killed, except an empty control group, which the next inspection removes.

pub(crate) mod cgroup;
#[cfg(target_os = "linux")]
pub(crate) mod disk;
#[cfg(target_os = "linux")]
mod egress;
#[cfg(target_os = "linux")]
pub(crate) mod identity;
#[cfg(target_os = "linux")]
mod image_root;
#[cfg(target_os = "linux")]
pub(crate) mod listener;
#[cfg(target_os = "linux")]
pub(crate) mod namespaces;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
pub(crate) mod network;
pub(crate) mod probe;
#[cfg(target_os = "linux")]
mod redirect;
pub(crate) mod report;
#[cfg(target_os = "linux")]
pub(crate) mod root;
#[cfg(target_os = "linux")]
pub(crate) mod seccomp;
