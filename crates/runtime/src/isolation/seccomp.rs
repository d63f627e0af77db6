//! The system calls that programs may not make.
//!
//! A program has no capabilities, or few, so most of these calls would fail anyway; the filter keeps the code
//! behind them, where kernels have most of their errors, out of reach: creation of namespaces and mounts,
//! BPF, io_uring, keys, tracing, kernel modules, clocks. They fail with EPERM. `clone3` fails with ENOSYS,
//! because its flags lie in memory, which a filter cannot read; C libraries then use `clone`. So do calls of
//! other ABIs of the same CPU and calls that are newer than this list.

use std::io;

use seccompiler::{BpfProgram, apply_filter, sock_filter};

/// Denied calls.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
];

/// Flags of `clone` that create namespaces.
const NAMESPACE_FLAGS: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The last system call of Linux 6.12. Architectures other than x86-64 have the same numbers from 424 on.
const LAST_CALL: u32 = 466;

/// `AUDIT_ARCH_*` of this CPU, as the kernel reports it.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// Whether programs can be filtered on this machine.
pub(crate) fn is_supported() -> bool {
    ARCHITECTURE.is_some() && std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

/// Applies the filter to this process and its children. It cannot be removed.
pub(crate) fn apply() -> io::Result<()> {
    let Some(architecture) = ARCHITECTURE.filter(|_| is_supported()) else { return Ok(()) };
    apply_filter(&filter(architecture))
        .map_err(|error| io::Error::other(format!("failed to filter system calls: {error}")))
}

/// The filter, as a program for the kernel. It reads `struct seccomp_data`: number, architecture, instruction
/// pointer, arguments.
fn filter(architecture: u32) -> BpfProgram {
    const NUMBER: u32 = 0;
    const CPU: u32 = 4;
    const FIRST_ARGUMENT: u32 = 16;
    let mut program = vec![load(CPU), skip_if(EQUAL, architecture, 1), deny(libc::ENOSYS), load(NUMBER)];
    // Also the calls of the x32 ABI, whose numbers have bit 30.
    program.extend([skip_unless(GREATER, LAST_CALL, 1), deny(libc::ENOSYS)]);
    program.extend([skip_unless(EQUAL, libc::SYS_clone3 as u32, 1), deny(libc::ENOSYS)]);
    for call in DENIED {
        program.extend([skip_unless(EQUAL, *call as u32, 1), deny(libc::EPERM)]);
    }
    program.extend([skip_unless(EQUAL, libc::SYS_clone as u32, 3), load(FIRST_ARGUMENT)]);
    program.extend([skip_unless(ANY_BIT, NAMESPACE_FLAGS as u32, 1), deny(libc::EPERM)]);
    program.push(allow());
    program
}

const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const ANY_BIT: u16 = 0x45;

/// Loads a word of the data.
fn load(offset: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: offset }
}

/// Skips instructions if the loaded word compares to the value.
fn skip_if(comparison: u16, value: u32, count: u8) -> sock_filter {
    sock_filter { code: comparison, jt: count, jf: 0, k: value }
}

/// Skips instructions unless the loaded word compares to the value.
fn skip_unless(comparison: u16, value: u32, count: u8) -> sock_filter {
    sock_filter { code: comparison, jt: 0, jf: count, k: value }
}

fn deny(error: i32) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | error as u32 }
}

fn allow() -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does; returns the error of the call, 0 if it is allowed.
    fn decision(architecture: u32, number: u32, argument: u32) -> u32 {
        let program = filter(0xc000_003e);
        let (mut at, mut word) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let holds = match code {
                0x20 => {
                    word = [(0, number), (4, architecture), (16, argument)]
                        .iter()
                        .find(|(o, _)| *o == k)
                        .unwrap()
                        .1;
                    continue;
                }
                0x06 if k == 0x7fff_0000 => return 0,
                0x06 => return k & 0xffff,
                EQUAL => word == k,
                GREATER => word > k,
                ANY_BIT => word & k != 0,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    #[test]
    fn dangerous_calls_are_denied_and_others_allowed() {
        let call =
            |number: libc::c_long, argument: i32| decision(0xc000_003e, number as u32, argument as u32);
        let (denied, unknown) = (libc::EPERM as u32, libc::ENOSYS as u32);
        assert_eq!(call(libc::SYS_read, 0), 0);
        assert_eq!(call(libc::SYS_execve, 0), 0);
        assert_eq!(call(libc::SYS_clone, libc::CLONE_VM | libc::SIGCHLD), 0);
        assert_eq!(call(libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD), denied);
        assert_eq!(call(libc::SYS_clone3, 0), unknown);
        for number in DENIED {
            assert_eq!(call(*number, 0), denied, "{number}");
        }
    }

    #[test]
    fn calls_of_other_architectures_and_unknown_calls_do_not_exist() {
        let unknown = libc::ENOSYS as u32;
        assert_eq!(decision(0x4000_0003, libc::SYS_read as u32, 0), unknown, "i386");
        assert_eq!(decision(0xc000_003e, 0x4000_0000 | libc::SYS_read as u32, 0), unknown, "x32");
        assert_eq!(decision(0xc000_003e, LAST_CALL + 1, 0), unknown);
        assert_eq!(decision(0xc000_003e, LAST_CALL, 0), 0);
    }
}
