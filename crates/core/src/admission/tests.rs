//! Tests of the validation rules, one row each, and properties of admitted workloads.

use std::collections::BTreeMap;

use polis_api::annotations::SSH_KEYS;
use polis_api::compute::{
    ContainerResources, DiskPopulator, DiskResources, DiskSource, DiskSpec, DiskTemplate, EmbeddedMetadata,
    FilesystemPopulator, ImagePopulator, ImagePullSecret, InstanceVolume, MetricSpec, MetricTarget,
    NamedPort, ResourceMetric, SandboxContainer, VirtualMachineRuntime, VolumeAttachment, Workload,
};
use polis_api::k8s_openapi::api::core::v1::{ConfigMapVolumeSource, KeyToPath, SecretVolumeSource};
use polis_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::cities::mk_cities;
use crate::testing::{deleting, mk_placement, mk_template, mk_workload};

/// A workload of one container with every kind of volume, ports, and a metric.
fn mk_sandbox() -> Workload {
    let mut workload = mk_workload("web", &["dfw"]);
    let spec = &mut workload.spec.template.spec;
    spec.volumes = vec![
        mk_disk("data", Some("20Gi"), mk_filesystem()),
        mk_config_map("settings"),
        InstanceVolume {
            name: "keys".into(),
            secret: Some(SecretVolumeSource::default()),
            ..Default::default()
        },
    ];
    let container = &mut spec.runtime.sandbox.as_mut().unwrap().containers[0];
    container.volume_attachments =
        vec![mk_mount("data", "/data"), mk_mount("settings", "/etc/app"), mk_mount("keys", "/keys")];
    container.ports = vec![mk_port("http", 8080)];
    workload.spec.placements[0].scale_settings.max_replicas = Some(3);
    workload.spec.placements[0].scale_settings.metrics =
        vec![mk_metric("cpu", MetricTarget { average_utilization: Some(70), ..Default::default() })];
    workload
}

/// A virtual machine that boots from an image.
fn mk_machine() -> Workload {
    let mut workload = mk_workload("vm", &["dfw"]);
    let template = &mut workload.spec.template;
    let annotations = BTreeMap::from([(SSH_KEYS.to_owned(), format!("ada:{}", ssh::mk_key()))]);
    template.metadata = Some(EmbeddedMetadata { annotations, ..Default::default() });
    template.spec.volumes = vec![mk_disk("boot", None, mk_image())];
    template.spec.runtime.sandbox = None;
    template.spec.runtime.virtual_machine = Some(VirtualMachineRuntime {
        volume_attachments: vec![VolumeAttachment { name: "boot".into(), mount_path: None }],
        ports: vec![mk_port("ssh", 22)],
    });
    workload
}

fn mk_image() -> Option<DiskPopulator> {
    let image = ImagePopulator { name: "datumcloud/ubuntu-2204-lts".into() };
    Some(DiskPopulator { image: Some(image), filesystem: None })
}

fn mk_filesystem() -> Option<DiskPopulator> {
    Some(DiskPopulator { image: None, filesystem: Some(FilesystemPopulator { type_: "ext4".into() }) })
}

fn mk_disk(name: &str, size: Option<&str>, populator: Option<DiskPopulator>) -> InstanceVolume {
    let requests = |size: &str| BTreeMap::from([("storage".to_owned(), Quantity(size.to_owned()))]);
    let resources = size.map(|size| DiskResources { requests: requests(size) });
    let spec = DiskSpec { resources, populator, ..Default::default() };
    let disk = DiskSource { device_name: None, template: DiskTemplate { metadata: None, spec } };
    InstanceVolume { name: name.into(), disk: Some(disk), ..Default::default() }
}

fn mk_config_map(name: &str) -> InstanceVolume {
    let map = ConfigMapVolumeSource { name: "settings".into(), ..Default::default() };
    InstanceVolume { name: name.into(), config_map: Some(map), ..Default::default() }
}

fn mk_mount(name: &str, path: &str) -> VolumeAttachment {
    VolumeAttachment { name: name.into(), mount_path: Some(path.into()) }
}

fn mk_port(name: &str, port: i32) -> NamedPort {
    NamedPort { name: name.into(), port, protocol: None }
}

