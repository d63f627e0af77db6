//! [`MiloProjects`]: a provider that engages one plane for each project of a Milo platform.
//!
//! A project's plane is engaged while the `Project` has the condition `Ready`. It is disengaged when the
//! object is deleted or no longer ready, and engaged again with an empty cache when it is ready again.
//! Project planes are paths of one host. Inside the cluster that runs them they are Services, and the
//! provider watches `ProjectControlPlane` objects with the condition `ControlPlaneReady` instead
//! ([`MiloProjects::via_services`]).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;

use super::{PlaneProvider, PlaneRegistry};
use crate::Plane;
use crate::cache::{InformerStore, ObjectChange};
use crate::discovery::Discovery;
use crate::kind::{Kind, ResourceScope};
use crate::watch::{ListLimiter, Observer, Reflector, Watch};

const GROUP: &str = "resourcemanager.miloapis.com";
const VERSION: &str = "v1alpha1";
const INFRASTRUCTURE: &str = "infrastructure.miloapis.com";
/// Port of a project's API server within the cluster that runs it.
const SERVICE_PORT: u16 = 6443;

fn service_host(project: &str) -> String {
    format!("milo-apiserver.project-{project}.svc.cluster.local")
}

/// How the provider finds the planes of projects and connects to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessMode {
    /// Watches `Project` and connects to a path of the host.
    Path,
    /// Watches `ProjectControlPlane` and connects to the Service of the project.
    Service,
}

impl AccessMode {
    fn kind(self) -> Kind {
        let (group, plural, kind) = match self {
            Self::Path => (GROUP, "projects", "Project"),
            Self::Service => (INFRASTRUCTURE, "projectcontrolplanes", "ProjectControlPlane"),
        };
        Kind {
            group: group.into(),
            version: VERSION.into(),
            plural: plural.into(),
            kind: kind.into(),
            scope: ResourceScope::Cluster,
        }
    }

    /// The condition that is true while the plane is ready.
    fn condition(self) -> &'static str {
        match self {
            Self::Path => "Ready",
            Self::Service => "ControlPlaneReady",
        }
    }

    fn plane(self, host: &Plane, project: &str) -> Plane {
        match self {
            Self::Path => host.of_project(project),
            Self::Service => host.at_host(project, &service_host(project), SERVICE_PORT),
        }
    }
}

/// A provider that engages the ready projects of a Milo platform.
#[derive(Debug)]
pub struct MiloProjects {
    root: Plane,
    host: Option<Plane>,
    labels: Option<String>,
    mode: AccessMode,
}

impl MiloProjects {
    /// All projects of the platform behind `root`.
    pub fn new(root: Plane) -> Self {
        Self { root, host: None, labels: None, mode: AccessMode::Path }
    }

    /// Finds projects by their `ProjectControlPlane` and connects to the Service of each, for a manager in
    /// the cluster that runs them. Credentials and CA are those of the host.
    pub fn via_services(mut self) -> Self {
        self.mode = AccessMode::Service;
        self
    }

    /// Connects to project planes through this host instead of the one that lists them, for example with
    /// other credentials.
    pub fn hosted_by(mut self, host: Plane) -> Self {
        self.host = Some(host);
        self
    }

    /// Engages only projects whose labels match the selector. A project that no longer matches is disengaged.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    fn watch(&self) -> Watch {
        let watch = Watch::kind(self.mode.kind());
        match &self.labels {
            Some(labels) => watch.labels(labels.clone()),
            None => watch,
        }
    }
}

impl Plane {
    /// The plane of a project, if this plane is the root of a Milo platform.
    pub fn of_project(&self, project: &str) -> Plane {
        self.with_path_prefix(project, &format!("/apis/{GROUP}/{VERSION}/projects/{project}/control-plane"))
    }
}

impl PlaneProvider for MiloProjects {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()> {
        let informers = Arc::new(InformerStore::new(registry.set.id, Arc::from([self.watch()])));
        let root = self.root.bound_to(&registry.set.env, Some(informers.clone()));
        // All projects serve the same kinds, so they share discovery results. The root does not share them:
        // it may not serve kinds that only projects have.
        let host = self.host.unwrap_or_else(|| root.clone());
        let base = host.bound_to(&registry.set.env, None).sharing_discovery(Arc::new(Discovery::default()));
        let observer = Arc::new(Projects { base, mode: self.mode, registry });
        Reflector { plane: root, informers, watch: 0, observer, limiter: Arc::new(ListLimiter::new(1)) }
            .run()
            .boxed()
    }
}

struct Projects {
    base: Plane,
    mode: AccessMode,
    registry: PlaneRegistry,
}

impl Observer for Projects {
    fn changed(&self, _: &Plane, _: usize, change: ObjectChange) {
        let name = change.name().name;
        if change.after.as_deref().is_some_and(|object| has_condition(object, self.mode.condition())) {
            self.registry.engage(&self.mode.plane(&self.base, name));
        } else {
            self.registry.disengage(name);
        }
    }

    fn synced(&self, root: &Plane, _: usize) {
        if root.informers().is_some_and(|informers| informers.store(0).lock().is_absent()) {
            let kind = self.mode.kind();
            self.registry.set_error(Some(format!(
                "plane {} does not serve {}.{}/{VERSION}",
                root.name(),
                kind.plural,
                kind.group
            )));
        } else {
            self.registry.set_error(None);
            self.registry.set_listed();
        }
    }

    fn error_changed(&self, root: &Plane, _: usize) {
        if let Some((kind, error)) = root.informers().and_then(|informers| informers.error()) {
            self.registry.set_error(Some(format!("{kind}: {}", error.message)));
        } else if root.informers().is_some_and(|informers| !informers.store(0).lock().is_absent()) {
            self.registry.set_error(None);
        }
    }
}

/// Whether the object has the condition with status `True`.
fn has_condition(object: &[u8], wanted: &str) -> bool {
    #[derive(Deserialize)]
    struct Project {
        #[serde(default)]
        status: Status,
    }
    #[derive(Deserialize, Default)]
    struct Status {
        #[serde(default)]
        conditions: Vec<Condition>,
    }
    #[derive(Deserialize)]
    struct Condition {
        #[serde(rename = "type")]
        type_: String,
        status: String,
    }
    serde_json::from_slice::<Project>(object).is_ok_and(|project| {
        project
            .status
            .conditions
            .iter()
            .any(|condition| condition.type_ == wanted && condition.status == "True")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_engaged_only_if_it_is_ready() {
        for (project, ready) in [
            (r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#, true),
            (r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#, false),
            (r#"{"status":{"conditions":[{"type":"Other","status":"True"}]}}"#, false),
            (r#"{"status":{}}"#, false),
            (r#"{}"#, false),
            (r#"{"status":{"conditions":"x"}}"#, false),
        ] {
            assert_eq!(has_condition(project.as_bytes(), AccessMode::Path.condition()), ready, "{project}");
        }
    }
}
