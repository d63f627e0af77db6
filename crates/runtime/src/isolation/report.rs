//! What this machine can give to isolate instances.

use std::path::Path;

use super::cgroup::CgroupRoot;

/// What Landlock, the sandbox of unprivileged processes in Linux, restricts on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Landlock {
    /// Nothing: there is no Landlock.
    Absent,
    /// Files, but not signals and abstract Unix sockets.
    Files,
    /// Files, signals and abstract Unix sockets.
    Full,
}

impl Landlock {
    #[cfg(target_os = "linux")]
    fn of_host() -> Self {
        use landlock::{
            ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope,
        };
        let strict = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        if strict().handle_access(AccessFs::from_all(ABI::V1)).is_err() {
            return Landlock::Absent;
        }
        match strict().scope(Scope::from_all(ABI::V6)) {
            Ok(_) => Landlock::Full,
            Err(_) => Landlock::Files,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn of_host() -> Self {
        Landlock::Absent
    }
}

/// The layers of isolation on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// File access by Landlock.
    pub landlock: Landlock,
    /// Own processes, mounts, network, IPC and host name, or why not.
    pub namespaces: Result<(), String>,
    /// Whether dangerous system calls are filtered.
    pub system_calls: bool,
    /// Controllers of control groups that are missing: `memory`, `pids`, `cpu`.
    pub missing_limits: Vec<&'static str>,
    pub(crate) cgroups: CgroupRoot,
}

impl Isolation {
    /// The isolation on this host. Starts `binary` as a probe, which calls [`crate::run_internal_command`].
    pub fn of_host(binary: &Path) -> Self {
        let cgroups = CgroupRoot::detect();
        Isolation {
            landlock: Landlock::of_host(),
            namespaces: super::probe::namespaces(binary),
            system_calls: super::probe::filters_system_calls(),
            missing_limits: cgroups.missing(),
            cgroups,
        }
    }

    /// A machine that gives no layer.
    pub fn absent() -> Self {
        let cgroups = CgroupRoot::default();
        Isolation {
            landlock: Landlock::Absent,
            namespaces: Err("not tried".to_owned()),
            system_calls: false,
            missing_limits: cgroups.missing(),
            cgroups,
        }
    }

    /// Whether instances can access each other's files and those of Polis: there are neither namespaces nor
    /// Landlock.
    pub fn is_absent(&self) -> bool {
        self.namespaces.is_err() && self.landlock == Landlock::Absent
    }

    /// What programs can do that complete isolation would deny, and what to do about it; `None` if nothing.
    pub fn gap(&self) -> Option<String> {
        let mut gaps = Vec::new();
        match (&self.namespaces, self.landlock) {
            (Err(why), Landlock::Absent) => gaps.push(format!(
                "instances are not isolated: this machine has neither namespaces ({why}) nor Landlock, so they can read and write all files of the user who runs Polis; use Linux 5.13 or later with Landlock, or allow user namespaces"
            )),
            (Err(why), Landlock::Files) => gaps.push(format!(
                "instances share the processes and the network of the host, and can signal processes of the user who runs Polis: namespaces are not available ({why}); allow user namespaces, or run Polis as root"
            )),
            (Err(why), Landlock::Full) => gaps.push(format!(
                "instances share the processes and the network of the host: namespaces are not available ({why}); allow user namespaces, or run Polis as root"
            )),
            (Ok(()), _) => {}
        }
        if !self.system_calls {
            gaps.push(
                "system calls are not filtered: this kernel has no seccomp, or not for this CPU".to_owned(),
            );
        }
        if !self.missing_limits.is_empty() {
            gaps.push(format!(
                "there is no control group for {}, so its limits hold for each process only or not at all; run Polis as root, or in a systemd unit with Delegate=yes",
                self.missing_limits.join(", ")
            ));
        }
        (!gaps.is_empty()).then(|| gaps.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_isolation(landlock: Landlock, namespaces: Result<(), &str>) -> Isolation {
        Isolation {
            landlock,
            namespaces: namespaces.map_err(str::to_owned),
            system_calls: true,
            missing_limits: Vec::new(),
            cgroups: CgroupRoot::default(),
        }
    }

    #[test]
    fn a_gap_is_named_with_what_to_do() {
        let gap = |landlock, namespaces| mk_isolation(landlock, namespaces).gap();
        let denied = Err("operation not permitted");
        assert!(gap(Landlock::Absent, denied).unwrap().contains("are not isolated"));
        assert!(gap(Landlock::Files, denied).unwrap().contains("can signal"));
        assert!(gap(Landlock::Full, denied).unwrap().contains("allow user namespaces"));
        assert_eq!(gap(Landlock::Full, Ok(())), None);
        assert_eq!(gap(Landlock::Absent, Ok(())), None, "namespaces hide all files");
    }

    #[test]
    fn missing_limits_are_named() {
        let mut isolation = mk_isolation(Landlock::Full, Ok(()));
        isolation.missing_limits = vec!["memory", "cpu"];
        let gap = isolation.gap().unwrap();
        assert!(gap.contains("no control group for memory, cpu") && gap.contains("Delegate=yes"), "{gap}");
        isolation.system_calls = false;
        assert!(isolation.gap().unwrap().contains("not filtered"));
    }
}
