//! How far this kernel can isolate the programs of instances.

/// What Landlock, the sandbox of unprivileged processes in Linux, restricts on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isolation {
    /// Nothing: there is no Landlock. Programs can access all files of the user who runs Polis.
    Absent,
    /// Files, but not signals and abstract Unix sockets.
    Files,
    /// Files, signals and abstract Unix sockets.
    Full,
}

impl Isolation {
    /// The isolation on this host.
    #[cfg(target_os = "linux")]
    pub fn of_host() -> Self {
        use landlock::{
            ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope,
        };
        let strict = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        if strict().handle_access(AccessFs::from_all(ABI::V1)).is_err() {
            return Isolation::Absent;
        }
        match strict().scope(Scope::from_all(ABI::V6)) {
            Ok(_) => Isolation::Full,
            Err(_) => Isolation::Files,
        }
    }

    /// The isolation on this host: only Linux has Landlock.
    #[cfg(not(target_os = "linux"))]
    pub fn of_host() -> Self {
        Isolation::Absent
    }

    /// What programs can do that a complete sandbox would deny; `None` if nothing.
    pub fn gap(self) -> Option<&'static str> {
        match self {
            Isolation::Absent => Some(
                "instances are not isolated: this kernel has no Landlock, so they can read and write all files of the user who runs Polis; use Linux 5.13 or later with Landlock enabled",
            ),
            Isolation::Files => Some(
                "instances are isolated in part: the Landlock of this kernel does not restrict signals and abstract Unix sockets; use Linux 6.12 or later",
            ),
            Isolation::Full => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_named_with_what_to_do() {
        assert!(Isolation::Absent.gap().unwrap().contains("use Linux 5.13"));
        assert!(Isolation::Files.gap().unwrap().contains("use Linux 6.12"));
        assert_eq!(Isolation::Full.gap(), None);
    }
}
