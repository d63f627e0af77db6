//! Released: the kinds as the last release had them, for planes that are upgraded later than the manager.
//!
//! `crates/api/tests/released` has what others rely on of each; a definition is made of it again.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{Error, planes::Layout};

/// The definitions of the last release that a plane serves. `workloads` are no matter of cells.
pub fn kinds(layout: &Layout, plane: &str) -> Result<Vec<Value>, Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api/tests/released");
    let on_cell = layout.cells.iter().any(|cell| cell == plane);
    let plurals = ["workloads", "workloaddeployments", "instances"];
    let served = plurals.into_iter().filter(|plural| !on_cell || *plural != "workloads");
    served.map(|plural| definition(&folder.join(format!("{plural}.json")))).collect()
}

fn definition(file: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(file).map_err(Error::file(file))?;
    let mut spec: Value = serde_json::from_str(&text)
        .map_err(|err| Error::Unavailable(format!("{} is no recorded kind: {err}", file.display())))?;
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        version["schema"] = json!({"openAPIV3Schema": version["schema"]});
    }
    let name = format!(
        "{}.{}",
        spec["names"]["plural"].as_str().unwrap_or_default(),
        spec["group"].as_str().unwrap_or_default()
    );
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name}, "spec": spec,
    }))
}
