//! Caller: who sent a request, as far as priority, quotas and admission depend on it.
//!
//! It is the authenticated identity. Impersonation does not change it: a tenant may impersonate every user
//! name on its own plane.

use std::sync::Arc;

use polis_apimachinery::fair_queue::FlowKey;

use crate::{
    plane::is_project,
    user::{UNAUTHENTICATED, UserInfo},
};

/// Prefix of the groups of managers and cells.
const PLATFORM_GROUPS: &str = "compute.datumapis.com:";
/// Prefix of user names that belong to Kubernetes and to the platform.
const SYSTEM: &str = "system:";
/// Prefix of the names of service accounts.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// How the identity of a request was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// By the program itself: the request did not come over a connection.
    InProcess,
    /// By a client certificate, or by nothing (anonymous).
    Connection,
    /// By a bearer token. Planes issue tokens for their service accounts.
    Token,
}

/// A priority level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorityLevel {
    /// The program itself and `system:masters`: no queue.
    Exempt,
    /// Managers and cells.
    System,
    /// Service accounts of planes that are not projects.
    Controllers,
    /// All other authenticated users.
    Tenants,
    /// Requests without an identity.
    Anonymous,
}

impl PriorityLevel {
    /// The value of the label `priority_level`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::System => "system",
            Self::Controllers => "controllers",
            Self::Tenants => "tenants",
            Self::Anonymous => "anonymous",
        }
    }
}

/// The authenticated sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) level: PriorityLevel,
    /// An identity of the platform: storage quotas and the admission configurations of a project do not apply
    /// to it.
    pub(crate) platform: bool,
    identity: Option<Arc<str>>,
}

impl Caller {
    /// The server itself.
    pub(crate) fn internal() -> Self {
        Self { level: PriorityLevel::Exempt, platform: true, identity: None }
    }

    /// The sender of a request to a plane.
    pub(crate) fn of(origin: Origin, plane: &str, user: &UserInfo) -> Self {
        let level = level(origin, plane, user);
        let platform = match level {
            PriorityLevel::Exempt => origin == Origin::InProcess,
            level => level == PriorityLevel::System,
        };
        let identity = (level != PriorityLevel::Exempt).then(|| user.name.as_str().into());
        Self { level, platform, identity }
    }

    /// The name of the user; for messages and accounts.
    pub(crate) fn identity(&self) -> &str {
        self.identity.as_deref().unwrap_or("system:admin")
    }

    /// The account of the caller on a plane. All anonymous requests have one account, whatever plane they
    /// name.
    pub(crate) fn key(&self, plane: &Arc<str>) -> FlowKey {
        let flow = self.identity.clone().unwrap_or_default();
        let tenant = if self.level == PriorityLevel::Anonymous { Arc::default() } else { plane.clone() };
        FlowKey { tenant, flow }
    }
}

fn level(origin: Origin, plane: &str, user: &UserInfo) -> PriorityLevel {
    if user.is_master() {
        return PriorityLevel::Exempt;
    }
    if user.is_in(UNAUTHENTICATED) {
        return PriorityLevel::Anonymous;
    }
    // Every plane issues tokens for its own service accounts: on the plane of a project they are tenants,
    // whatever their name.
    if origin == Origin::Token && user.name.starts_with(SERVICE_ACCOUNT) {
        return if is_project(plane) { PriorityLevel::Tenants } else { PriorityLevel::Controllers };
    }
    let is_platform =
        user.name.starts_with(SYSTEM) || user.groups.iter().any(|group| group.starts_with(PLATFORM_GROUPS));
    if is_platform { PriorityLevel::System } else { PriorityLevel::Tenants }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::MASTERS;

    #[test]
    fn the_level_of_a_caller_follows_from_what_it_has_proved() {
        use Origin::{Connection, InProcess, Token};
        let user = |name: &str, groups: &[&str]| UserInfo::new(name, groups.iter().copied());
        let manager = UserInfo::service_account("compute-system", "compute-manager", "");
        let cases = [
            (InProcess, "project:p", UserInfo::admin(), PriorityLevel::Exempt, true),
            (InProcess, "project:p", user("polis:cell-dfw", &[MASTERS]), PriorityLevel::Exempt, true),
            (Connection, "project:p", user("polis-admin", &[MASTERS]), PriorityLevel::Exempt, false),
            (Connection, "project:p", manager.clone(), PriorityLevel::System, true),
            (Token, "project:p", manager.clone(), PriorityLevel::Tenants, false),
            (Token, "hub", manager, PriorityLevel::Controllers, false),
            (
                Connection,
                "hub",
                user("compute-cell-dfw", &["compute.datumapis.com:cells"]),
                PriorityLevel::System,
                true,
            ),
            (Connection, "project:p", user("alice", &["admins"]), PriorityLevel::Tenants, false),
            (Connection, "", UserInfo::anonymous(), PriorityLevel::Anonymous, false),
        ];
        for (origin, plane, user, level, platform) in cases {
            let caller = Caller::of(origin, plane, &user);
            assert_eq!(
                (caller.level, caller.platform),
                (level, platform),
                "{origin:?} {plane} {}",
                user.name
            );
        }
    }

    #[test]
    fn anonymous_requests_share_one_account_and_users_have_one_on_each_plane() {
        let key =
            |user: &UserInfo, plane: &str| Caller::of(Origin::Connection, plane, user).key(&plane.into());
        let (anonymous, alice) = (UserInfo::anonymous(), UserInfo::new("alice", ["a"]));
        assert_eq!(key(&anonymous, "a"), key(&anonymous, "b"));
        assert_ne!(key(&alice, "a"), key(&alice, "b"));
    }
}
