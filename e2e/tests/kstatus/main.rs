//! What kstatus (`sigs.k8s.io/cli-utils/pkg/kstatus`, by which Flux and kpt wait for an object) and the
//! health script for Argo CD take Workloads and WorkloadDeployments for, in every state of a rollout.
//!
//! The statuses are those that the controllers of the cell and of the project write. The library runs as the
//! Go program in `testbed/kstatus`.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use jiff::Timestamp;
use polis_api::compute::{Instance, InstanceControllerStatus, InstanceStatus, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::{annotations, labels};
use polis_core::cities::Cities;
use polis_core::contact::Contact;
use polis_core::deployment_status::{self, DeploymentStatusInput};
use polis_core::networks::NetworkState;
use polis_core::referenced_data::DeliveryState;
use polis_core::workload_status::{self, WorkloadStatusInput};
use polis_core::{Time, hub_copy, metadata, owner};
use polis_testbed::{go, pins};
use polis_testing::builders;
use serde_json::Value;

const NAME: &str = "web";

fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(1_800_000_000 + seconds).unwrap())
}

/// A workload of two instances in one city, with its deployment in the project and in the cell.
#[derive(Clone)]
struct Rollout {
    workload: Workload,
    deployment: WorkloadDeployment,
    copy: WorkloadDeployment,
    instances: Vec<Instance>,
    networks: Vec<String>,
}

impl Rollout {
    /// A workload that was just created; its deployment is on the way.
    fn new() -> Self {
        let mut workload = builders::mk_workload("shop", NAME, &["dfw"]);
        workload.spec.placements[0].scale_settings.min_replicas = 2;
        stored(&mut workload.metadata, NAME);
        let mut deployment = builders::mk_deployment("shop", NAME, "dfw", 2);
        stored(&mut deployment.metadata, NAME);
        deployment.spec.workload_ref.uid = "uid-web".into();
        deployment.metadata.owner_references = Some(vec![owner::controller_reference(&workload)]);
        let labels = metadata::map([(labels::WORKLOAD_UID, "uid-web")]);
        deployment.metadata.labels = Some(labels);
        let mut copy = deployment.clone();
        let revision = metadata::map([(annotations::SOURCE_REVISION, "uid-web.1")]);
        copy.metadata.annotations = Some(revision);
        Rollout { workload, deployment, copy, instances: Vec::new(), networks: Vec::new() }
    }

    /// With instances that are ready for this reason, or not: `Running` is ready.
    fn with(mut self, reasons: &[&str]) -> Self {
        self.instances =
            (0..).zip(reasons).map(|(ordinal, why)| mk_instance(&self.copy, ordinal, why)).collect();
        self
    }

    /// The cell reports, the federator copies it, the workload controller sums it up; at a time.
    fn reported(mut self, seconds: i64) -> Self {
        let now = at(seconds);
        let input = DeploymentStatusInput {
            instances: &self.instances,
            networks: &NetworkState::Ready,
            data: &DeliveryState::Unused,
            cell: Some("dfw-1"),
            city: None,
            action: None,
        };
        if let Some(status) = deployment_status::status(&self.copy, &input, &now) {
            self.copy.status = Some(status);
        }
        if let Some(status) =
            hub_copy::project_status(&self.deployment, &self.copy, &Contact::Heard { recheck: None })
        {
            self.deployment.status = Some(status);
        }
        self.summed_up(seconds)
    }

