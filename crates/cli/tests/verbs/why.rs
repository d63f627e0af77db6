//! The rows of `docs/dev/why-coverage.md` that are brought about on embedded planes: the test writes each
//! condition to the API server, as the program that reports it does, and runs `polis why`.

use std::path::PathBuf;

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::kube::Api;
use polis_api::kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::installation::Installation;

/// A row of the page.
struct Row {
    reason: String,
    kind: String,
    type_: String,
    result: String,
    says: String,
}

/// The rows whose objects are in the project. Those of a deletion need a deletion.
fn rows() -> Vec<Row> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/dev/why-coverage.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [reason, object, brought_about, result, says] = cells.as_slice() else { return None };
        let (kind, type_) = object.trim_end_matches('`').split_once(" `")?;
        brought_about.contains("written").then(|| Row {
            reason: (*reason).to_owned(),
            kind: kind.to_owned(),
            type_: type_.to_owned(),
            result: (*result).to_owned(),
            says: (*says).to_owned(),
        })
    };
    page.lines().filter_map(row).collect()
}

impl Row {
    fn is_ok(&self) -> bool {
        self.result == "ok"
    }

    /// The condition of the row, and those that controllers set beside it.
    fn conditions(&self) -> Vec<Value> {
        let marker = ["Stalled", "Reconciling", "Degraded"].contains(&self.type_.as_str());
        let condition = |type_: &str, status: bool, reason: &str| {
            json!({"type": type_, "status": if status { "True" } else { "False" }, "reason": reason, "message": "",
                "lastTransitionTime": Timestamp::now().to_string()})
        };
        let mut conditions = vec![condition(&self.type_, self.is_ok() != marker, &self.reason)];
        let derived = match (self.kind.as_str(), self.type_.as_str()) {
            ("Instance", "Ready") => return conditions,
            ("Instance", _) if self.is_ok() => Some(("Ready", true, "Running")),
            ("Instance", "QuotaGranted") if self.result.starts_with("blocked") => {
                Some(("Ready", false, "PendingQuota"))
            }
            ("Instance", "QuotaGranted" | "ReferencedDataReady") => {
                Some(("Ready", false, "SchedulingGatesPresent"))
            }
            ("Instance", _) => Some(("Ready", false, self.reason.as_str())),
            (_, "Degraded") if !self.is_ok() => Some(("Stalled", true, self.reason.as_str())),
            (_, "Progressing") if self.result.starts_with("blocked") => {
                Some(("Stalled", true, self.reason.as_str()))
            }
            (_, "Progressing") if !self.is_ok() => Some(("Reconciling", true, self.reason.as_str())),
            _ => None,
        };
        conditions.extend(derived.map(|(type_, status, reason)| condition(type_, status, reason)));
        conditions
    }

    /// The status of the row's object: what it has on a healthy workload, with these conditions.
    fn status(&self, healthy: &Value) -> Value {
        let mut status = healthy.clone();
        match self.kind.as_str() {
            "Workload placement" => {
                status["placements"][0]["conditions"] = self.conditions().into();
            }
            _ => status["conditions"] = self.conditions().into(),
        }
        status
    }

    /// What differs between the row and the output of `polis why`. The objects are new: a state that has a
    /// deadline has not passed it.
    fn difference(&self, code: i32, diagnosis: &Value) -> Option<String> {
        let findings = diagnosis["findings"].as_array().cloned().unwrap_or_default();
        let expected = if self.result.starts_with("blocked") { 7 } else { 0 };
        let Row { reason, kind, type_, says, .. } = self;
        let text = |value: &Value| value.as_str().unwrap_or_default().replace('|', "\\|");
        let explained = match self.is_ok() {
            true => findings.is_empty(),
            false => findings.iter().any(|finding| {
                finding["reason"] == *reason
                    && says.starts_with(&format!(
                        "{}: {}",
                        text(&finding["plane"]),
                        text(&finding["meaning"])
                    ))
                    && says.ends_with(&format!("→ {}", text(&finding["advice"])))
            }),
        };
        let differs = code != expected || !explained;
        differs.then(|| {
            format!("{reason} on {kind} {type_}: exit code {code}, expected {expected}: {diagnosis}")
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_the_planes_are_explained_as_the_page_says() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    installation.stop_controllers();
    let project = installation.project("default");
    let (workloads, deployments, instances) = (
        Api::<Workload>::default_namespaced(project.clone()),
        Api::<WorkloadDeployment>::default_namespaced(project.clone()),
        Api::<Instance>::default_namespaced(project),
    );
    let deployment = deployments.list(&Default::default()).await.unwrap().items.remove(0);
    let instance = instances.list(&Default::default()).await.unwrap().items.remove(0);
    let workload = workloads.get("web").await.unwrap();
    let name = |metadata: &polis_api::kube::api::ObjectMeta| metadata.name.clone().unwrap_or_default();
    let params = PatchParams::default();
    let set = async |kind: &str, status: &Value| {
        let patch = Patch::Merge(json!({"status": status}));
        match kind {
            "WorkloadDeployment" => {
                deployments.patch_status(&name(&deployment.metadata), &params, &patch).await.map(drop)
            }
            "Instance" => instances.patch_status(&name(&instance.metadata), &params, &patch).await.map(drop),
            _ => workloads.patch_status("web", &params, &patch).await.map(drop),
        }
        .unwrap_or_else(|error| panic!("{kind}: {error}"));
    };
    let rows = rows();
    assert!(rows.len() > 60, "{} rows", rows.len());
    let mut differences = Vec::new();
    for row in &rows {
        let healthy = match row.kind.as_str() {
            "WorkloadDeployment" => json!(deployment.status),
            "Instance" => json!(instance.status),
            _ => json!(workload.status),
        };
        set(&row.kind, &row.status(&healthy)).await;
        let result = installation.polis("why web -o json").await;
        let diagnosis = serde_json::from_str(&result.stdout).unwrap_or_default();
        differences.extend(row.difference(result.code, &diagnosis));
        set(&row.kind, &healthy).await;
    }
    assert!(
        differences.is_empty(),
        "{} of {} rows:\n{}",
        differences.len(),
        rows.len(),
        differences.join("\n")
    );
}
