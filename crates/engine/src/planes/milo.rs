//! The projects of a Milo platform: each is a plane behind a path of the same host, or a service of its own.
//!
//! A project is engaged while its `Project` object says `Ready`. It is disengaged when the object is gone or no longer ready,
//! and engaged anew, from an empty cache, when it comes back. Inside the cluster that runs the project planes the object is a
//! `ProjectControlPlane` that says `ControlPlaneReady` ([`MiloProjects::by_service`]).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;

use super::{Provider, Roster};
use crate::Plane;
use crate::cache::{Change, Seen};
use crate::discovery::Discovery;
use crate::kind::{Kind, Scope};
use crate::watch::{Follow, Gate, Observer, Watch};

const GROUP: &str = "resourcemanager.miloapis.com";
const VERSION: &str = "v1alpha1";
const INFRASTRUCTURE: &str = "infrastructure.miloapis.com";
/// Where the API server of a project listens within the cluster that runs it.
const SERVICE_PORT: u16 = 6443;

fn service_host(project: &str) -> String {
    format!("milo-apiserver.project-{project}.svc.cluster.local")
}

/// How the planes of projects are found and reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By `Project`, at a path of the host.
    Path,
    /// By `ProjectControlPlane`, at the project's own service.
    Service,
}

impl Way {
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
            scope: Scope::Cluster,
        }
    }

    /// The condition that says that the plane can be used.
    fn condition(self) -> &'static str {
        match self {
            Self::Path => "Ready",
            Self::Service => "ControlPlaneReady",
        }
    }

    fn plane(self, host: &Plane, project: &str) -> Plane {
        match self {
            Self::Path => host.of_project(project),
            Self::Service => host.elsewhere(project, &service_host(project), SERVICE_PORT),
        }
    }
}

/// The projects that a platform has, as seen on its discovery plane.
#[derive(Debug)]
pub struct MiloProjects {
    root: Plane,
    host: Option<Plane>,
    labels: Option<String>,
    way: Way,
}

impl MiloProjects {
    /// All projects of the platform behind `root`.
    pub fn new(root: Plane) -> Self {
        Self { root, host: None, labels: None, way: Way::Path }
    }

    /// Projects are found by their control planes, and reached at the service of each: for a manager in the cluster that runs
    /// them. Credentials and authority stay those of the host.
    pub fn by_service(mut self) -> Self {
        self.way = Way::Service;
        self
    }

    /// Projects are served by this host, not by the one that lists them, or with other credentials.
    pub fn served_by(mut self, host: Plane) -> Self {
        self.host = Some(host);
        self
    }

    /// Only the projects whose labels match the selector. One that stops matching is disengaged.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    fn watch(&self) -> Watch {
        let watch = Watch::kind(self.way.kind());
        match &self.labels {
            Some(labels) => watch.labels(labels.clone()),
            None => watch,
        }
    }
}

impl Plane {
    /// The plane of a project of the platform behind this one.
    pub fn of_project(&self, project: &str) -> Plane {
        self.under(project, &format!("/apis/{GROUP}/{VERSION}/projects/{project}/control-plane"))
    }
}

impl Provider for MiloProjects {
    fn run(self: Box<Self>, roster: Roster) -> BoxFuture<'static, ()> {
        let seen = Arc::new(Seen::new(roster.set.id, Arc::from([self.watch()])));
        let root = self.root.bound_to(&roster.set.env, Some(seen.clone()));
        // Kinds are installed once for all projects: one project's answer is every project's answer. Not the root's, which may
        // hide kinds that are meant for projects only.
        let host = self.host.unwrap_or_else(|| root.clone());
        let base = host.bound_to(&roster.set.env, None).sharing_discovery(Arc::new(Discovery::default()));
        let observer = Arc::new(Projects { base, way: self.way, roster });
        Follow { plane: root, seen, watch: 0, observer, gate: Arc::new(Gate::new(1)) }.run().boxed()
    }
}

struct Projects {
    base: Plane,
    way: Way,
    roster: Roster,
}

impl Observer for Projects {
    fn changed(&self, _: &Plane, _: usize, change: Change) {
        let name = change.place().name;
        if change.after.as_deref().is_some_and(|object| says(object, self.way.condition())) {
            self.roster.engage(&self.way.plane(&self.base, name));
        } else {
            self.roster.disengage(name);
        }
    }

    fn synced(&self, root: &Plane, _: usize) {
        if root.seen().is_some_and(|seen| seen.store(0).lock().is_absent()) {
            let kind = self.way.kind();
            self.roster.fault(Some(format!(
                "plane {} does not serve {}.{}/{VERSION}",
                root.name(),
                kind.plural,
                kind.group
            )));
        } else {
            self.roster.fault(None);
            self.roster.listed();
        }
    }

    fn troubled(&self, root: &Plane, _: usize) {
        if let Some((kind, trouble)) = root.seen().and_then(|seen| seen.trouble()) {
            self.roster.fault(Some(format!("{kind}: {}", trouble.message)));
        } else if root.seen().is_some_and(|seen| !seen.store(0).lock().is_absent()) {
            self.roster.fault(None);
        }
    }
}

/// Whether an object says that a condition is true.
fn says(object: &[u8], wanted: &str) -> bool {
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
        what: String,
        status: String,
    }
    serde_json::from_slice::<Project>(object).is_ok_and(|project| {
        project
            .status
            .conditions
            .iter()
            .any(|condition| condition.what == wanted && condition.status == "True")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_engaged_only_if_it_says_ready() {
        for (project, ready) in [
            (r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#, true),
            (r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#, false),
            (r#"{"status":{"conditions":[{"type":"Other","status":"True"}]}}"#, false),
            (r#"{"status":{}}"#, false),
            (r#"{}"#, false),
            (r#"{"status":{"conditions":"x"}}"#, false),
        ] {
            assert_eq!(says(project.as_bytes(), Way::Path.condition()), ready, "{project}");
        }
    }
}