fn mk_metric(name: &str, target: MetricTarget) -> MetricSpec {
    MetricSpec { resource: Some(ResourceMetric { name: name.into(), target }) }
}

fn container(workload: &mut Workload) -> &mut SandboxContainer {
    &mut workload.spec.template.spec.runtime.sandbox.as_mut().unwrap().containers[0]
}

fn machine(workload: &mut Workload) -> &mut VirtualMachineRuntime {
    workload.spec.template.spec.runtime.virtual_machine.as_mut().unwrap()
}

fn volume(workload: &mut Workload, index: usize) -> &mut InstanceVolume {
    &mut workload.spec.template.spec.volumes[index]
}

fn disk(workload: &mut Workload, index: usize) -> &mut DiskSpec {
    &mut volume(workload, index).disk.as_mut().unwrap().template.spec
}

fn set_size(workload: &mut Workload, index: usize, size: &str) {
    let requests = BTreeMap::from([("storage".to_owned(), Quantity(size.into()))]);
    disk(workload, index).resources = Some(DiskResources { requests });
}

fn set_key(workload: &mut Workload, keys: &str) {
    let metadata = workload.spec.template.metadata.get_or_insert_default();
    metadata.annotations.insert(SSH_KEYS.into(), keys.into());
}

fn metric_target(workload: &mut Workload) -> &mut MetricTarget {
    &mut workload.spec.placements[0].scale_settings.metrics[0].resource.as_mut().unwrap().target
}

/// The errors of a workload, as `path Reason`, with `spec.template.spec` written as `~`.
fn errors_of(workload: &Workload, before: Option<&Workload>) -> Vec<String> {
    let errors = validate(workload, before, &mk_cities(&["dfw", "ord"]));
    let short = |error: FieldError| {
        let reason = error.kind.reason().trim_start_matches("FieldValue");
        format!("{} {reason}", error.path).replace("spec.template.spec.", "~.")
    };
    errors.into_iter().map(short).collect()
}

