//! The Pod of an Instance, field by field.
//!
//! Fields that a Pod cannot have are refused by name; none is dropped. Labels and annotations of the template
//! stay on the Instance: in a cluster they configure admission, sidecars and security profiles, which a
//! tenant must not choose. The Pod has no token of a service account, no host namespaces and no privileges.

use std::collections::BTreeMap;

use polis_api::compute::{
    ContainerLifecycle, HttpGetAction, Instance, InstanceVolume, LifecycleHandler, NamedPort, Probe,
    SandboxContainer, SandboxRuntime, VolumeAttachment,
};
use polis_api::k8s_openapi::api::core::v1 as core;
use polis_api::k8s_openapi::api::core::v1::{
    Container, ContainerPort, LocalObjectReference, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
    SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use polis_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use polis_api::{ObjectExt, annotations, labels};

use super::RefusedField;
use super::companion;
use super::environment::{environment, sources};
use crate::instances::LINKING_LABELS;
use crate::metadata::{self, Map};
use crate::quota::{InstanceSize, instance_size};
use crate::referenced_data::DataKind;
use crate::template;
use crate::tenant::Tenant;

/// How the operator of a cell configures its Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodOptions {
    /// The runtime class, such as one with stronger isolation; that of the cluster if none.
    pub runtime_class: Option<String>,
    /// Labels that the node of a Pod must have.
    pub node_selector: BTreeMap<String, String>,
}

/// Failures of the startup probe in place of a missing probe: it never ends a container.
const UNLIMITED: i32 = i32::MAX;

/// The Pod of an Instance, or the fields because of which it cannot have one.
pub fn pod(
    instance: &Instance,
    origin: Option<&Tenant>,
    options: &PodOptions,
) -> Result<Pod, Vec<RefusedField>> {
    let mut refused = Vec::new();
    let mut refuse = |path: &str, why: &str| {
        refused.push(RefusedField { path: path.to_owned(), why: why.to_owned() });
    };
    let spec = &instance.spec;
    if spec.runtime.virtual_machine.is_some() {
        refuse("spec.runtime.virtualMachine", "this cell runs containers only");
    }
    if spec.network_interfaces.len() > 1 {
        refuse("spec.networkInterfaces[1]", "a Pod has one network; keep one interface");
    }
    let none = SandboxRuntime::default();
    let sandbox = spec.runtime.sandbox.as_ref().unwrap_or(&none);
    if sandbox.containers.is_empty() {
        refuse("spec.runtime.sandbox.containers", "a Pod needs at least one container");
    }
    let size = match instance_size(spec) {
        Ok(size) => size,
        Err(error) => {
            refuse("spec.runtime.resources", &error.to_string());
            None
        }
    };
    let volumes = volumes(&spec.volumes, &mut refused);
    let mut containers = Vec::new();
    for (place, container) in sandbox.containers.iter().enumerate() {
        let path = format!("spec.runtime.sandbox.containers[{place}]");
        containers.push(Container {
            name: container.name.clone(),
            image: Some(container.image.clone()),
            command: some(&container.command),
            args: some(&container.args),
            env: Some(environment(instance, container, origin, &path, &mut refused)),
            env_from: some(&sources(container)),
            ports: some(&container.ports.iter().map(port).collect::<Vec<_>>()),
            resources: resources(container, sandbox, size),
            volume_mounts: some(&mounts(&container.volume_attachments, &path, &mut refused)),
            liveness_probe: container.liveness_probe.as_ref().map(|p| probe(p, &container.ports)),
            readiness_probe: container.readiness_probe.as_ref().map(|p| probe(p, &container.ports)),
            startup_probe: match &container.startup_probe {
                Some(startup) => Some(probe(startup, &container.ports)),
                None => first_port_probe(container, sandbox),
            },
            lifecycle: container.lifecycle.as_ref().and_then(|l| lifecycle(l, &container.ports)),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                ..SecurityContext::default()
            }),
            ..Container::default()
        });
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let pull_secrets: Vec<LocalObjectReference> = sandbox
        .image_pull_secrets
        .iter()
        .map(|secret| LocalObjectReference { name: companion(DataKind::Secret, &secret.name) })
        .collect();
    Ok(Pod {
        metadata: metadata_of(instance),
        spec: Some(PodSpec {
            containers,
            volumes: some(&volumes),
            image_pull_secrets: some(&pull_secrets),
            termination_grace_period_seconds: sandbox.termination_grace_period_seconds,
            hostname: Some(instance.name().to_owned()),
            restart_policy: Some("Always".to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            runtime_class_name: options.runtime_class.clone(),
            node_selector: (!options.node_selector.is_empty()).then(|| options.node_selector.clone()),
            security_context: Some(PodSecurityContext {
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
        status: None,
    })
}

fn metadata_of(instance: &Instance) -> ObjectMeta {
    let mut pod_labels: Map = LINKING_LABELS
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), instance.label(key)?.to_owned())))
        .collect();
    pod_labels.insert(labels::INSTANCE_UID.to_owned(), instance.uid().to_owned());
    let hash = template::instance_hash(instance).unwrap_or_default();
    ObjectMeta {
        name: instance.metadata.name.clone(),
        namespace: instance.metadata.namespace.clone(),
        labels: Some(pod_labels),
        annotations: Some(metadata::map([(annotations::TEMPLATE_HASH, hash)])),
        ..ObjectMeta::default()
    }
}

