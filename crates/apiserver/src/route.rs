//! Parses a request path into plane, resource, namespace, name and verb, as kube-apiserver's RequestInfo
//! does. There is no static route table, because CRDs add and remove resources at run time.
//!
//! Authorization and the verb read the same [`ResourcePath`]. It is parsed without the scope of the resource;
//! [`ResourcePath::fits`] then compares both, so that no request is authorized in one namespace and executed
//! outside of it.

use std::borrow::Cow;

use http::Method;
pub(crate) use polis_apimachinery::RequestVerb as Verb;

/// The plane of a request path, and the path within that plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanePath<'a> {
    /// Name of the plane; empty for the root plane.
    pub plane: Cow<'a, str>,
    /// The project, if the path is that of a project's plane.
    pub project: Option<&'a str>,
    /// The rest: an ordinary Kubernetes path.
    pub path: &'a str,
}

const PROJECTS: &str = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/";

/// Splits a request path at the plane's prefix.
pub(crate) fn plane_of(path: &str) -> PlanePath<'_> {
    for prefix in [PROJECTS, "/projects/"] {
        if let Some((project, rest)) = path.strip_prefix(prefix).and_then(|rest| rest.split_once('/'))
            && let Some(rest) = rest.strip_prefix("control-plane")
            && (rest.is_empty() || rest.starts_with('/'))
            && !project.is_empty()
        {
            return PlanePath {
                plane: Cow::Owned(project_plane(project)),
                project: Some(project),
                path: if rest.is_empty() { "/" } else { rest },
            };
        }
    }
    if let Some(rest) = path.strip_prefix("/planes/") {
        let (name, rest) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        if !name.is_empty() {
            return PlanePath {
                plane: Cow::Borrowed(name),
                project: name.strip_prefix("project:"),
                path: rest,
            };
        }
    }
    PlanePath { plane: Cow::Borrowed(""), project: None, path }
}

/// The name of a project's plane.
pub fn project_plane(project: &str) -> String {
    format!("project:{project}")
}

/// What a path within a plane addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// `/api`, `/apis`, `/apis/<group>`, `/apis/<group>/<version>`, `/version`, `/healthz`, …
    NonResource(&'a str),
    /// A collection or one object.
    Resource(ResourcePath<'a>),
}

/// The parts of a resource path.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct ResourcePath<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Namespace of the request: that of the path prefix. A namespace itself is in its own namespace, so that
    /// a Role in it can grant `get` on it, as in Kubernetes.
    pub namespace: Option<&'a str>,
    /// Plural resource name.
    pub resource: &'a str,
    /// Object name, if the path has one.
    pub name: Option<&'a str>,
    /// Subresource, if the path has one.
    pub subresource: Option<&'a str>,
    /// The old `/watch/` prefix was used.
    pub watch: bool,
    /// The path is that of a namespace: `namespaces/<name>`, not of a resource in it.
    pub is_namespace: bool,
    /// The path has an empty segment, too many of them, or no resource: it is authorized and then not found.
    pub malformed: bool,
}

/// Parses a path within a plane.
pub(crate) fn target(path: &str) -> Target<'_> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Target::NonResource(path),
    };
    let (watch, rest) = match rest {
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    // `namespaces` is a resource and a path prefix of others; `status` and `finalize` are its own
    // subresources.
    let (namespace, object, is_namespace) = match rest {
        ["namespaces", name] | ["namespaces", name, "status" | "finalize", ..] => (Some(*name), rest, true),
        ["namespaces", namespace, object @ ..] => (Some(*namespace), object, false),
        object => (None, object, false),
    };
    let segment = |at: usize| object.get(at).copied().filter(|segment| !segment.is_empty());
    Target::Resource(ResourcePath {
        group,
        version,
        namespace: namespace.filter(|namespace| !namespace.is_empty()),
        resource: segment(0).unwrap_or_default(),
        name: segment(1),
        subresource: segment(2),
        watch,
        is_namespace,
        malformed: parts.contains(&"") || !(1..=3).contains(&object.len()) || (watch && object.len() > 2),
    })
}

impl ResourcePath<'_> {
    /// Whether a resource of the given scope is served at this path. A request for a cluster-scoped resource
    /// below a namespace is authorized in that namespace, so it must not reach an object outside of it.
    pub(crate) fn fits(&self, namespaced: bool) -> bool {
        match (namespaced, self.namespace) {
            (false, None) | (true, Some(_)) => true,
            // Collections of all namespaces. Objects have a namespace.
            (true, None) => self.name.is_none(),
            (false, Some(_)) => self.is_namespace && self.group.is_empty(),
        }
    }
}