/// One rule: its number, an edit that violates it, and the expected errors.
type Row = (&'static str, fn(&mut Workload), &'static [&'static str]);

fn check_rows(base: fn() -> Workload, rows: &[Row]) {
    assert_eq!(errors_of(&base(), None), [""; 0], "the base is valid");
    for (rule, violate, expected) in rows {
        let mut workload = base();
        violate(&mut workload);
        assert_eq!(errors_of(&workload, None), *expected, "rule {rule}, create");
        // The same errors on an update of a workload with another template and placement.
        let mut before = base();
        before.spec.template = mk_template("before:1");
        before.spec.placements[0].name = "before".into();
        let expected: Vec<_> = expected.iter().filter(|error| !error.starts_with("metadata.name")).collect();
        assert_eq!(
            errors_of(&workload, Some(&before)).iter().collect::<Vec<_>>(),
            expected,
            "rule {rule}, update"
        );
    }
}

#[test]
fn rules_of_volumes() {
    const ROWS: &[Row] = &[
        (
            "5",
            |w| {
                volume(w, 0).disk.as_mut().unwrap().device_name = Some("persistent-disk-1".into());
            },
            &["~.volumes[0].disk.deviceName Duplicate"],
        ),
        (
            "5",
            |w| {
                let mut second = mk_disk("more", Some("10Gi"), mk_filesystem());
                second.disk.as_mut().unwrap().device_name = Some("d".into());
                volume(w, 0).disk.as_mut().unwrap().device_name = Some("d".into());
                w.spec.template.spec.volumes.push(second);
                container(w).volume_attachments.push(mk_mount("more", "/more"));
            },
            &["~.volumes[3].disk.deviceName Duplicate"],
        ),
        ("6", |w| volume(w, 1).config_map = None, &["~.volumes[1] Required"]),
        (
            "6",
            |w| {
                let extra = volume(w, 0);
                extra.config_map = Some(ConfigMapVolumeSource::default());
                extra.secret = Some(SecretVolumeSource::default());
            },
            &["~.volumes[0].configMap Forbidden", "~.volumes[0].secret Forbidden"],
        ),
        (
            "7",
            |w| {
                volume(w, 0).name = String::new();
                container(w).volume_attachments[0].name = String::new();
            },
            &["~.volumes[0].name Required"],
        ),
        (
            "7",
            |w| {
                volume(w, 0).name = "Data_1".into();
                container(w).volume_attachments[0].name = "Data_1".into();
            },
            &["~.volumes[0].name Invalid"],
        ),
        (
            "8",
            |w| {
                volume(w, 1).name = "keys".into();
                container(w).volume_attachments.remove(1);
            },
            &["~.volumes[2].name Duplicate"],
        ),
        ("9", |w| _ = container(w).volume_attachments.pop(), &["~.volumes[2].name Required"]),
        (
            "11",
            |w| disk(w, 0).type_ = "pd-fast".into(),
            &["~.volumes[0].disk.template.spec.type NotSupported"],
        ),
        (
            "12",
            |w| {
                disk(w, 0).populator = mk_image();
                disk(w, 0).populator.as_mut().unwrap().image.as_mut().unwrap().name = "mine".into();
            },
            &["~.volumes[0].disk.template.spec.populator.image.name NotSupported"],
        ),
        (
            "13",
            |w| {
                disk(w, 0).populator.as_mut().unwrap().filesystem.as_mut().unwrap().type_ = "xfs".into();
            },
            &["~.volumes[0].disk.template.spec.populator.filesystem.type NotSupported"],
        ),
        (
            "14",
            |w| {
                disk(w, 0).populator.as_mut().unwrap().image = mk_image().unwrap().image;
                set_size(w, 0, "30Gi");
            },
            &["~.volumes[0].disk.template.spec.populator.filesystem Forbidden"],
        ),
        ("15", |w| disk(w, 0).resources = None, &["~.volumes[0].disk.template.spec.resources Required"]),
        (
            "16",
            |w| disk(w, 0).resources = Some(DiskResources::default()),
            &["~.volumes[0].disk.template.spec.resources.requests Required"],
        ),
        (
            "17",
            |w| {
                let requests = &mut disk(w, 0).resources.as_mut().unwrap().requests;
                *requests = BTreeMap::from([("cpu".to_owned(), Quantity("1".into()))]);
            },
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Required"],
        ),
        (
            "17",
            |w| set_size(w, 0, "0"),
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "17",
            |w| set_size(w, 0, "-5Gi"),
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "17",
            |w| set_size(w, 0, "lots"),
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "17",
            |w| set_size(w, 0, "9Gi"),
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "17",
            |w| set_size(w, 0, "101Gi"),
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "17",
            |w| set_size(w, 0, "10.5Gi"),
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "17",
            |w| set_size(w, 0, "5G"),
            &[
                "~.volumes[0].disk.template.spec.resources.requests[storage] Invalid",
                "~.volumes[0].disk.template.spec.resources.requests[storage] Invalid",
            ],
        ),
        (
            "18",
            |w| {
                disk(w, 0).populator = mk_image();
                set_size(w, 0, "24Gi");
            },
            &["~.volumes[0].disk.template.spec.resources.requests[storage] Invalid"],
        ),
        (
            "19",
            |w| volume(w, 1).config_map.as_mut().unwrap().name = String::new(),
            &["~.volumes[1].configMap.name Required"],
        ),
        (
            "20",
            |w| volume(w, 1).config_map.as_mut().unwrap().default_mode = Some(0o1000),
            &["~.volumes[1].configMap.defaultMode Invalid"],
        ),
        (
            "20",
            |w| volume(w, 1).config_map.as_mut().unwrap().default_mode = Some(-1),
            &["~.volumes[1].configMap.defaultMode Invalid"],
        ),
        (
            "21",
            |w| volume(w, 1).config_map.as_mut().unwrap().items = Some(vec![KeyToPath::default()]),
            &["~.volumes[1].configMap.items Forbidden"],
        ),
        ("22", |w| volume(w, 2).secret.as_mut().unwrap().default_mode = Some(-1), &[]),
    ];
    check_rows(mk_sandbox, ROWS);
}

#[test]
fn rules_of_sandboxes() {
    const ROWS: &[Row] = &[
        (
            "23",
            |w| w.spec.template.spec.runtime.resources.instance_type = "huge".into(),
            &["~.runtime.resources.instanceType NotSupported"],
        ),
        (
            "24",
            |w| {
                let requests = &mut w.spec.template.spec.runtime.resources.requests;
                requests.insert("cpu".into(), Quantity("2".into()));
            },
            &["~.runtime.resources.requests Forbidden"],
        ),
        (
            "25",
            |w| {
                w.spec.template.spec.runtime.sandbox = None;
                w.spec.template.spec.volumes.clear();
            },
            &["~.runtime Required"],
        ),
        (
            "26",
            |w| {
                w.spec.template.spec.runtime.virtual_machine = Some(VirtualMachineRuntime::default());
                set_key(w, &format!("ada:{}", ssh::mk_key()));
            },
            &["~.runtime.virtualMachine Forbidden"],
        ),
        (
            "27",
            |w| {
                w.spec.template.spec.volumes.clear();
                w.spec.template.spec.runtime.sandbox.as_mut().unwrap().containers.clear();
            },
            &["~.runtime.sandbox.containers Required"],
        ),
        ("28", |w| container(w).name = String::new(), &["~.runtime.sandbox.containers[0].name Required"]),
        ("28", |w| container(w).name = "App!".into(), &["~.runtime.sandbox.containers[0].name Invalid"]),
        ("28", |w| container(w).name = "a".repeat(64), &["~.runtime.sandbox.containers[0].name Invalid"]),
        (
            "28",
            |w| {
                let again =
                    SandboxContainer { name: "app".into(), image: "app:2".into(), ..Default::default() };
                w.spec.template.spec.runtime.sandbox.as_mut().unwrap().containers.push(again);
            },
            &["~.runtime.sandbox.containers[1].name Duplicate"],
        ),
        ("29", |w| container(w).image = String::new(), &["~.runtime.sandbox.containers[0].image Required"]),
        (
            "30",
            |w| container(w).resources = Some(ContainerResources::default()),
            &["~.runtime.sandbox.containers[0].resources Forbidden"],
        ),
        (
            "31",
            |w| container(w).volume_attachments.push(mk_mount("gone", "/gone")),
            &["~.runtime.sandbox.containers[0].volumeAttachments[3].name NotFound"],
        ),
        (
            "32",
            |w| disk(w, 0).populator = None,
            &["~.runtime.sandbox.containers[0].volumeAttachments[0].mountPath NotFound"],
        ),
        (
            "32",
            |w| disk(w, 0).populator = Some(DiskPopulator::default()),
            &["~.runtime.sandbox.containers[0].volumeAttachments[0].mountPath NotFound"],
        ),
        (
            "34",
            |w| container(w).volume_attachments[1].mount_path = Some("/data".into()),
            &["~.runtime.sandbox.containers[0].volumeAttachments[1].mountPath Duplicate"],
        ),
        (
            "35",
            |w| container(w).ports[0].name = String::new(),
            &["~.runtime.sandbox.containers[0].ports[0].name Required"],
        ),
        (
            "35",
            |w| container(w).ports[0].name = "a--b".into(),
            &["~.runtime.sandbox.containers[0].ports[0].name Invalid"],
        ),
        (
            "35",
            |w| container(w).ports[0].name = "sixteen-letters-".into(),
            &["~.runtime.sandbox.containers[0].ports[0].name Invalid"],
        ),
        (
            "35",
            |w| container(w).ports[0].name = "8080".into(),
            &["~.runtime.sandbox.containers[0].ports[0].name Invalid"],
        ),
        (
            "35",
            |w| container(w).ports.push(mk_port("http", 9090)),
            &["~.runtime.sandbox.containers[0].ports[1].name Duplicate"],
        ),
        (
            "36",
            |w| container(w).ports[0].port = 0,
            &["~.runtime.sandbox.containers[0].ports[0].port Invalid"],
        ),
        (
            "36",
            |w| container(w).ports[0].port = 65536,
            &["~.runtime.sandbox.containers[0].ports[0].port Invalid"],
        ),
        (
            "37",
            |w| {
                w.spec.template.spec.runtime.sandbox.as_mut().unwrap().image_pull_secrets =
                    vec![ImagePullSecret::default()];
            },
            &["~.runtime.sandbox.imagePullSecrets[0].name Required"],
        ),
    ];
    check_rows(mk_sandbox, ROWS);
}

#[test]
fn rules_of_virtual_machines() {
    const KEYS: &str = "spec.template.metadata.annotations[compute.datumapis.com/ssh-keys] Required";
    const ROWS: &[Row] = &[
        ("1", |w| w.spec.template.metadata = None, &[KEYS]),
        (
            "2",
            |w| set_key(w, "just-words"),
            &["spec.template.metadata.annotations[compute.datumapis.com/ssh-keys][0] Invalid"],
        ),
        (
            "3",
            |w| set_key(w, &format!(":{}", ssh::mk_key())),
            &["spec.template.metadata.annotations[compute.datumapis.com/ssh-keys][0] Required"],
        ),
        (
            "4",
            |w| set_key(w, &format!("ada:{}\nbob:ssh-rsa AAAA", ssh::mk_key())),
            &["spec.template.metadata.annotations[compute.datumapis.com/ssh-keys][1] Invalid"],
        ),
        (
            "31",
            |w| {
                machine(w).volume_attachments.push(VolumeAttachment { name: "gone".into(), mount_path: None })
            },
            &["~.runtime.virtualMachine.volumeAttachments[1].name NotFound"],
        ),
        (
            "34",
            |w| {
                machine(w).volume_attachments = vec![mk_mount("boot", "/a"), mk_mount("boot", "/a")];
            },
            &["~.runtime.virtualMachine.volumeAttachments[1].mountPath Duplicate"],
        ),
        (
            "35",
            |w| machine(w).ports[0].name = "-ssh".into(),
            &["~.runtime.virtualMachine.ports[0].name Invalid"],
        ),
        ("36", |w| machine(w).ports[0].port = -1, &["~.runtime.virtualMachine.ports[0].port Invalid"]),
        (
            "38",
            |w| {
                machine(w).volume_attachments.clear();
                w.spec.template.spec.volumes.clear();
            },
            &["~.runtime.virtualMachine.volumeAttachments Required"],
        ),
        (
            "39",
            |w| {
                disk(w, 0).populator = mk_filesystem();
                set_size(w, 0, "30Gi");
            },
            &["~.runtime.virtualMachine.volumeAttachments[0].name Required"],
        ),
        (
            "39",
            |w| w.spec.template.spec.volumes[0] = mk_config_map("boot"),
            &["~.runtime.virtualMachine.volumeAttachments[0].name Required"],
        ),
    ];
    check_rows(mk_machine, ROWS);
}

#[test]
fn rules_of_networks_and_placements() {
    const ROWS: &[Row] = &[
        ("40", |w| w.spec.template.spec.network_interfaces.clear(), &["~.networkInterfaces Required"]),
        (
            "41",
            |w| w.spec.template.spec.network_interfaces[0].network.name = "Net_1".into(),
            &["~.networkInterfaces[0].network.name Invalid"],
        ),
        (
            "41",
            |w| w.spec.template.spec.network_interfaces[0].network.name = String::new(),
            &["~.networkInterfaces[0].network.name Invalid"],
        ),
        (
            "network.namespace",
            |w| {
                w.spec.template.spec.network_interfaces[0].network.namespace = Some("a/../b".into());
            },
            &["~.networkInterfaces[0].network.namespace Invalid"],
        ),
        ("44", |w| w.spec.placements.clear(), &["spec.placements Required"]),
        ("45", |w| w.spec.placements[0].name = String::new(), &["spec.placements[0].name Required"]),
        ("45", |w| w.spec.placements[0].name = "a".repeat(64), &["spec.placements[0].name Invalid"]),
        (
            "placement names are unique",
            |w| w.spec.placements.push(mk_placement("default", &["ord"])),
            &["spec.placements[1].name Duplicate"],
        ),
        ("46", |w| w.spec.placements[0].city_codes.clear(), &["spec.placements[0].cityCodes Required"]),
        (
            "47",
            |w| w.spec.placements[0].city_codes.push("lhr".into()),
            &["spec.placements[0].cityCodes[1] NotSupported"],
        ),
        (
            "47",
            |w| w.spec.placements[0].city_codes[0] = "DFW".into(),
            &["spec.placements[0].cityCodes[0] NotSupported"],
        ),
        (
            "48",
            |w| w.spec.placements[0].scale_settings.min_replicas = 0,
            &["spec.placements[0].scaleSettings.minReplicas Invalid"],
        ),
        (
            "48",
            |w| {
                w.spec.placements[0].scale_settings.min_replicas = 1001;
                w.spec.placements[0].scale_settings.max_replicas = None;
            },
            &["spec.placements[0].scaleSettings.minReplicas Invalid"],
        ),
        ("48, of all placements", |w| w.spec.replicas = Some(0), &["spec.replicas Invalid"]),
        (
            "one number for placements that differ",
            |w| {
                w.spec.replicas = Some(2);
                w.spec.placements.push(mk_placement("edge", &["ord"]));
                w.spec.placements[1].scale_settings.min_replicas = 3;
            },
            &["spec.replicas Forbidden"],
        ),
        (
            "max ≥ min",
            |w| w.spec.placements[0].scale_settings.min_replicas = 4,
            &["spec.placements[0].scaleSettings.maxReplicas Invalid"],
        ),
        (
            "max ≤ 1000",
            |w| w.spec.placements[0].scale_settings.max_replicas = Some(1001),
            &["spec.placements[0].scaleSettings.maxReplicas Invalid"],
        ),
        (
            "49",
            |w| w.spec.placements[0].scale_settings.metrics.clear(),
            &["spec.placements[0].scaleSettings.metrics Required"],
        ),
        (
            "50",
            |w| w.spec.placements[0].scale_settings.metrics[0].resource = None,
            &["spec.placements[0].scaleSettings.metrics[0].resource Required"],
        ),
        (
            "51",
            |w| {
                w.spec.placements[0].scale_settings.metrics[0].resource.as_mut().unwrap().name =
                    "memory".into();
            },
            &["spec.placements[0].scaleSettings.metrics[0].resource.name NotSupported"],
        ),
        (
            "52",
            |w| *metric_target(w) = MetricTarget::default(),
            &["spec.placements[0].scaleSettings.metrics[0].resource.target Required"],
        ),
        (
            "52",
            |w| {
                metric_target(w).value = Some(Quantity("1".into()));
                metric_target(w).average_value = Some(Quantity("0".into()));
            },
            &[
                "spec.placements[0].scaleSettings.metrics[0].resource.target.averageValue Forbidden",
                "spec.placements[0].scaleSettings.metrics[0].resource.target.averageUtilization Forbidden",
            ],
        ),
        (
            "53",
            |w| {
                *metric_target(w) = MetricTarget { value: Some(Quantity("0".into())), ..Default::default() };
            },
            &["spec.placements[0].scaleSettings.metrics[0].resource.target.value Invalid"],
        ),
        (
            "53",
            |w| {
                *metric_target(w) =
                    MetricTarget { average_value: Some(Quantity("-1m".into())), ..Default::default() };
            },
            &["spec.placements[0].scaleSettings.metrics[0].resource.target.averageValue Invalid"],
        ),
        (
            "54",
            |w| metric_target(w).average_utilization = Some(0),
            &["spec.placements[0].scaleSettings.metrics[0].resource.target.averageUtilization Invalid"],
        ),
        ("name of the workload", |w| w.metadata.name = Some("web.shop".into()), &["metadata.name Invalid"]),
        ("name of the workload", |w| w.metadata.name = Some("w".repeat(64)), &["metadata.name Invalid"]),
        (
            "labels of the template",
            |w| {
                let labels = &mut w.spec.template.metadata.get_or_insert_default().labels;
                labels.insert("not a key".into(), String::new());
                labels.insert("ok".into(), "not a value!".into());
            },
            &["spec.template.metadata.labels Invalid", "spec.template.metadata.labels[ok] Invalid"],
        ),
        (
            "annotations of the template",
            |w| {
                let annotations = &mut w.spec.template.metadata.get_or_insert_default().annotations;
                annotations.insert("/".into(), "x".repeat(300 << 10));
            },
            &["spec.template.metadata.annotations Invalid", "spec.template.metadata.annotations Invalid"],
        ),
    ];
    check_rows(mk_sandbox, ROWS);
}

#[test]
fn a_machine_with_or_without_a_disk_size_and_a_sandbox_without_a_name_are_valid() {
    let mut workload = mk_machine();
    assert_eq!(errors_of(&workload, None), [""; 0]);
    set_size(&mut workload, 0, "25Gi");
    assert_eq!(errors_of(&workload, None), [""; 0]);
    let mut workload = mk_sandbox();
    workload.metadata.name = None; // generated later
    assert_eq!(errors_of(&workload, None), [""; 0]);
}

#[test]
fn all_errors_are_reported_at_once() {
    let mut workload = mk_sandbox();
    container(&mut workload).image.clear();
    workload.spec.placements[0].city_codes = vec!["lhr".into()];
    workload.spec.template.spec.network_interfaces.clear();
    assert_eq!(
        errors_of(&workload, None),
        [
            "~.runtime.sandbox.containers[0].image Required",
            "~.networkInterfaces Required",
            "spec.placements[0].cityCodes[0] NotSupported"
        ]
    );
}

#[test]
fn a_placement_in_a_lost_city_may_change_and_a_new_one_there_is_rejected() {
    let before = mk_workload("web", &["lhr"]);
    let mut after = before.clone();
    after.spec.template = mk_template("app:2");
    assert_eq!(errors_of(&after, Some(&before)), [""; 0]);
    after.spec.placements[0].name = "other".into();
    assert_eq!(errors_of(&after, Some(&before)), ["spec.placements[0].cityCodes[0] NotSupported"]);
}

#[test]
fn the_error_of_an_unbound_city_lists_the_bound_cities() {
    let error_of = |cities: &Cities| validate(&mk_workload("web", &["lhr"]), None, cities)[0].to_string();
    assert!(error_of(&mk_cities(&["ord", "dfw"])).ends_with("supported values: \"dfw\", \"ord\""));
    assert!(error_of(&mk_cities(&[])).ends_with("no city is bound to this project"));
}

#[test]
fn where_every_city_is_allowed_the_code_must_still_be_a_label_value() {
    let of = |city: &str| validate(&mk_workload("web", &[city]), None, &Cities::Any).len();
    assert_eq!((of("anywhere"), of("New York"), of("")), (0, 1, 1));
}

#[test]
fn an_update_without_a_spec_change_or_of_a_terminating_workload_is_not_validated() {
    let mut broken = mk_sandbox();
    broken.spec.placements.clear();
    let mut relabelled = broken.clone();
    relabelled.metadata.finalizers = Some(vec!["f".into()]);
    assert!(is_exempt(&relabelled, &broken));
    assert!(!is_exempt(&mk_sandbox(), &broken));
    assert!(is_exempt(&mk_sandbox(), &deleting(broken)));
}

mod admitted_workloads {
    //! Properties: every later decision succeeds for a workload that passes validation.

    use polis_api::names;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::deployments::{self, DeploymentAction, InitialMetadata};
    use crate::{hub_copy, instances, metadata, networks, quota, template};

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => select(vec!["app", "data", "boot", "dfw", "ord", "cpu", "http", "shop", "a"]).prop_map(str::to_owned),
            1 => "[a-z0-9-]{0,70}",
            1 => any::<String>(),
        ]
    }

    fn quantity() -> impl Strategy<Value = Quantity> {
        prop_oneof![3 => select(vec!["10Gi", "30Gi", "100Gi", "1", "0", "-1"]).prop_map(str::to_owned), 1 => any::<String>()]
            .prop_map(Quantity)
    }

    /// A valid workload with some fields replaced by arbitrary values.
    fn workload() -> impl Strategy<Value = Workload> {
        let base = prop_oneof![Just(mk_sandbox()), Just(mk_machine())];
        let change = (0..14u8, text(), text(), any::<i32>(), 0..1200i32, quantity());
        (base, prop::collection::vec(change, 0..4)).prop_map(|(mut workload, changes)| {
            for (field, one, other, number, count, size) in changes {
                let spec = &mut workload.spec;
                let scale = &mut spec.placements[0].scale_settings;
                match field {
                    0 => workload.metadata.name = Some(one),
                    1 => spec.placements[0].name = one,
                    2 => spec.placements[0].city_codes.push(one),
                    3 => scale.min_replicas = count,
                    4 => scale.max_replicas = Some(number),
                    5 => scale.min_replicas = number,
                    6 => spec.placements.push(mk_placement(&one, &[&other])),
                    7 => spec.template.spec.network_interfaces[0].network.name = one,
                    8 => spec.template.spec.network_interfaces[0].network.namespace = Some(one),
                    9 => _ = spec.template.metadata.get_or_insert_default().labels.insert(one, other),
                    10 => _ = spec.template.metadata.get_or_insert_default().annotations.insert(one, other),
                    11 => spec.template.spec.runtime.resources.instance_type = one,
                    12 => {
                        let mut disk = mk_disk(&one, Some("10Gi"), mk_filesystem());
                        let resources = disk.disk.as_mut().unwrap().template.spec.resources.as_mut().unwrap();
                        resources.requests.insert("storage".into(), size);
                        spec.template.spec.volumes.push(disk);
                        let containers =
                            spec.template.spec.runtime.sandbox.as_mut().map(|s| &mut s.containers);
                        if let Some(containers) = containers {
                            containers[0].volume_attachments.push(mk_mount(&one, &other));
                        }
                    }
                    _ => {
                        let containers =
                            spec.template.spec.runtime.sandbox.as_mut().map(|s| &mut s.containers);
                        if let Some(containers) = containers {
                            containers.push(SandboxContainer {
                                name: one,
                                image: other,
                                ..Default::default()
                            });
                        }
                    }
                }
            }
            workload
        })
    }

    /// Plans the deployments and instances of a workload, and checks each object by the rules of an API
    /// server. Returns the number of instances.
    fn check_plans(workload: &Workload) -> Result<usize, TestCaseError> {
        let mut created = 0;
        prop_assert!(!networks::required(workload).is_empty());
        let plan = deployments::plan(workload, &[], &mk_cities(&["dfw", "ord"]), &InitialMetadata::default());
        prop_assert!(plan.unbound.is_empty(), "{:?}", plan.unbound);
        prop_assert!(!plan.actions.is_empty());
        for action in plan.actions {
            let DeploymentAction::Create(mut deployment) = action else {
                return Err(TestCaseError::fail(format!("{action:?}")));
            };
            deployment.metadata.uid = Some("11111111-2222-3333-4444-555555555555".into());
            check_meta(&deployment.metadata)?;
            hub_copy::check_city(&deployment).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(names::is_dns_label(&names::policy(&deployment.spec.city_code)));
            prop_assert!(
                quota::instance_size(&deployment.spec.template.spec).is_ok_and(|sizes| sizes.is_some())
            );
            let desired = instances::desired(&deployment);
            prop_assert_eq!(i64::from(desired), i64::from(deployment.spec.scale_settings.min_replicas));
            let plan = instances::plan(&deployment, &[], &instances::InstanceDefaults::default());
            prop_assert!(!plan.actions.is_empty());
            for action in plan.actions.into_iter().take(3) {
                let instances::InstanceAction::Create(instance) = action else {
                    return Err(TestCaseError::fail(format!("{action:?}")));
                };
                check_meta(&instance.metadata)?;
                let hash = template::hash(&deployment.spec.template);
                prop_assert!(template::is_current(&instance, &deployment.spec.template, &hash));
                created += 1;
            }
            let last =
                instances::new_instance(&deployment, desired - 1, &instances::InstanceDefaults::default());
            check_meta(&last.metadata)?;
        }
        Ok(created)
    }

    fn check_meta(
        meta: &polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    ) -> Result<(), TestCaseError> {
        prop_assert!(meta.name.as_deref().is_some_and(names::is_dns_label), "{:?}", meta.name);
        for (key, value) in meta.labels.iter().flatten() {
            prop_assert!(metadata::is_key(key), "{}", key);
            prop_assert!(value.is_empty() || metadata::is_label_value(value), "{}", value);
        }
        for key in meta.annotations.iter().flatten().map(|(key, _)| key) {
            prop_assert!(metadata::is_key(&key.to_lowercase()), "{}", key);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn an_admitted_workload_becomes_valid_deployments_and_instances(workload in workload()) {
            if validate(&workload, None, &mk_cities(&["dfw", "ord"])).is_empty() {
                prop_assert!(check_plans(&workload)? > 0);
            }
        }

        #[test]
        fn every_error_names_a_field_of_the_object(workload in workload(), before in workload()) {
            for error in validate(&workload, Some(&before), &Cities::Any) {
                let path = error.path.to_string();
                prop_assert!(path.starts_with("spec.") || path.starts_with("metadata."), "{}", path);
                prop_assert!(!error.message().is_empty());
            }
        }
    }
}
