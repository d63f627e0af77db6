//! Who comes in, as whom, and what he may do.

mod audit;
pub(crate) mod rbac;
mod review;
mod tokens;

pub use audit::AuditSink;
pub(crate) use audit::audit;
pub(crate) use review::{review, user_info};
pub(crate) use tokens::{fill_secret, issue as issue_token};

use std::collections::BTreeMap;

use http::{HeaderMap, Method, header, request::Parts};

use crate::{
    identity::{AUTHENTICATED, Identity, UNAUTHENTICATED},
    plane::Plane,
    server::Core,
    status::{About, Failure},
};

/// Who may come in over the network besides holders of client certificates.
#[derive(Default)]
pub struct Access {
    tokens: BTreeMap<String, Identity>,
    pub(crate) audit: Option<AuditSink>,
    pub(crate) signer: tokens::Signer,
    /// The certificate authority of the server, in PEM, for those who hold a token secret.
    pub(crate) authority: Option<String>,
}

impl Access {
    /// Accepts a bearer token for an identity.
    pub fn token(mut self, token: impl Into<String>, identity: Identity) -> Self {
        self.tokens.insert(token.into(), identity);
        self
    }

    /// Writes a line of JSON for every write that was asked for.
    pub fn audit(mut self, sink: AuditSink) -> Self {
        self.audit = Some(sink);
        self
    }

    /// The certificate authority (PEM) that clients with a token secret are told to trust.
    pub fn authority(mut self, pem: impl Into<String>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// The key that signs tokens of service accounts; a random one makes them end with the process.
    pub fn signing_key(mut self, key: &[u8]) -> Self {
        self.signer = tokens::Signer::new(key);
        self
    }
}

/// What the connection proved about its peer. Present on requests from the network, absent on those from this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// From a client certificate that our authority signed.
    pub(crate) certified: Option<Identity>,
}

/// The caller of a request.
pub(crate) fn authenticate(core: &Core, plane: &Plane, parts: &Parts) -> Result<Identity, Failure> {
    if let Some(identity) = parts.extensions.get::<Identity>() {
        return Ok(identity.clone());
    }
    let bearer = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    if let Some(token) = bearer {
        return identify(core, plane, token).ok_or_else(Failure::unauthorized);
    }
    match parts.extensions.get::<Peer>() {
        None => Ok(Identity::admin()),
        Some(peer) => Ok(peer.certified.clone().unwrap_or_else(Identity::anonymous)),
    }
}

/// Whose token it is.
pub(crate) fn identify(core: &Core, plane: &Plane, token: &str) -> Option<Identity> {
    core.access.tokens.get(token.trim()).cloned().or_else(|| tokens::verify(core, plane, token.trim()))
}

/// The parent that project paths add, as Milo does.
pub(crate) fn add_project(identity: &mut Identity, project: &str) {
    for (name, value) in [
        ("parent-api-group", "resourcemanager.miloapis.com"),
        ("parent-type", "Project"),
        ("parent-name", project),
    ] {
        identity.extra.insert(format!("iam.miloapis.com/{name}"), vec![value.to_owned()]);
    }
}

/// What a request wants to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    pub(crate) about: About,
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// A path that is no resource's.
    pub(crate) path: Option<String>,
}

impl Attributes {
    pub(crate) fn non_resource(method: &Method, path: &str) -> Self {
        Self { verb: method.as_str().to_ascii_lowercase(), path: Some(path.to_owned()), ..Self::default() }
    }
}

/// Lets a request through, or says why not.
pub(crate) fn authorize(
    core: &Core,
    plane: &Plane,
    identity: &Identity,
    wants: &Attributes,
) -> Result<(), Failure> {
    if rbac::allows(core, plane, identity, wants) {
        return Ok(());
    }
    let user = &identity.user;
    Err(match &wants.path {
        Some(path) => Failure::new(
            403,
            "Forbidden",
            format!("forbidden: User \"{user}\" cannot {} path \"{path}\"", wants.verb),
        ),
        None => {
            let place = if wants.namespace.is_empty() || wants.about.resource == "namespaces" {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace \"{}\"", wants.namespace)
            };
            let why = format!(
                "User \"{user}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
                wants.verb, wants.about.resource, wants.about.group
            );
            let resource = wants.about.resource.split('/').next().unwrap_or_default();
            Failure::forbidden(&About::new(&wants.about.group, resource), &wants.name, &why)
        }
    })
}

/// Takes on another identity, if the request asks for it and the caller may.
pub(crate) fn impersonate(
    core: &Core,
    plane: &Plane,
    identity: Identity,
    headers: &HeaderMap,
) -> Result<Identity, Failure> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    let extras: Vec<(String, String)> = headers
        .iter()
        .filter_map(|(name, value)| {
            Some((
                name.as_str().strip_prefix("impersonate-extra-")?.to_owned(),
                value.to_str().ok()?.to_owned(),
            ))
        })
        .map(|(name, value)| (name.replace("%2f", "/"), value))
        .collect();
    let Some(user) = text("impersonate-user") else {
        if groups.is_empty() && extras.is_empty() && text("impersonate-uid").is_none() {
            return Ok(identity);
        }
        return Err(Failure::internal("requested to impersonate without a user name"));
    };
    let may = |group: &str, resource: &str, name: &str, namespace: &str| {
        let wants = Attributes {
            verb: "impersonate".into(),
            about: About::new(group, resource),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            path: None,
        };
        authorize(core, plane, &identity, &wants)
    };
    let mut taken = match user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        Some((namespace, name)) => {
            may("", "serviceaccounts", name, namespace)?;
            Identity::service_account(namespace, name, "")
        }
        None => {
            may("", "users", &user, "")?;
            Identity { user: user.clone(), ..Identity::default() }
        }
    };
    for group in groups {
        may("", "groups", &group, "")?;
        taken.groups.push(group);
    }
    for (name, value) in extras {
        may("authentication.k8s.io", &format!("userextras/{name}"), &value, "")?;
        taken.extra.entry(name).or_default().push(value);
    }
    if let Some(uid) = text("impersonate-uid") {
        may("authentication.k8s.io", "uids", &uid, "")?;
        taken.uid = uid;
    }
    let known = |taken: &Identity| taken.is_in(AUTHENTICATED) || taken.is_in(UNAUTHENTICATED);
    if !known(&taken) {
        taken.groups.push(if user == "system:anonymous" { UNAUTHENTICATED } else { AUTHENTICATED }.into());
    }
    // The way in stays the way in: a project's mark is not shed by impersonation.
    taken
        .extra
        .extend(identity.extra.into_iter().filter(|(name, _)| name.starts_with("iam.miloapis.com/parent-")));
    Ok(taken)
}
