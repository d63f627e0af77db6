//! Gives up the identity and the capabilities of Polis.

use std::io;

use rustix::process::{Gid, Signal, Uid, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

/// First user id of instances. The 2^24 ids from here are above those of users and of the containers of
/// systemd, which end at 0x6fff_ffff.
const FIRST_UID: u32 = 0x7000_0000;

/// The user id of the instance with this address: two instances of one host have different addresses.
pub(crate) fn uid(address: std::net::Ipv4Addr) -> u32 {
    FIRST_UID + (u32::from(address) & 0x00ff_ffff)
}

/// User, group and further groups of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) user: u32,
    pub(crate) group: u32,
    /// Further groups. Ignored where the kernel forbids to set them: in a user namespace of an ordinary user.
    pub(crate) groups: Vec<u32>,
    /// Capabilities that the program keeps, as a bit set.
    pub(crate) capabilities: u64,
}

impl Identity {
    /// Capabilities that images expect of root, without those that reach the kernel or the network: for files
    /// (`CHOWN`, `DAC_OVERRIDE`, `FOWNER`, `FSETID`), users (`SETUID`, `SETGID`), `KILL`, `SETPCAP`,
    /// `NET_BIND_SERVICE` and `SYS_CHROOT`.
    pub(crate) const ROOT_CAPABILITIES: u64 = 0x405fb;
}

/// Changes the identity of this process, which has one thread, and forbids to gain privileges.
pub(crate) fn assume(identity: Option<&Identity>) -> io::Result<()> {
    set_no_new_privs(true)?;
    let kept = CapabilitySet::from_bits_retain(identity.map_or(0, |identity| identity.capabilities));
    // Needs a capability, which only root has, and fails after the last capability that the kernel knows. The
    // bounding set is a second layer: with `no_new_privs`, `exec` adds nothing to an empty permitted set.
    let all = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    _ = all
        .filter(|capability| !kept.contains(*capability))
        .map(remove_capability_from_bounding_set)
        .take_while(Result::is_ok)
        .count();
    // Empty without permitted and inheritable capabilities; the kernel removes them from this set as well.
    _ = clear_ambient_capability_set();
    if let Some(Identity { user, group, groups, .. }) = identity {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (group, user) = (Gid::from_raw(*group), Uid::from_raw(*user));
        match set_thread_groups(&groups) {
            Err(rustix::io::Errno::PERM) => {}
            done => done?,
        }
        set_keep_capabilities(!kept.is_empty())?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    // A change of the identity clears the signal.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_with_different_addresses_have_different_users() {
        let first = uid([127, 1, 16, 5].into());
        assert_eq!(first, 0x7001_1005);
        assert_ne!(first, uid([127, 2, 16, 5].into()));
        assert!(uid([127, 255, 255, 255].into()) < 0x8000_0000);
    }
}
