//! Validation of volumes: each has one valid source and at least one attachment.

use std::collections::BTreeSet;

use polis_api::compute::{DiskSource, InstanceSpec, InstanceVolume};
use polis_api::k8s_openapi::api::core::v1::ConfigMapVolumeSource;

use super::{FieldError, Path, check_label, runtime};
use crate::quantity::{Unit, in_units};

const DISK_TYPE: &str = polis_api::compute::DISK_TYPE_STANDARD;
const FILESYSTEM: &str = "ext4";
/// The supported disk images, and the minimum size of a disk with the image, in GiB.
const IMAGES: [(&str, i64); 1] = [("datumcloud/ubuntu-2204-lts", 25)];
/// The minimum size of a disk, in GiB.
const MIN_SIZE: i64 = 10;
/// The maximum size of a disk, in GiB.
const MAX_SIZE: i64 = 100;
/// One GiB, in thousandths of a byte.
const GIB: i64 = (1 << 30) * 1000;

pub(super) fn check(spec: &InstanceSpec, at: &Path, errors: &mut Vec<FieldError>) {
    let at = at.at("volumes");
    let (mut names, mut devices) = (BTreeSet::new(), BTreeSet::new());
    let attached: BTreeSet<&str> = runtime::attachments(spec).map(|a| a.name.as_str()).collect();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let at = at.index(index);
        let name = at.at("name");
        check_label(&volume.name, &name, errors);
        if !volume.name.is_empty() && !names.insert(volume.name.as_str()) {
            errors.push(name.duplicate(volume.name.as_str()));
        }
        if !attached.contains(volume.name.as_str()) {
            errors.push(name.required("the volume must be attached by a container or the virtual machine"));
        }
        check_source(volume, &at, errors);
        if let Some(device) = device(volume)
            && (!devices.insert(device) || is_default_device(device, &spec.volumes, index))
        {
            errors.push(at.at("disk.deviceName").duplicate(device));
        }
    }
}

/// The device name that a disk sets.
fn device(volume: &InstanceVolume) -> Option<&str> {
    volume.disk.as_ref()?.device_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether another volume, which sets no device name, has this one by default (`persistent-disk-<index>`).
fn is_default_device(name: &str, volumes: &[InstanceVolume], index: usize) -> bool {
    let position = name.strip_prefix("persistent-disk-").and_then(|position| position.parse::<usize>().ok());
    position.is_some_and(|position| {
        position != index
            && name == format!("persistent-disk-{position}")
            && volumes.get(position).is_some_and(|volume| device(volume).is_none())
    })
}

/// Checks that a volume has exactly one source; of several, only the content of the first is checked.
fn check_source(volume: &InstanceVolume, at: &Path, errors: &mut Vec<FieldError>) {
    let mut found = false;
    let mut first = |given: bool, field: &str, errors: &mut Vec<FieldError>| {
        if given && found {
            errors.push(at.at(field).forbidden("a volume has one source"));
        }
        let first = given && !found;
        found |= given;
        first
    };
    if first(volume.disk.is_some(), "disk", errors)
        && let Some(disk) = &volume.disk
    {
        check_disk(disk, &at.at("disk"), errors);
    }
    if first(volume.config_map.is_some(), "configMap", errors)
        && let Some(map) = &volume.config_map
    {
        check_config_map(map, &at.at("configMap"), errors);
    }
    first(volume.secret.is_some(), "secret", errors);
    if !found {
        errors.push(at.required("a volume has one source: disk, configMap or secret"));
    }
}

fn check_disk(disk: &DiskSource, at: &Path, errors: &mut Vec<FieldError>) {
    let (disk, at) = (&disk.template.spec, at.at("template.spec"));
    if disk.type_ != DISK_TYPE {
        errors.push(at.at("type").not_supported(disk.type_.as_str(), [DISK_TYPE]));
    }
    let populator = disk.populator.clone().unwrap_or_default();
    let at_populator = at.at("populator");
    let mut minimum = None;
    if let Some(image) = &populator.image {
        minimum = IMAGES.iter().find(|(name, _)| *name == image.name).map(|(_, size)| *size);
        if minimum.is_none() {
            let known = IMAGES.iter().map(|(name, _)| *name);
            errors.push(at_populator.at("image.name").not_supported(image.name.as_str(), known));
        }
    }
    if let Some(filesystem) = &populator.filesystem {
        if populator.image.is_some() {
            errors.push(
                at_populator
                    .at("filesystem")
                    .forbidden("a disk is filled from an image or with a file system, not both"),
            );
        }
        if filesystem.type_ != FILESYSTEM {
            errors.push(
                at_populator.at("filesystem.type").not_supported(filesystem.type_.as_str(), [FILESYSTEM]),
            );
        }
    }
    let at = at.at("resources");
    match &disk.resources {
        None if populator.image.is_none() => {
            errors.push(at.required("a disk that is not filled from an image needs a size"))
        }
        None => {}
        Some(resources) if resources.requests.is_empty() => errors.push(at.at("requests").required("")),
        Some(resources) => {
            let at = at.at("requests").key("storage");
            match resources.requests.get("storage") {
                Some(size) => check_size(&size.0, minimum, &at, errors),
                None => errors.push(at.required("")),
            }
        }
    }
}

fn check_size(size: &str, minimum: Option<i64>, at: &Path, errors: &mut Vec<FieldError>) {
    let invalid = |detail: String| at.invalid(size, detail);
    let Some(amount) = in_units(size, Unit::Thousandth).filter(|amount| *amount > 0) else {
        return errors.push(invalid("must be greater than zero".into()));
    };
    let before = errors.len();
    if amount < MIN_SIZE * GIB {
        errors.push(invalid(format!("must be at least {MIN_SIZE}Gi")));
    }
    if amount > MAX_SIZE * GIB {
        errors.push(invalid(format!("must be at most {MAX_SIZE}Gi")));
    }
    if amount % GIB != 0 {
        errors.push(invalid("must be a multiple of 1Gi".into()));
    }
    if let Some(minimum) = minimum.filter(|minimum| errors.len() == before && amount < minimum * GIB) {
        errors.push(invalid(format!("must be at least {minimum}Gi, the size of the image")));
    }
}

fn check_config_map(map: &ConfigMapVolumeSource, at: &Path, errors: &mut Vec<FieldError>) {
    if map.name.is_empty() {
        errors.push(at.at("name").required(""));
    }
    if let Some(mode) = map.default_mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.push(at.at("defaultMode").invalid(mode, "must be between 0 and 0777 (octal)"));
    }
    if map.items.as_ref().is_some_and(|items| !items.is_empty()) {
        errors.push(at.at("items").forbidden("selecting keys of a config map is not supported"));
    }
}
