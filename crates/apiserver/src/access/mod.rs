//! Authentication, impersonation and authorization of requests.

mod audit;
pub(crate) mod certificates;
mod credentials;
mod jwt;
pub(crate) mod rbac;
mod review;
mod role_index;
mod session;
mod tokens;

pub use audit::{Audit, AuditFile, AuditFileError, CONTROLLERS};
pub(crate) use audit::{Completion, Trail};
pub(crate) use credentials::{CREDENTIALS_PATH, Credentials};
pub use credentials::{Credential, CredentialKind, Revocation};
pub use jwt::{TokenKeys, TokenKeysError};
pub(crate) use review::{review, user_info};
pub(crate) use role_index::RoleIndex;
pub(crate) use session::{Session, SessionEnd};
pub(crate) use tokens::{
    SECRET_TYPE, TOKEN_LIFE_MAX, TokenRequest, bound_object, fill_secret, issue as issue_token, issuer,
    needs_token, openid_configuration,
};

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use http::{HeaderMap, Method, header, request::Parts};

use certificates::ClientCertificate;
use tokens::TokenUser;

use crate::{
    plane::Plane,
    server::Core,
    status::{GroupResource, StatusError},
    user::{AUTHENTICATED, UNAUTHENTICATED, UserInfo},
};

/// Authentication options: static bearer tokens, the keys of service account tokens, and the audit log.
/// Client certificates are configured in [`polis_tls::ServerTls`].
#[derive(Default)]
pub struct Access {
    tokens: BTreeMap<String, UserInfo>,
    /// Prefixes of the groups that only administrators of the server may impersonate, whatever RBAC of a
    /// plane allows.
    pub reserved_groups: Vec<String>,
    /// The keys of service account tokens. By default there is a random one, so tokens are invalid after a
    /// restart.
    pub token_keys: TokenKeys,
    pub(crate) audit: Option<Arc<Audit>>,
    /// The certificate authority of the server, in PEM: `ca.crt` of token secrets.
    pub(crate) authority: Option<String>,
}

impl Access {
    /// Accepts a static bearer token for a user.
    pub fn token(mut self, token: impl Into<String>, user: UserInfo) -> Self {
        self.tokens.insert(token.into(), user);
        self
    }

    /// Records requests in an audit log; without one, no request is recorded.
    pub fn audit(mut self, audit: Audit) -> Self {
        self.audit = Some(Arc::new(audit));
        self
    }

    /// The certificate authority (PEM) that token secrets contain as `ca.crt`.
    pub fn authority(mut self, pem: impl Into<String>) -> Self {
        self.authority = Some(pem.into());
        self
    }
}

/// A request extension: the TLS peer of a network connection. In-process requests do not have it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The verified client certificate.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// Its address.
    pub(crate) address: Option<IpAddr>,
}

/// The user of a request, and the credential that proved it. In-process callers, anonymous ones and static
/// tokens have none that ends.
pub(crate) type Authenticated = (UserInfo, Option<Session>);

/// Authenticates a request: by its [`UserInfo`] extension, its bearer token, or its client certificate.
/// `plane` is the name in the path; the plane need not exist.
pub(crate) fn authenticate(core: &Core, plane: &str, parts: &Parts) -> Result<Authenticated, StatusError> {
    if let Some(user) = parts.extensions.get::<UserInfo>() {
        return Ok((user.clone(), None));
    }
    let bearer = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    if let Some(token) = bearer {
        let audiences = [issuer(plane)];
        return match authenticate_token(core, plane, token, &audiences) {
            Ok(authenticated) => Ok((authenticated.user, authenticated.session)),
            Err(_) => Err(StatusError::unauthorized()),
        };
    }
    match parts.extensions.get::<Peer>().map(|peer| &peer.certificate) {
        None => Ok((UserInfo::admin(), None)),
        Some(None) => Ok((UserInfo::anonymous(), None)),
        Some(Some(certificate)) => {
            let user = certificate.authenticate(core).ok_or_else(StatusError::unauthorized)?;
            Ok((user, Some(Session::Certificate(certificate.clone()))))
        }
    }
}

/// The user of a bearer token that is valid for one of `audiences`. A static token is valid for all.
pub(crate) fn authenticate_token(
    core: &Core,
    plane: &str,
    token: &str,
    audiences: &[String],
) -> Result<TokenUser, String> {
    match core.access.tokens.get(token.trim()) {
        Some(user) => Ok(TokenUser { user: user.clone(), audiences: audiences.to_vec(), session: None }),
        None => tokens::verify(core, plane, token.trim(), audiences),
    }
}

/// Adds the parent attributes that Milo adds to requests for a project's control plane.
pub(crate) fn add_project(user: &mut UserInfo, project: &str) {
    for (name, value) in [
        ("parent-api-group", "resourcemanager.miloapis.com"),
        ("parent-type", "Project"),
        ("parent-name", project),
    ] {
        user.extra.insert(format!("iam.miloapis.com/{name}"), vec![value.to_owned()]);
    }
}

