//! A request to a plane, as a proxy records it: who asks which plane for what.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use http::Method;
use polis_apimachinery::RequestVerb;
use polis_core::heartbeat;
use serde_json::Value;

/// The path of a project's plane on Milo, from the root of the platform.
pub fn project_path(project: &str) -> String {
    format!("{PROJECTS_PATH}{project}{CONTROL_PLANE}")
}

const PROJECTS_PATH: &str = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/";
const CONTROL_PLANE: &str = "/control-plane";

/// The project of a path and the path on its plane; `None` for a path on the platform itself.
pub fn split_project_path(path: &str) -> Option<(&str, &str)> {
    let (project, rest) = path.strip_prefix(PROJECTS_PATH)?.split_once('/')?;
    let rest = rest.strip_prefix(&CONTROL_PLANE[1..])?;
    (rest.is_empty() || rest.starts_with('/')).then_some((project, rest))
}

/// User and groups of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientIdentity {
    /// The user.
    pub user: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// A request that a proxy forwarded or dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When it arrived.
    pub at: Instant,
    /// The target plane.
    pub plane: String,
    /// The identity that the plane sees.
    pub identity: Arc<ClientIdentity>,
    /// The verb; `Get` also for a discovery document or a health check.
    pub verb: RequestVerb,
    /// Whether it is a watch that first sends the existing objects (a streaming list).
    pub initial_events: bool,
    /// The API group; empty for the core group and for paths without a resource.
    pub group: String,
    /// The plural, with a subresource after a slash; the path itself if it names no resource.
    pub resource: String,
    /// The namespace in the path, or the namespace that the request creates or reads.
    pub namespace: Option<String>,
    /// The name in the path or in a field selector for one name.
    pub name: Option<String>,
    /// Whether a fault kept it from the plane.
    pub dropped: bool,
    /// Whether the plane returned 409: the object had changed, or it existed already.
    pub conflicted: bool,
    /// Owners with `blockOwnerDeletion` of the created object.
    pub owners: Vec<BlockingOwner>,
    /// The ClusterRole that a created RoleBinding grants.
    pub bound_role: Option<String>,
}

/// An owner with `blockOwnerDeletion` in a created object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockingOwner {
    /// Its API group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl RecordedRequest {
    /// Parses a request. The body is parsed only for creates: for the name of a new namespace, and for owner
    /// references.
    pub fn parse(plane: &str, method: &Method, path: &str, query: &str, body: &[u8]) -> RecordedRequest {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        // /api/<version>/… or /apis/<group>/<version>/…
        let (group, rest): (&str, &[&str]) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (group, rest),
            _ => ("", &[]),
        };
        let (namespace, rest): (Option<&str>, &[&str]) = match rest {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
            {
                (Some(namespace), rest)
            }
            rest => (None, rest),
        };
        let (resource, name) = match rest {
            [] => (path.to_owned(), None),
            [kind] => ((*kind).to_owned(), None),
            [kind, name] => ((*kind).to_owned(), Some(*name)),
            [kind, name, sub, ..] => (format!("{kind}/{sub}"), Some(*name)),
        };
        let has = |wanted: &str| query.split('&').any(|pair| pair == wanted);
        let verb = match *method {
            Method::POST => RequestVerb::Create,
            Method::PUT => RequestVerb::Update,
            Method::PATCH => RequestVerb::Patch,
            Method::DELETE if name.is_none() => RequestVerb::DeleteCollection,
            Method::DELETE => RequestVerb::Delete,
            _ if has("watch=true") || has("watch=1") => RequestVerb::Watch,
            _ if name.is_none() && !rest.is_empty() => RequestVerb::List,
            _ => RequestVerb::Get,
        };
        // An API server authorizes a list with a field selector for one name as access to that name.
        let name = name.or_else(|| {
            query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"))
        });
        let created: Option<Value> =
            (verb == RequestVerb::Create).then(|| serde_json::from_slice(body).ok()).flatten();
        // A request for a namespace object belongs to that namespace, also when it creates it.
        let created_name = || created.as_ref()?.pointer("/metadata/name")?.as_str().map(str::to_owned);
        let namespace = match namespace {
            Some(namespace) => Some(namespace.to_owned()),
            None if resource.starts_with("namespaces") => name.map(str::to_owned).or_else(created_name),
            None => None,
        };
        RecordedRequest {
            at: Instant::now(),
            plane: plane.to_owned(),
            identity: Arc::default(),
            verb,
            initial_events: has("sendInitialEvents=true"),
            group: group.to_owned(),
            resource,
            namespace,
            name: name.map(str::to_owned),
            dropped: false,
            conflicted: false,
            owners: created.iter().flat_map(blocking_owners).collect(),
            bound_role: created.as_ref().and_then(bound_role),
        }
    }

    /// Whether it is a write that counts as a crash point. Events and heartbeats are not: their number
    /// depends on timing.
    pub fn is_counted_write(&self) -> bool {
        self.verb.is_write() && self.resource != "events" && !self.is_heartbeat()
    }

    /// Whether it is for the heartbeat of a cell, which is renewed while nothing happens. It is the only
    /// request that an idle system makes, so checks of quiescence and budgets leave it out.
    pub fn is_heartbeat(&self) -> bool {
        self.resource == "leases" && self.namespace.as_deref() == Some(heartbeat::NAMESPACE)
    }

    /// Whether an informer or the discovery sends it: a watch, a list across namespaces, or a path without a
    /// resource.
    pub fn is_informer(&self) -> bool {
        match self.verb {
            RequestVerb::Watch => true,
            RequestVerb::List => self.namespace.is_none(),
            RequestVerb::Get => self.name.is_none(),
            _ => false,
        }
    }
}

