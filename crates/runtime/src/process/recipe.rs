//! What a container is started with: program, arguments, environment, limits and fence.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use polis_api::compute::{Instance, NamedPort, NetworkInterfaceAssignments, SandboxContainer};
use polis_api::{labels, reasons};
use polis_core::{metadata, quota};

use super::environment::{Environment, Sources, Trouble, environment, expand};
use super::image::{self, Program};
use super::seat::{self, Facts};
use super::watch::MARK;
use super::{Settings, fence};
use crate::Error;
use crate::provider::{Order, Refusal};
use crate::shim::{Launch, Limits};

/// Open files of a process.
const FILES: u64 = 65_536;

/// Everything that a container is started with.
pub(super) fn recipe(
    settings: &Settings,
    order: &Order<'_>,
    container: &SandboxContainer,
    facts: &Facts,
    restarts: u32,
) -> Result<Launch, Trouble> {
    let host = settings.host_programs.then_some(|name: &str| find(name, &settings.path));
    let Program { path, first } =
        image::program(container, &settings.binary, host).map_err(Trouble::Refused)?;
    let sizes = quota::sizes(&order.instance.spec).map_err(|error| {
        Trouble::Refused(Refusal { reason: reasons::CONFIGURATION_ERROR, message: error.to_string() })
    })?;
    let seat = facts.write(&settings.dir)?;
    let (_, work) = seat::container(&seat, &container.name)?;
    let value = serde_json::to_value(with_address(order.instance, facts))
        .map_err(|error| Error::directory(&seat)(error.into()))?;
    let sources = Sources { instance: &value, sizes, data: order.data };
    let base = surroundings(order, container, facts, settings, &work, restarts);
    let mut env = environment(base, container, &sources)?;
    env.insert(MARK.to_owned(), format!("{}/{}", facts.uid, container.name));
    let args: Vec<String> =
        first.into_iter().chain(container.args.iter().map(|arg| expand(arg, &env))).collect();
    let fence = settings.fence.then(|| fence::around(&path, &args, &work, &settings.readable));
    let memory = sizes.and_then(|sizes| u64::try_from(sizes.mebibytes).ok()).map(|size| size << 20);
    let limits = Limits { memory, files: FILES };
    Ok(Launch { program: path, args, env, work, limits, fence })
}

/// The instance as it will be, with its address in the status, for fields that refer to it.
fn with_address(instance: &Instance, facts: &Facts) -> Instance {
    let mut instance = instance.clone();
    let interfaces = &mut instance.status.get_or_insert_default().network_interfaces;
    if interfaces.is_empty() {
        interfaces.push(Default::default());
    }
    if let Some(first) = interfaces.first_mut() {
        let assigned = first.assignments.get_or_insert_with(NetworkInterfaceAssignments::default);
        assigned.network_ip = Some(facts.address.to_string());
    }
    instance
}

/// What every container is told, before its own variables.
fn surroundings(
    order: &Order<'_>,
    container: &SandboxContainer,
    facts: &Facts,
    settings: &Settings,
    work: &Path,
    restarts: u32,
) -> Environment {
    let mut env = Environment::new();
    let mut set = |name: &str, value: String| _ = env.insert(name.to_owned(), value);
    set("PATH", settings.path.clone());
    set("HOME", work.display().to_string());
    set("TMPDIR", seat::temporary(work).display().to_string());
    set("POLIS_INSTANCE", facts.name.clone());
    set("POLIS_CONTAINER", container.name.clone());
    set("POLIS_CITY", order.city.to_owned());
    set("POLIS_ADDRESS", facts.address.to_string());
    set("POLIS_RESTARTS", restarts.to_string());
    if let Some(workload) = metadata::label(&order.instance.metadata, labels::WORKLOAD_NAME) {
        set("POLIS_WORKLOAD", workload.to_owned());
    }
    if let Some(origin) = order.origin {
        set("POLIS_PROJECT", origin.project.clone());
        set("POLIS_NAMESPACE", origin.namespace.clone());
    }
    for (place, port) in container.ports.iter().enumerate() {
        let Some(number) = number(port) else { continue };
        let number = facts.port(number).to_string();
        if place == 0 {
            set("PORT", number.clone());
        }
        set(&format!("PORT_{}", port.name.to_uppercase().replace('-', "_")), number);
    }
    env
}

pub(super) fn number(port: &NamedPort) -> Option<u16> {
    u16::try_from(port.port).ok().filter(|port| *port != 0)
}

pub(super) fn is_tcp(port: &&NamedPort) -> bool {
    port.protocol.as_deref().is_none_or(|protocol| protocol.eq_ignore_ascii_case("TCP"))
}

/// A program of the host, by full path or by a name on the search path.
fn find(name: &str, path: &str) -> Option<PathBuf> {
    let runs = |path: &Path| {
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = if name.contains('/') {
        Some(PathBuf::from(name)).filter(|path| path.is_absolute())
    } else {
        path.split(':')
            .filter(|dir| !dir.is_empty())
            .map(|dir| Path::new(dir).join(name))
            .find(|path| runs(path))
    };
    found.filter(|path| !name.is_empty() && runs(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_or_full_path() {
        assert!(find("sh", "/nowhere::/usr/bin:/bin").unwrap().ends_with("sh"));
        assert_eq!(find("/bin/sh", ""), Some("/bin/sh".into()));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("plain"), "no program").unwrap();
        let plain = dir.path().join("plain").display().to_string();
        for nothing in ["", "bin/sh", "./sh", "no-such-program", "/bin", "plain", plain.as_str()] {
            assert_eq!(find(nothing, &format!("/usr/bin:/bin:{}", dir.path().display())), None, "{nothing}");
        }
    }
}
