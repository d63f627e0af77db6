//! Who makes a request.

use std::collections::BTreeMap;

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of everybody who proved a name.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody else.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// A caller: a name, groups, and what the way in adds.
///
/// In-process callers put one into the extensions of a request; without it they act as [`Identity::admin`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// User name.
    pub user: String,
    /// Stable id of the user, where known.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further facts, such as the project that the request came through.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// `user` in `groups`, and in the group of the authenticated.
    pub fn new<G: Into<String>>(user: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self { user: user.into(), groups, ..Self::default() }
    }

    /// The server itself and in-process callers that name nobody: may do everything.
    pub fn admin() -> Self {
        Self::new("system:admin", [MASTERS])
    }

    /// Nobody: may read health and version.
    pub fn anonymous() -> Self {
        Self { user: "system:anonymous".into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// A service account of a namespace.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Self { uid: uid.to_owned(), ..Self::new(format!("system:serviceaccount:{namespace}:{name}"), groups) }
    }

    /// Member of `group`.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Member of the group that may do everything.
    pub fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }
}