    /// The workload controller alone.
    fn summed_up(mut self, seconds: i64) -> Self {
        let deployments = [self.deployment.clone()];
        let input = WorkloadStatusInput {
            deployments: &deployments,
            cities: &Cities::Any,
            skipped: &[],
            missing_networks: &self.networks,
        };
        if let Some(status) = workload_status::status(&self.workload, &input, &at(seconds)) {
            self.workload.status = Some(status);
        }
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

fn stored(metadata: &mut polis_api::kube::api::ObjectMeta, name: &str) {
    metadata.name = Some(name.into());
    metadata.uid = Some(format!("uid-{name}"));
    metadata.generation = Some(1);
    metadata.creation_timestamp = Some(at(0));
}

fn mk_instance(deployment: &WorkloadDeployment, ordinal: u32, reason: &str) -> Instance {
    let mut instance = builders::mk_instance(deployment, ordinal);
    instance.metadata.creation_timestamp = Some(at(1));
    instance.metadata.owner_references = Some(vec![owner::controller_reference(deployment)]);
    let hash = instance.spec.controller.as_ref().unwrap().template_hash.clone();
    let condition = |kind: &str, ready: bool| Condition {
        message: "the message of the provider".into(),
        ..builders::mk_condition(kind, if ready { "True" } else { "False" }, reason, &at(2))
    };
    let ready = reason == "Running";
    instance.status = Some(InstanceStatus {
        controller: Some(InstanceControllerStatus { observed_template_hash: hash }),
        conditions: vec![condition("Programmed", ready), condition("Ready", ready)],
        ..Default::default()
    });
    instance
}

/// What the library says about each object: `Current`, `InProgress`, `Failed`, `Terminating`.
fn kstatus(objects: &[Value]) -> Vec<String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/kstatus");
    let mut program = Command::new(go::find().expect("a Go toolchain").path)
        .args(["run", "."])
        .envs(pins::BUILD_ENV)
        .current_dir(module)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("go starts");
    let input = serde_json::to_vec(objects).unwrap();
    program.stdin.take().unwrap().write_all(&input).unwrap();
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success(), "testbed/kstatus ended with {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

/// Each situation, and what kstatus has to say about it.
fn situations() -> Vec<(&'static str, Rollout, &'static str)> {
    let both = ["Running", "Running"];
    let complete = || Rollout::new().with(&both).reported(5);
    let scaled = |rollout: &mut Rollout| {
        rollout.workload.metadata.generation = Some(2);
        rollout.deployment.metadata.generation = Some(2);
    };
    vec![
        ("no cell has reported", Rollout::new().summed_up(5), "InProgress"),
        ("no cell reports for two minutes", Rollout::new().summed_up(5).summed_up(130), "Failed"),
        ("the first of two is ready", Rollout::new().with(&["Running"]).reported(5), "InProgress"),
        ("the second starts", Rollout::new().with(&["Running", "Starting"]).reported(5), "InProgress"),
        (
            "the second does not open its port",
            Rollout::new().with(&["Running", "Starting"]).reported(5).reported(130),
            "Failed",
        ),
        ("all are ready", complete(), "Current"),
        (
            "a broken rollout: one serves, the image of the other cannot be used",
            complete().with(&["Running", "ImageUnavailable"]).reported(9),
            "Failed",
        ),
        ("one crashes", complete().with(&["Running", "InstanceCrashing"]).reported(9), "Failed"),
        (
            "quota is denied",
            Rollout::new().with(&["Running", "PendingQuota"]).reported(5).reported(11),
            "Failed",
        ),
        (
            "the network does not exist",
            Rollout::new().change(|rollout| rollout.networks = vec!["shop/net".into()]).summed_up(5),
            "Failed",
        ),
        ("a new spec that no controller has seen", complete().change(scaled), "InProgress"),
        ("a new spec that the cell has not seen", complete().change(scaled).summed_up(20), "InProgress"),
        (
            "the broken rollout, repaired",
            complete().with(&["Running", "ImageUnavailable"]).reported(9).with(&both).reported(20),
            "Current",
        ),
        (
            "being deleted",
            complete().change(|rollout| {
                rollout.workload.metadata.deletion_timestamp = Some(at(30));
                rollout.deployment.metadata.deletion_timestamp = Some(at(30));
            }),
            "Terminating",
        ),
    ]
}

/// The objects with their descriptions and the expected result. A deployment without a status has no
/// conditions; kstatus takes such an object for current.
fn objects() -> Vec<(String, Value, &'static str)> {
    let situations = situations();
    let workloads = situations.iter().map(|(name, rollout, state)| {
        (format!("Workload, {name}"), serde_json::to_value(&rollout.workload).unwrap(), *state)
    });
    let reported = situations.iter().filter(|(_, rollout, _)| rollout.deployment.status.is_some());
    let deployments = reported.map(|(name, rollout, state)| {
        let deployment = serde_json::to_value(&rollout.deployment).unwrap();
        (format!("WorkloadDeployment, {name}"), deployment, *state)
    });
    workloads.chain(deployments).collect()
}

#[test]
fn kstatus_sees_every_state_of_a_rollout_as_it_is() {
    let objects = objects();
    let values: Vec<Value> = objects.iter().map(|(_, object, _)| object.clone()).collect();
    let seen = kstatus(&values);
    assert_eq!(seen.len(), objects.len());
    for ((situation, _, expected), seen) in objects.into_iter().zip(seen) {
        assert_eq!(seen, expected, "{situation}");
    }
}

/// A JSON value as a Lua expression.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".into(),
        Value::String(text) => format!("[==[{text}]==]"),
        Value::Array(items) => format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("[ [==[{key}]==] ]={}", lua(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

#[test]
fn argo_cd_sees_every_state_of_a_rollout_as_it_is() {
    let script = include_str!("../../../docs/operations/examples/argocd/health.lua");
    for (situation, object, expected) in objects() {
        let expected = match expected {
            "Current" => "Healthy",
            "Failed" => "Degraded",
            "InProgress" => "Progressing",
            // Argo CD shows the deletion itself; the health is the last one.
            _ => "Healthy",
        };
        let program = format!(
            "local obj = {}\nlocal health = (function() {script} end)()\nreturn health.status",
            lua(&object)
        );
        let status: String = mlua::Lua::new().load(program).eval().unwrap();
        assert_eq!(status, expected, "{situation}");
    }
}