/// The verb of a resource request; `None` if no verb has this method. As in Kubernetes `?watch` applies to
/// collections only: with a name the request is a get.
pub(crate) fn verb(method: &Method, path: &ResourcePath<'_>, watch: bool) -> Option<Verb> {
    Some(match (method.as_str(), path.name.is_some()) {
        ("GET" | "HEAD", _) if path.watch => Verb::Watch,
        (_, _) if path.watch => return None,
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) if watch => Verb::Watch,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", _) => Verb::Create,
        ("PUT", _) => Verb::Update,
        ("PATCH", _) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_prefix_selects_the_plane() {
        let cases = [
            ("/api/v1/namespaces", "", None, "/api/v1/namespaces"),
            (
                "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop/control-plane/api/v1",
                "project:shop",
                Some("shop"),
                "/api/v1",
            ),
            ("/projects/shop/control-plane/api", "project:shop", Some("shop"), "/api"),
            ("/projects/shop/control-plane", "project:shop", Some("shop"), "/"),
            ("/planes/hub/apis", "hub", None, "/apis"),
            ("/planes/hub", "hub", None, "/"),
            ("/projects/shop/other/api", "", None, "/projects/shop/other/api"),
            (
                "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop",
                "",
                None,
                "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop",
            ),
        ];
        for (path, plane, project, rest) in cases {
            let found = plane_of(path);
            assert_eq!((&*found.plane, found.project, found.path), (plane, project, rest), "{path}");
        }
    }

    #[test]
    fn a_resource_path_is_split_into_its_parts() {
        let resource = |path| match target(path) {
            Target::Resource(found) => {
                (found.group, found.version, found.namespace, found.resource, found.name, found.subresource)
            }
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(
            resource("/api/v1/namespaces/a/configmaps/b"),
            ("", "v1", Some("a"), "configmaps", Some("b"), None)
        );
        assert_eq!(resource("/api/v1/namespaces/a"), ("", "v1", Some("a"), "namespaces", Some("a"), None));
        assert_eq!(
            resource("/api/v1/namespaces/a/finalize"),
            ("", "v1", Some("a"), "namespaces", Some("a"), Some("finalize"))
        );
        assert_eq!(
            resource("/apis/x.io/v1/widgets/a/status"),
            ("x.io", "v1", None, "widgets", Some("a"), Some("status"))
        );
        assert_eq!(
            resource("/apis/x.io/v1/namespaces/n/widgets"),
            ("x.io", "v1", Some("n"), "widgets", None, None)
        );
        assert_eq!(target("/apis/x.io/v1"), Target::NonResource("/apis/x.io/v1"));
        assert_eq!(target("/"), Target::NonResource("/"));
    }

    fn parsed(path: &str) -> ResourcePath<'_> {
        match target(path) {
            Target::Resource(found) => found,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn a_malformed_path_names_what_is_authorized_before_it_is_not_found() {
        for (path, resource, name, subresource) in [
            ("/apis/x.io/v1/a/b/c/d", "a", Some("b"), Some("c")),
            ("/apis/x.io/v1/a//b", "a", None, Some("b")),
            ("/api/v1/namespaces/n/status/x", "namespaces", Some("n"), Some("status")),
            ("/api/v1/watch", "", None, None),
            ("/api/v1/watch/a/b/status", "a", Some("b"), Some("status")),
        ] {
            let found = parsed(path);
            assert!(found.malformed, "{path}");
            assert_eq!(
                (found.resource, found.name, found.subresource),
                (resource, name, subresource),
                "{path}"
            );
        }
    }

    #[test]
    fn a_resource_is_served_only_at_the_paths_of_its_scope() {
        for (path, cluster_scoped, namespaced) in [
            ("/api/v1/namespaces", true, true),
            ("/api/v1/namespaces/a", true, true),
            ("/api/v1/namespaces/a/finalize", true, true),
            ("/api/v1/namespaces/a/namespaces", false, true),
            ("/api/v1/namespaces/a/namespaces/a", false, true),
            ("/api/v1/namespaces/a/namespaces/b/status", false, true),
            ("/api/v1/watch/namespaces/a/namespaces/b", false, true),
            ("/apis/rbac.authorization.k8s.io/v1/namespaces/a/clusterroles/b", false, true),
            ("/apis/x.io/v1/namespaces/a", false, true),
            ("/apis/x.io/v1/widgets", true, true),
            ("/apis/x.io/v1/widgets/b", true, false),
        ] {
            let found = parsed(path);
            assert_eq!((found.fits(false), found.fits(true)), (cluster_scoped, namespaced), "{path}");
        }
    }

    #[test]
    fn the_verb_follows_from_method_and_name() {
        let verb = |method: Method, path, watch| verb(&method, &parsed(path), watch);
        assert_eq!(verb(Method::GET, "/api/v1/configmaps", true), Some(Verb::Watch));
        assert_eq!(verb(Method::GET, "/api/v1/namespaces/a/configmaps/b", true), Some(Verb::Get));
        assert_eq!(verb(Method::GET, "/api/v1/watch/namespaces/a/configmaps/b", false), Some(Verb::Watch));
        assert_eq!(verb(Method::DELETE, "/api/v1/watch/namespaces/a/configmaps/b", false), None);
        assert_eq!(
            verb(Method::DELETE, "/api/v1/namespaces/a/configmaps", false),
            Some(Verb::DeleteCollection)
        );
    }
}
