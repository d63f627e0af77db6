//! Rendering: what kubectl makes of a folder of `deploy/`.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use polis_testbed::{Bed, manifest, plane::LONE};
use serde_json::Value;

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

/// Runs kubectl on the plane of the suite. The error is what it complains of.
pub fn kubectl(bed: &Bed, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = bed
        .kubectl(LONE)
        .expect("kubectl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
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
pub struct Rendered(pub Vec<Value>);

impl Rendered {
    /// Renders a folder. A component changes what others bring: it is rendered on top of the bare manager.
    pub fn of(bed: &Bed, folder: &str) -> Rendered {
        let head = &objects(folder, &text(&format!("{folder}/kustomization.yaml")))[0];
        let rendered = match head["kind"] == "Component" {
            false => kubectl(bed, &["kustomize", &root().join(folder).display().to_string()], ""),
            true => {
                let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch folder");
                let here = scratch.path().canonicalize().expect("it is there");
                // Kustomize takes relative paths only.
                let up = "../".repeat(here.components().count() - 1);
                let base = root().display().to_string();
                let base = format!("{up}{}", base.trim_start_matches('/'));
                let on_top = format!(
                    "resources: [\"{base}/deploy/base/manager\"]\ncomponents: [\"{base}/{folder}\"]\n"
                );
                fs::write(here.join("kustomization.yaml"), on_top).expect("a scratch file");
                kubectl(bed, &["kustomize", &here.display().to_string()], "")
            }
        };
        Rendered(objects(folder, &rendered.unwrap_or_else(|err| panic!("{folder} does not render: {err}"))))
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
}

/// The objects of a YAML text.
pub fn objects(name: &str, text: &str) -> Vec<Value> {
    manifest::read(name, text).unwrap_or_else(|err| panic!("{err}"))
}

/// As kubectl takes several objects at once.
pub fn list(objects: &[&Value]) -> String {
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}
