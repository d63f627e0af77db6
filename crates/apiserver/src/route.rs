//! Parses a request path into plane, resource, name and verb. There is no static route table, because CRDs
//! add and remove resources at run time.

use std::borrow::Cow;

use http::Method;

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
    /// Namespace, if the path has one.
    pub namespace: Option<&'a str>,
    /// Plural resource name.
    pub resource: &'a str,
    /// Object name, if the path has one.
    pub name: Option<&'a str>,
    /// Subresource, if the path has one.
    pub subresource: Option<&'a str>,
    /// The old `/watch/` prefix was used.
    pub watch: bool,
}

/// Parses a path within a plane. Returns `None` for a malformed resource path.
pub(crate) fn target(path: &str) -> Option<Target<'_>> {
    let mut parts = path.trim_matches('/').split('/');
    let (group, version) = match parts.next()? {
        "api" => ("", parts.next()),
        "apis" => match parts.next() {
            Some(group) => (group, parts.next()),
            None => return Some(Target::NonResource(path)),
        },
        _ => return Some(Target::NonResource(path)),
    };
    let Some(version) = version else { return Some(Target::NonResource(path)) };
    let mut rest: Vec<&str> = parts.collect();
    if rest.is_empty() {
        return Some(Target::NonResource(path));
    }
    if rest.iter().any(|part| part.is_empty()) {
        return None;
    }
    let watch = rest[0] == "watch";
    if watch {
        rest.remove(0);
    }
    let mut found = ResourcePath { group, version, watch, ..ResourcePath::default() };
    match rest.as_slice() {
        // `namespaces` is a resource and a path prefix of others; `status` and `finalize` are its own
        // subresources.
        ["namespaces"] => found.resource = "namespaces",
        ["namespaces", name] => {
            (found.resource, found.name, found.namespace) = ("namespaces", Some(*name), Some(*name))
        }
        ["namespaces", name, sub @ ("status" | "finalize")] => {
            (found.resource, found.name, found.namespace, found.subresource) =
                ("namespaces", Some(*name), Some(*name), Some(*sub));
        }
        ["namespaces", namespace, resource, tail @ ..] => {
            (found.namespace, found.resource) = (Some(*namespace), *resource);
            found = object(found, tail)?;
        }
        [resource, tail @ ..] => {
            found.resource = resource;
            found = object(found, tail)?;
        }
        [] => return None,
    }
    Some(Target::Resource(found))
}

fn object<'a>(mut found: ResourcePath<'a>, tail: &[&'a str]) -> Option<ResourcePath<'a>> {
    match tail {
        [] => {}
        [name] => found.name = Some(*name),
        [name, sub] => (found.name, found.subresource) = (Some(*name), Some(*sub)),
        _ => return None,
    }
    Some(found)
}

/// The verb of a request, as RBAC names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// The name in RBAC rules and discovery.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// Whether the verb changes objects.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The verb of a resource request; `None` if no verb has this method.
pub(crate) fn verb(method: &Method, path: &ResourcePath<'_>, watch: bool) -> Option<Verb> {
    Some(match (method.as_str(), path.name.is_some()) {
        ("GET" | "HEAD", _) if watch || path.watch => Verb::Watch,
        ("GET" | "HEAD", true) => Verb::Get,
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
            Some(Target::Resource(found)) => {
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
        assert_eq!(target("/apis/x.io/v1"), Some(Target::NonResource("/apis/x.io/v1")));
        assert_eq!(target("/apis/x.io/v1/a/b/c/d"), None);
        assert_eq!(target("/apis/x.io/v1/a//b"), None);
    }
}