/// A list, or none if it is empty.
fn some<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn port(port: &NamedPort) -> ContainerPort {
    ContainerPort {
        name: Some(port.name.clone()),
        container_port: port.port,
        protocol: port.protocol.as_ref().map(|protocol| protocol.to_uppercase()),
        ..ContainerPort::default()
    }
}

/// The resources of a container: its own limits, or else an equal part of the instance's size. Requests are
/// the same as limits, so that an instance never gets less than its quota pays for.
fn resources(
    container: &SandboxContainer,
    sandbox: &SandboxRuntime,
    size: Option<InstanceSize>,
) -> Option<ResourceRequirements> {
    let own = container.resources.as_ref().filter(|resources| !resources.limits.is_empty());
    let limits = match own {
        Some(resources) => resources.limits.clone(),
        None => {
            let InstanceSize { millicores, mebibytes } = size?;
            let parts = i64::try_from(sandbox.containers.len()).unwrap_or(i64::MAX).max(1);
            let quantity = |amount: i64, unit: &str| Quantity(format!("{}{unit}", (amount / parts).max(1)));
            BTreeMap::from([
                ("cpu".to_owned(), quantity(millicores, "m")),
                ("memory".to_owned(), quantity(mebibytes, "Mi")),
            ])
        }
    };
    Some(ResourceRequirements {
        requests: Some(limits.clone()),
        limits: Some(limits),
        ..ResourceRequirements::default()
    })
}

fn volumes(volumes: &[InstanceVolume], refused: &mut Vec<RefusedField>) -> Vec<Volume> {
    let mut converted = Vec::new();
    for (place, volume) in volumes.iter().enumerate() {
        let path = |field: &str| format!("spec.volumes[{place}]{field}");
        match volume {
            InstanceVolume { disk: Some(_), .. } => refused.push(RefusedField {
                path: path(".disk"),
                why: "this cell has no disks; remove the volume".to_owned(),
            }),
            InstanceVolume { config_map: None, secret: None, .. } => refused.push(RefusedField {
                path: path(""),
                why: "the volume has no source that this cell supports; use configMap or secret".to_owned(),
            }),
            InstanceVolume { name, config_map, secret, .. } => {
                let (mut config_map, mut secret) = (config_map.clone(), secret.clone());
                if let Some(map) = &mut config_map {
                    map.name = companion(DataKind::ConfigMap, &map.name);
                }
                if let Some(name) = secret.as_mut().and_then(|secret| secret.secret_name.as_mut()) {
                    *name = companion(DataKind::Secret, name);
                }
                converted.push(Volume { name: name.clone(), config_map, secret, ..Volume::default() });
            }
        }
    }
    converted
}