/// The attributes of a request that RBAC rules match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    /// The resource, with its subresource after a slash.
    pub(crate) about: GroupResource,
    /// The subresource. An access review can name a resource with a slash and no subresource.
    pub(crate) subresource: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The path of a non-resource request.
    pub(crate) path: Option<String>,
}

impl Attributes {
    pub(crate) fn non_resource(method: &Method, path: &str) -> Self {
        Self { verb: method.as_str().to_ascii_lowercase(), path: Some(path.to_owned()), ..Self::default() }
    }
}

/// Authorizes a request on a plane, or returns 403. A plane that does not exist grants nothing.
pub(crate) fn authorize<'a>(
    core: &Core,
    plane: Option<&'a Arc<Plane>>,
    user: &UserInfo,
    attributes: &Attributes,
) -> Result<&'a Arc<Plane>, StatusError> {
    if let Some(plane) = plane.filter(|plane| rbac::allows(core, plane, user, attributes)) {
        return Ok(plane);
    }
    let name = &user.name;
    Err(match &attributes.path {
        Some(path) => StatusError::new(
            403,
            "Forbidden",
            format!("forbidden: User \"{name}\" cannot {} path \"{path}\"", attributes.verb),
        ),
        None => {
            let place = if attributes.namespace.is_empty() || attributes.about.resource == "namespaces" {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace \"{}\"", attributes.namespace)
            };
            let why = format!(
                "User \"{name}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
                attributes.verb, attributes.about.resource, attributes.about.group
            );
            let resource = attributes.about.resource.split('/').next().unwrap_or_default();
            StatusError::forbidden(
                &GroupResource::new(&attributes.about.group, resource),
                &attributes.name,
                &why,
            )
        }
    })
}

/// The `Impersonate-*` headers of a request.
struct Impersonation {
    user: Option<String>,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Vec<(String, String)>,
}

impl Impersonation {
    fn of(headers: &HeaderMap) -> Self {
        let texts = |name: &str| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let extra = headers.iter().filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("impersonate-extra-")?.replace("%2f", "/");
            Some((name, value.to_str().ok()?.to_owned()))
        });
        Self {
            user: text("impersonate-user"),
            uid: text("impersonate-uid"),
            groups: texts("impersonate-group"),
            extra: extra.collect(),
        }
    }
}

/// Refuses the impersonation of a reserved group, except by an administrator.
fn check_reserved(core: &Core, user: &UserInfo, group: &str) -> Result<(), StatusError> {
    let reserved = core.access.reserved_groups.iter().any(|prefix| group.starts_with(prefix));
    if reserved && !user.is_master() {
        let why = format!("the group is reserved; User \"{}\" cannot impersonate it", user.name);
        return Err(StatusError::forbidden(&GroupResource::new("", "groups"), group, &why));
    }
    Ok(())
}

/// The user that the request acts as: that of the `Impersonate-*` headers, if the caller may impersonate it.
pub(crate) fn impersonate(
    core: &Core,
    plane: Option<&Arc<Plane>>,
    user: UserInfo,
    headers: &HeaderMap,
) -> Result<UserInfo, StatusError> {
    let wanted = Impersonation::of(headers);
    let Some(name) = wanted.user else {
        if wanted.groups.is_empty() && wanted.extra.is_empty() && wanted.uid.is_none() {
            return Ok(user);
        }
        return Err(StatusError::internal("requested to impersonate without a user name"));
    };
    let may = |group: &str, resource: &str, name: &str, namespace: &str| {
        let attributes = Attributes {
            verb: "impersonate".into(),
            about: GroupResource::new(group, resource),
            subresource: resource.split_once('/').map_or("", |(_, sub)| sub).to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            path: None,
        };
        authorize(core, plane, &user, &attributes).map(drop)
    };
    let mut impersonated =
        match name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
            Some((namespace, name)) => {
                may("", "serviceaccounts", name, namespace)?;
                UserInfo::service_account(namespace, name, "")
            }
            None => {
                may("", "users", &name, "")?;
                UserInfo { name: name.clone(), ..UserInfo::default() }
            }
        };
    for group in wanted.groups {
        may("", "groups", &group, "")?;
        check_reserved(core, &user, &group)?;
        impersonated.groups.push(group);
    }
    for (name, value) in wanted.extra {
        may("authentication.k8s.io", &format!("userextras/{name}"), &value, "")?;
        impersonated.extra.entry(name).or_default().push(value);
    }
    if let Some(uid) = wanted.uid {
        may("authentication.k8s.io", "uids", &uid, "")?;
        impersonated.uid = uid;
    }
    if !impersonated.is_in(AUTHENTICATED) && !impersonated.is_in(UNAUTHENTICATED) {
        let group = if name == "system:anonymous" { UNAUTHENTICATED } else { AUTHENTICATED };
        impersonated.groups.push(group.into());
    }
    // Impersonation keeps the parent project of the request path.
    impersonated
        .extra
        .extend(user.extra.into_iter().filter(|(name, _)| name.starts_with("iam.miloapis.com/parent-")));
    Ok(impersonated)
}
