//! The CRDs of the last release, for planes that are upgraded after the manager.
//!
//! They are rebuilt from the recorded specs in `crates/api/tests/released`.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{Error, planes::PlaneLayout};

/// The CRDs of the last release that a plane serves. Cells have no `workloads`.
pub fn crds(layout: &PlaneLayout, plane: &str) -> Result<Vec<Value>, Error> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api/tests/released");
    let on_cell = layout.cells.iter().any(|cell| cell == plane);
    let plurals = ["workloads", "workloaddeployments", "instances"];
    let served = plurals.into_iter().filter(|plural| !on_cell || *plural != "workloads");
    served.map(|plural| definition(&dir.join(format!("{plural}.json")))).collect()
}

fn definition(file: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(file).map_err(Error::file(file))?;
    let mut spec: Value = serde_json::from_str(&text)
        .map_err(|err| Error::Unavailable(format!("{} is not a recorded CRD: {err}", file.display())))?;
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