fn mounts(attachments: &[VolumeAttachment], path: &str, refused: &mut Vec<RefusedField>) -> Vec<VolumeMount> {
    let mut mounts = Vec::new();
    for (place, attachment) in attachments.iter().enumerate() {
        match &attachment.mount_path {
            Some(mount_path) => mounts.push(VolumeMount {
                name: attachment.name.clone(),
                mount_path: mount_path.clone(),
                ..VolumeMount::default()
            }),
            None => refused.push(RefusedField {
                path: format!("{path}.volumeAttachments[{place}].mountPath"),
                why: "a Pod attaches no volume without mounting it; set a path".to_owned(),
            }),
        }
    }
    mounts
}

/// Polis' rule for an instance without probes: it runs when its first TCP port accepts connections. As a
/// startup probe it holds until the first connection in each run of the container, and never restarts it.
fn first_port_probe(container: &SandboxContainer, sandbox: &SandboxRuntime) -> Option<core::Probe> {
    let is_tcp = |port: &&NamedPort| {
        port.protocol.as_deref().is_none_or(|protocol| protocol.eq_ignore_ascii_case("TCP"))
    };
    let first = sandbox
        .containers
        .iter()
        .find_map(|container| Some((container.name.as_str(), container.ports.iter().find(is_tcp)?)));
    let (name, port) = first?;
    (name == container.name && container.readiness_probe.is_none()).then(|| core::Probe {
        tcp_socket: Some(core::TCPSocketAction { host: None, port: IntOrString::Int(port.port) }),
        period_seconds: Some(1),
        failure_threshold: Some(UNLIMITED),
        ..core::Probe::default()
    })
}

fn probe(probe: &Probe, ports: &[NamedPort]) -> core::Probe {
    core::Probe {
        exec: probe.exec.as_ref().map(|exec| core::ExecAction { command: some(&exec.command) }),
        grpc: probe
            .grpc
            .as_ref()
            .map(|grpc| core::GRPCAction { port: grpc.port, service: grpc.service.clone() }),
        http_get: probe.http_get.as_ref().map(|get| http_get(get, ports)),
        tcp_socket: probe
            .tcp_socket
            .as_ref()
            .map(|socket| core::TCPSocketAction { host: None, port: number(&socket.port, ports) }),
        initial_delay_seconds: probe.initial_delay_seconds,
        timeout_seconds: probe.timeout_seconds,
        period_seconds: probe.period_seconds,
        success_threshold: probe.success_threshold,
        failure_threshold: probe.failure_threshold,
        termination_grace_period_seconds: probe.termination_grace_period_seconds,
    }
}

fn http_get(get: &HttpGetAction, ports: &[NamedPort]) -> core::HTTPGetAction {
    let header = |header: &polis_api::compute::HttpHeader| core::HTTPHeader {
        name: header.name.clone(),
        value: header.value.clone(),
    };
    core::HTTPGetAction {
        host: None, // a probe reaches the Pod alone
        http_headers: some(&get.http_headers.iter().map(header).collect::<Vec<_>>()),
        path: get.path.clone(),
        port: number(&get.port, ports),
        scheme: get.scheme.clone(),
    }
}

/// The number of a port. A name that the container does not have stays: the kubelet reports it.
fn number(port: &IntOrString, ports: &[NamedPort]) -> IntOrString {
    match crate::health::port_number(port, ports) {
        Some(number) => IntOrString::Int(number.into()),
        None => port.clone(),
    }
}

fn lifecycle(lifecycle: &ContainerLifecycle, ports: &[NamedPort]) -> Option<core::Lifecycle> {
    let LifecycleHandler { exec, http_get: get, sleep } = lifecycle.pre_stop.as_ref()?;
    let handler = core::LifecycleHandler {
        exec: exec.as_ref().map(|exec| core::ExecAction { command: some(&exec.command) }),
        http_get: get.as_ref().map(|get| http_get(get, ports)),
        sleep: sleep.as_ref().map(|sleep| core::SleepAction { seconds: sleep.seconds }),
        tcp_socket: None,
    };
    Some(core::Lifecycle { pre_stop: Some(handler), ..core::Lifecycle::default() })
}
