//! Rendered: what kubectl makes of a folder of `deploy/`, and of what an environment adds to it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, LazyLock},
};

use polis_testbed::{binaries::Binaries, manifest, pins};
use serde_json::{Value, json};

/// Kinds that belong to programs that no plane of ours has. They are looked at, not applied.
pub const ELSEWHERE: &[&str] = &[
    "GrantCreationPolicy",
    "PrometheusRule",
    "ProtectedResource",
    "Service.services.miloapis.com",
    "ServiceConfiguration",
    "ServiceMonitor",
    "Role.iam.miloapis.com",
];

static KUBECTL: LazyLock<PathBuf> = LazyLock::new(|| {
    let binaries = Binaries::ensure(&(Arc::new(|_: &str| ()) as polis_testbed::options::Say));
    binaries.unwrap_or_else(|err| panic!("no kubectl: {err}")).path(pins::KUBECTL)
});

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the suite lies in the repository").to_owned()
}

/// A text of the repository.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Every folder below this one that kustomize reads, by its path in the repository.
pub fn kustomizations(below: &str) -> Vec<String> {
    let mut found = Vec::new();
    if root().join(below).join("kustomization.yaml").is_file() {
        found.push(below.to_owned());
    }
    let entries = fs::read_dir(root().join(below)).expect("a folder of the repository");
    let folders = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    found.extend(names.iter().flat_map(|name| kustomizations(&format!("{below}/{name}"))));
    found
}

/// kubectl, with no plane to talk to.
pub fn kubectl() -> Command {
    Command::new(&*KUBECTL)
}

/// Runs kubectl with an input. The error is what it complains of.
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

/// The objects that a folder renders to.
#[derive(Clone)]
pub struct Rendered(pub Vec<Value>);

impl Rendered {
    /// Renders a folder of the repository. A component changes what others bring: it is rendered on top of the bare
    /// manager.
    pub fn of(folder: &str) -> Rendered {
        let head = &objects(folder, &text(&format!("{folder}/kustomization.yaml")))[0];
        if head["kind"] != "Component" {
            return Rendered::at(&root().join(folder));
        }
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let base = way_to_root(scratch.path());
        let on_top =
            format!("resources: [\"{base}/deploy/base/manager\"]\ncomponents: [\"{base}/{folder}\"]\n");
        fs::write(scratch.path().join("kustomization.yaml"), on_top).expect("a scratch file");
        Rendered::at(scratch.path())
    }

    /// Renders a component by itself: only what it brings, not what it changes.
    pub fn alone(folder: &str) -> Rendered {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let only = format!("components: [\"{}/{folder}\"]\n", way_to_root(scratch.path()));
        fs::write(scratch.path().join("kustomization.yaml"), only).expect("a scratch file");
        Rendered::at(scratch.path())
    }

    /// Renders a copy of an example, made as its page says: copied, the path to `deploy` changed, and the values.
    pub fn copy_of(example: &str, values: &[(&str, &str)]) -> Rendered {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        copy(example, scratch.path(), values);
        Rendered::at(scratch.path())
    }

    /// Renders a folder anywhere.
    pub fn at(folder: &Path) -> Rendered {
        let place = folder.canonicalize().expect("the folder is there").display().to_string();
        let rendered = run(kubectl(), &["kustomize", &place], "");
        Rendered(objects(&place, &rendered.unwrap_or_else(|err| panic!("{place} does not render: {err}"))))
    }

    /// The manager's Deployment; none where the folder brings none.
    pub fn deployment(&self) -> Option<&Value> {
        self.0.iter().find(|object| object["kind"] == "Deployment")
    }

    /// The object of a kind whose name begins so: generated names end in a hash.
    pub fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.0.iter().find(|object| {
            object["kind"] == kind
                && object["metadata"]["name"].as_str().is_some_and(|found| found.starts_with(name))
        })
    }

    /// The objects that the planes of ours have the kinds of.
    pub fn known(&self) -> Vec<&Value> {
        let elsewhere = |object: &&Value| {
            let group = word(&object["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
            let kind = word(&object["kind"]);
            ELSEWHERE.iter().any(|name| *name == kind || *name == format!("{kind}.{group}"))
        };
        self.0.iter().filter(|object| !elsewhere(object)).collect()
    }

    /// The user that the pods of the Deployment are.
    pub fn user(&self) -> String {
        let deployment = self.deployment().expect("a Deployment");
        let account = word(&deployment["spec"]["template"]["spec"]["serviceAccountName"]);
        format!("system:serviceaccount:{}:{account}", word(&deployment["metadata"]["namespace"]))
    }

    /// The value of an environment variable of the manager; empty where it has none.
    pub fn variable(&self, name: &str) -> &str {
        let Some(deployment) = self.deployment() else { return "" };
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let found = each(&container["env"]).find(|variable| variable["name"] == name);
        found.map_or("", |found| word(&found["value"]))
    }
}

/// Copies an example into a folder: the path to `deploy` leads to this repository, and values are changed.
pub fn copy(example: &str, to: &Path, values: &[(&str, &str)]) {
    let base = way_to_root(to);
    for file in fs::read_dir(root().join(example)).expect("an example").filter_map(Result::ok) {
        let mut text = fs::read_to_string(file.path()).expect("a text");
        text = text.replace("../../../../deploy", &format!("{base}/deploy"));
        for (from, to) in values {
            text = text.replace(from, to);
        }
        fs::write(to.join(file.file_name()), text).expect("a copy");
    }
}

/// Kustomize takes relative paths only.
fn way_to_root(from: &Path) -> String {
    let from = from.canonicalize().expect("the folder is there");
    let root = root().canonicalize().expect("the repository is there").display().to_string();
    format!("{}{}", "../".repeat(from.components().count() - 1), root.trim_start_matches('/'))
}

/// The objects of a YAML text.
pub fn objects(name: &str, text: &str) -> Vec<Value> {
    manifest::read(name, text).unwrap_or_else(|err| panic!("{err}"))
}

/// As kubectl takes several objects at once.
pub fn list(objects: &[&Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// The items of a list; none where there is no list.
pub fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// A text; empty where there is none.
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