/// For example `update instances/web-0/status`.
impl fmt::Display for RecordedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb.as_str();
        match (&self.name, self.resource.split_once('/')) {
            (Some(name), Some((plural, subresource))) => write!(f, "{verb} {plural}/{name}/{subresource}"),
            (Some(name), None) => write!(f, "{verb} {}/{name}", self.resource),
            (None, _) => write!(f, "{verb} {}", self.resource),
        }
    }
}

/// The ClusterRole that a created RoleBinding grants.
fn bound_role(created: &Value) -> Option<String> {
    let role = created.get("roleRef").filter(|role| role["kind"] == "ClusterRole")?;
    role["name"].as_str().map(str::to_owned)
}

fn blocking_owners(created: &Value) -> Vec<BlockingOwner> {
    let named = created.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let blocking = named.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true);
    let parse = |owner: &Value| {
        let field = |name: &str| owner[name].as_str().unwrap_or_default().to_owned();
        let group = field("apiVersion").split_once('/').map_or("", |(group, _)| group).to_owned();
        BlockingOwner { group, kind: field("kind"), name: field("name") }
    };
    blocking.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: Method, path: &str, query: &str) -> RecordedRequest {
        RecordedRequest::parse("hub", &method, path, query, b"")
    }

    #[test]
    fn verb_resource_and_name_come_from_method_path_and_query() {
        let base = "/apis/compute.datumapis.com/v1alpha/namespaces/ns-1/instances";
        let named = format!("{base}/a-0");
        let of_one = "fieldSelector=metadata.name%3Da-0&watch=true";
        for (method, path, query, text) in [
            (Method::GET, base, "", "list instances"),
            (Method::GET, base, "limit=500&watch=true", "watch instances"),
            (Method::GET, base, of_one, "watch instances/a-0"),
            (Method::GET, &named, "", "get instances/a-0"),
            (Method::PUT, &format!("{named}/status"), "", "update instances/a-0/status"),
            (Method::DELETE, &named, "", "delete instances/a-0"),
            (Method::DELETE, base, "", "deletecollection instances"),
        ] {
            let request = parse(method, path, query);
            assert_eq!((request.to_string(), request.namespace.as_deref()), (text.to_owned(), Some("ns-1")));
        }
    }

    #[test]
    fn discovery_and_health_requests_are_reads_without_a_resource() {
        for path in ["/apis", "/api/v1", "/apis/compute.datumapis.com/v1alpha", "/version", "/readyz"] {
            let request = parse(Method::GET, path, "");
            assert_eq!(
                (request.verb, &*request.resource, request.is_informer()),
                (RequestVerb::Get, path, true)
            );
        }
    }

    #[test]
    fn a_request_for_a_namespace_belongs_to_it_even_when_it_creates_it() {
        let get = parse(Method::GET, "/api/v1/namespaces/ns-1", "");
        assert_eq!((get.verb, get.namespace.as_deref()), (RequestVerb::Get, Some("ns-1")));
        let body = br#"{"metadata":{"name":"ns-2"}}"#;
        let created = RecordedRequest::parse("hub", &Method::POST, "/api/v1/namespaces", "", body);
        assert_eq!((created.verb, created.namespace.as_deref()), (RequestVerb::Create, Some("ns-2")));
        assert_eq!(parse(Method::GET, "/api/v1/namespaces", "watch=1").namespace, None);
    }

    #[test]
    fn only_owners_that_block_deletion_are_recorded() {
        let owner = |name: &str, blocks: bool| serde_json::json!({"apiVersion": "g/v1", "kind": "Widget", "name": name, "blockOwnerDeletion": blocks});
        let created =
            serde_json::json!({"metadata": {"ownerReferences": [owner("a", true), owner("b", false)]}});
        let path = "/apis/g/v1/namespaces/shop/parts";
        let request = RecordedRequest::parse("hub", &Method::POST, path, "", created.to_string().as_bytes());
        let expected = BlockingOwner { group: "g".into(), kind: "Widget".into(), name: "a".into() };
        assert_eq!(request.owners, [expected]);
    }

    #[test]
    fn the_path_of_a_project_names_its_plane() {
        let path = format!("{}/api/v1/namespaces", project_path("acme"));
        assert_eq!(split_project_path(&path), Some(("acme", "/api/v1/namespaces")));
        assert_eq!(split_project_path("/apis/resourcemanager.miloapis.com/v1alpha1/projects/acme"), None);
    }
}
