//! The authenticated user of a request.

use std::collections::BTreeMap;

/// The group whose members bypass RBAC.
pub const MASTERS: &str = "system:masters";
/// The group of all authenticated users.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// The group of anonymous requests.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The user of a request: name, uid, groups and extra attributes, as in Kubernetes' `user.Info`.
///
/// In-process callers insert it into the extensions of a request. A request without it acts as
/// a member of [`MASTERS`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UserInfo {
    /// User name.
    pub name: String,
    /// Unique id of the user; empty if unknown.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra attributes, such as the project of the request path.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// `user` in `groups` and in [`AUTHENTICATED`].
    pub fn new<G: Into<String>>(user: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self { name: user.into(), groups, ..Self::default() }
    }

    /// The user of the server itself and of in-process callers without a user: a member of [`MASTERS`].
    pub fn admin() -> Self {
        Self::new("system:admin", [MASTERS])
    }

    /// The anonymous user, which may read health and version.
    pub(crate) fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// A service account of a namespace.
    pub(crate) fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Self { uid: uid.to_owned(), ..Self::new(format!("system:serviceaccount:{namespace}:{name}"), groups) }
    }

    /// Whether the user is a member of `group`.
    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Whether the user is a member of [`MASTERS`].
    pub(crate) fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }
}
