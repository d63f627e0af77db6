//! Manifests as kubectl renders them from `deploy/` and from the examples.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, LazyLock},
};

use polis_testbed::{binaries::Binaries, manifest, pins};
use serde_json::{Value, json};

/// Kinds of programs that the suite's planes do not run. They are rendered but not applied.
pub const NOT_SERVED: &[&str] = &[
    "GrantCreationPolicy",
    "PrometheusRule",
    "ProtectedResource",
    "Service.services.miloapis.com",
    "ServiceConfiguration",
    "ServiceMonitor",
    "Role.iam.miloapis.com",
];

static KUBECTL: LazyLock<PathBuf> = LazyLock::new(|| {
    let binaries = Binaries::ensure(&(Arc::new(|_: &str| ()) as polis_testbed::ProgressFn));
    binaries.unwrap_or_else(|err| panic!("no kubectl: {err}")).path(pins::KUBECTL)
});

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the suite is in the repository").to_owned()
}

/// A file of the repository.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// All directories below this one that have a kustomization, by their path in the repository.
pub fn kustomizations(below: &str) -> Vec<String> {
    let mut found = Vec::new();
    if root().join(below).join("kustomization.yaml").is_file() {
        found.push(below.to_owned());
    }
    let entries = fs::read_dir(root().join(below)).expect("a directory of the repository");
    let dirs = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = dirs.map(|dir| dir.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    found.extend(names.iter().flat_map(|name| kustomizations(&format!("{below}/{name}"))));
    found
}

/// kubectl without a cluster.
pub fn kubectl() -> Command {
    Command::new(&*KUBECTL)
}

/// Runs kubectl with an input; the error is its standard error.
pub fn run(mut kubectl: Command, arguments: &[&str], input: &str) -> Result<String, String> {
    let piped = kubectl.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("kubectl runs");
    let mut pipe = child.stdin.take().expect("piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || _ = pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("kubectl ends");
    writer.join().expect("writing does not panic");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The objects that a directory renders to.
#[derive(Clone)]
pub struct RenderedManifests(pub Vec<Value>);

impl RenderedManifests {
    /// Renders a directory of the repository. A component patches other objects, so it is rendered on top of
    /// the base manager.
    pub fn of(dir: &str) -> RenderedManifests {
        let head = &objects(dir, &text(&format!("{dir}/kustomization.yaml")))[0];
        if head["kind"] != "Component" {
            return RenderedManifests::at(&root().join(dir));
        }
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let base = path_to_root(scratch.path());
        let on_top = format!("resources: [\"{base}/deploy/base/manager\"]\ncomponents: [\"{base}/{dir}\"]\n");
        fs::write(scratch.path().join("kustomization.yaml"), on_top).expect("a scratch file");
        RenderedManifests::at(scratch.path())
    }

    /// Renders only the objects that a component adds.
    pub fn of_component(dir: &str) -> RenderedManifests {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let only = format!("components: [\"{}/{dir}\"]\n", path_to_root(scratch.path()));
        fs::write(scratch.path().join("kustomization.yaml"), only).expect("a scratch file");
        RenderedManifests::at(scratch.path())
    }

    /// Renders a copy of an example, made as its page describes: with another path to `deploy` and other
    /// values.
    pub fn copy_of(example: &str, values: &[(&str, &str)]) -> RenderedManifests {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        copy(example, scratch.path(), values);
        RenderedManifests::at(scratch.path())
    }

    /// Renders any directory.
    pub fn at(dir: &Path) -> RenderedManifests {
        let path = dir.canonicalize().expect("the directory exists").display().to_string();
        let rendered = run(kubectl(), &["kustomize", &path], "");
        RenderedManifests(objects(
            &path,
            &rendered.unwrap_or_else(|err| panic!("failed to render {path}: {err}")),
        ))
    }

    /// The manager's Deployment, if there is one.
    pub fn deployment(&self) -> Option<&Value> {
        self.0.iter().find(|object| object["kind"] == "Deployment")
    }

    /// The object of a kind whose name starts with this text: generated names end with a hash.
    pub fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.0.iter().find(|object| {
            object["kind"] == kind
                && object["metadata"]["name"].as_str().is_some_and(|found| found.starts_with(name))
        })
    }

    /// The objects whose kinds the suite's planes serve.
    pub fn served(&self) -> Vec<&Value> {
        let not_served = |object: &&Value| {
            let group = as_text(&object["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
            let kind = as_text(&object["kind"]);
            NOT_SERVED.iter().any(|name| *name == kind || *name == format!("{kind}.{group}"))
        };
        self.0.iter().filter(|object| !not_served(object)).collect()
    }

    /// The user of the Deployment's service account.
    pub fn user(&self) -> String {
        let deployment = self.deployment().expect("a Deployment");
        let account = as_text(&deployment["spec"]["template"]["spec"]["serviceAccountName"]);
        format!("system:serviceaccount:{}:{account}", as_text(&deployment["metadata"]["namespace"]))
    }

    /// The value of an environment variable of the manager; empty if it is not set.
    pub fn variable(&self, name: &str) -> &str {
        let Some(deployment) = self.deployment() else { return "" };
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let found = items(&container["env"]).find(|variable| variable["name"] == name);
        found.map_or("", |found| as_text(&found["value"]))
    }
}

/// Copies an example to a directory, with the path to this repository's `deploy` and other values.
pub fn copy(example: &str, to: &Path, values: &[(&str, &str)]) {
    let base = path_to_root(to);
    for file in fs::read_dir(root().join(example)).expect("an example").filter_map(Result::ok) {
        let mut text = fs::read_to_string(file.path()).expect("a text");
        text = text.replace("../../../../deploy", &format!("{base}/deploy"));
        for (from, to) in values {
            text = text.replace(from, to);
        }
        fs::write(to.join(file.file_name()), text).expect("a copy");
    }
}

/// The relative path to the repository: kustomize accepts no absolute paths.
fn path_to_root(from: &Path) -> String {
    let from = from.canonicalize().expect("the directory exists");
    let root = root().canonicalize().expect("the repository exists").display().to_string();
    format!("{}{}", "../".repeat(from.components().count() - 1), root.trim_start_matches('/'))
}

/// The objects of a YAML text.
pub fn objects(name: &str, text: &str) -> Vec<Value> {
    manifest::read(name, text).unwrap_or_else(|err| panic!("{err}"))
}

/// A List of objects, as input for kubectl.
pub fn list(objects: &[&Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// The items of a list; none if the value is not a list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The string; empty if the value is not a string.
pub fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
