//! The projects of a Milo platform: each is a plane behind a path of the same host.
//!
//! A project is engaged while its `Project` object says `Ready`. It is disengaged when the object is gone or no longer ready,
//! and engaged anew, from an empty cache, when it comes back.

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

/// The projects that a platform has, as seen on its discovery plane.
#[derive(Debug)]
pub struct MiloProjects {
    root: Plane,
    host: Option<Plane>,
    labels: Option<String>,
}

impl MiloProjects {
    /// All projects of the platform behind `root`.
    pub fn new(root: Plane) -> Self {
        Self { root, host: None, labels: None }
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
        let watch = Watch::kind(Kind {
            group: GROUP.into(),
            version: VERSION.into(),
            plural: "projects".into(),
            kind: "Project".into(),
            scope: Scope::Cluster,
        });
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
        let observer = Arc::new(Projects { base, roster });
        Follow { plane: root, seen, watch: 0, observer, gate: Arc::new(Gate::new(1)) }.run().boxed()
    }
}

struct Projects {
    base: Plane,
    roster: Roster,
}

impl Observer for Projects {
    fn changed(&self, _: &Plane, _: usize, change: Change) {
        let name = change.place().name;
        if change.after.as_deref().is_some_and(is_ready) {
            self.roster.engage(&self.base.of_project(name));
        } else {
            self.roster.disengage(name);
        }
    }

    fn synced(&self, root: &Plane, _: usize) {
        if root.seen().is_some_and(|seen| seen.store(0).lock().is_absent()) {
            self.roster
                .fault(Some(format!("plane {} does not serve projects.{GROUP}/{VERSION}", root.name())));
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

/// Whether a project says that it is ready.
fn is_ready(project: &[u8]) -> bool {
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
    serde_json::from_slice::<Project>(project).is_ok_and(|project| {
        project
            .status
            .conditions
            .iter()
            .any(|condition| condition.what == "Ready" && condition.status == "True")
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
            assert_eq!(is_ready(project.as_bytes()), ready, "{project}");
        }
    }
}
