//! Validation of the runtime: one runtime, a known instance type, and valid containers, attachments and
//! ports.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::compute::{
    InstanceSpec, InstanceVolume, NamedPort, SandboxContainer, SandboxRuntime, VirtualMachineRuntime,
    VolumeAttachment,
};

use super::{FieldError, Path, check_label, probes};
use crate::quota::instance_types;

/// The volumes of an instance by name. A template may have thousands, with thousands of attachments each.
type Volumes<'a> = BTreeMap<&'a str, &'a InstanceVolume>;

pub(super) fn check(spec: &InstanceSpec, at: &Path, errors: &mut Vec<FieldError>) {
    let (runtime, at) = (&spec.runtime, at.at("runtime"));
    let named = runtime.resources.instance_type.as_str();
    if !instance_types().any(|known| known == named) {
        errors.push(at.at("resources.instanceType").not_supported(named, instance_types()));
    }
    if !runtime.resources.requests.is_empty() {
        errors.push(
            at.at("resources.requests").forbidden("the instance type determines the size of an instance"),
        );
    }
    let volumes = spec.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
    match (&runtime.sandbox, &runtime.virtual_machine) {
        (None, None) => errors.push(at.required("one of sandbox and virtualMachine must be set")),
        (Some(sandbox), machine) => {
            check_sandbox(sandbox, &volumes, &at.at("sandbox"), errors);
            if machine.is_some() {
                let at = at.at("virtualMachine");
                errors.push(at.forbidden("an instance is a sandbox or a virtual machine, not both"));
            }
        }
        (None, Some(machine)) => check_machine(machine, &volumes, &at.at("virtualMachine"), errors),
    }
}

/// All volume attachments of the containers and of the virtual machine.
pub(super) fn attachments(spec: &InstanceSpec) -> impl Iterator<Item = &VolumeAttachment> {
    let containers = spec.runtime.sandbox.iter().flat_map(|sandbox| &sandbox.containers);
    let machine = spec.runtime.virtual_machine.iter().flat_map(|machine| &machine.volume_attachments);
    containers.flat_map(|container| &container.volume_attachments).chain(machine)
}

fn check_sandbox(sandbox: &SandboxRuntime, volumes: &Volumes<'_>, at: &Path, errors: &mut Vec<FieldError>) {
    let containers = at.at("containers");
    if sandbox.containers.is_empty() {
        errors.push(containers.required("a sandbox runs at least one container"));
    }
    let mut names = BTreeSet::new();
    for (index, container) in sandbox.containers.iter().enumerate() {
        check_container(container, volumes, &containers.index(index), &mut names, errors);
    }
    probes::check_termination(sandbox, at, errors);
    for (index, secret) in sandbox.image_pull_secrets.iter().enumerate() {
        if secret.name.is_empty() {
            errors.push(at.at("imagePullSecrets").index(index).at("name").required(""));
        }
    }
}

fn check_container<'a>(
    container: &'a SandboxContainer,
    volumes: &Volumes<'_>,
    at: &Path,
    names: &mut BTreeSet<&'a str>,
    errors: &mut Vec<FieldError>,
) {
    check_label(&container.name, &at.at("name"), errors);
    if !container.name.is_empty() && !names.insert(&container.name) {
        errors.push(at.at("name").duplicate(container.name.as_str()));
    }
    if container.image.is_empty() {
        errors.push(at.at("image").required(""));
    }
    if container.resources.is_some() {
        errors.push(at.at("resources").forbidden("the instance type determines the size of an instance"));
    }
    check_attachments(&container.volume_attachments, volumes, &at.at("volumeAttachments"), errors);
    check_ports(&container.ports, &at.at("ports"), errors);
    probes::check_container(container, at, errors);
}

fn check_machine(
    machine: &VirtualMachineRuntime,
    volumes: &Volumes<'_>,
    at: &Path,
    errors: &mut Vec<FieldError>,
) {
    let attachments = at.at("volumeAttachments");
    match machine.volume_attachments.first() {
        None => errors.push(attachments.required("a virtual machine boots from its first volume")),
        Some(boot) => {
            let volume = volumes.get(boot.name.as_str());
            if volume.is_some_and(|volume| !is_bootable(volume)) {
                let detail =
                    "the first volume must be a disk that is filled from an image: the machine boots from it";
                errors.push(attachments.index(0).at("name").required(detail));
            }
        }
    }
    check_attachments(&machine.volume_attachments, volumes, &attachments, errors);
    check_ports(&machine.ports, &at.at("ports"), errors);
}

fn is_bootable(volume: &InstanceVolume) -> bool {
    let populator = volume.disk.as_ref().and_then(|disk| disk.template.spec.populator.as_ref());
    populator.is_some_and(|populator| populator.image.is_some())
}

/// Whether a volume can be mounted: an empty disk has no file system.
fn is_mountable(volume: &InstanceVolume) -> bool {
    volume.disk.as_ref().is_none_or(|disk| {
        let populator = disk.template.spec.populator.as_ref();
        populator.is_some_and(|populator| populator.image.is_some() || populator.filesystem.is_some())
    })
}

fn check_attachments(
    attachments: &[VolumeAttachment],
    volumes: &Volumes<'_>,
    at: &Path,
    errors: &mut Vec<FieldError>,
) {
    let mut paths = BTreeSet::new();
    for (index, attachment) in attachments.iter().enumerate() {
        let at = at.index(index);
        let volume = volumes.get(attachment.name.as_str());
        if volume.is_none() {
            let detail = "spec.template.spec.volumes has no volume of this name";
            errors.push(at.at("name").not_found(attachment.name.as_str(), detail));
        }
        let Some(path) = &attachment.mount_path else { continue };
        if volume.is_some_and(|volume| !is_mountable(volume)) {
            let detail = "the disk has no populator, so it has no file system to mount";
            errors.push(at.at("mountPath").not_found(path.as_str(), detail));
        }
        if !paths.insert(path) {
            errors.push(at.at("mountPath").duplicate(path.as_str()));
        }
    }
}

fn check_ports(ports: &[NamedPort], at: &Path, errors: &mut Vec<FieldError>) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        if port.name.is_empty() {
            errors.push(at.at("name").required(""));
        } else if !is_port_name(&port.name) {
            let detail = "must be at most 15 lower-case letters, digits and single '-' between them, with at least one letter";
            errors.push(at.at("name").invalid(port.name.as_str(), detail));
        }
        if !port.name.is_empty() && !names.insert(port.name.as_str()) {
            errors.push(at.at("name").duplicate(port.name.as_str()));
        }
        if !(1..=65535).contains(&port.port) {
            errors.push(at.at("port").invalid(port.port, "must be between 1 and 65535"));
        }
    }
}

/// Whether a text is a valid service name (RFC 6335).
fn is_port_name(name: &str) -> bool {
    name.len() <= 15
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}
