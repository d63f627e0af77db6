//! The launch spec of a container: program, arguments, environment, limits and sandbox.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use polis_api::compute::{Instance, NamedPort, NetworkInterfaceAssignments, SandboxContainer};
use polis_api::{ObjectExt, labels, reasons};
use polis_core::quota::{self, InstanceSize};

use super::environment::{Environment, EnvironmentError, Sources, environment, expand};
use super::host::Host;
use super::image::{self, Program};
use super::instance_dir::{self, InstanceRecord};
use super::shim_process::CONTAINER_ID_VARIABLE;
use super::{ProcessSettings, health, sandbox};
use crate::Error;
#[cfg(target_os = "linux")]
use crate::isolation::{identity, identity::Identity, network::Network, root::Root};
#[cfg(target_os = "linux")]
use crate::oci::Image;
use crate::provider::{RunRefusal, RunRequest};
#[cfg(target_os = "linux")]
use crate::shim::Namespaces;
use crate::shim::{LaunchSpec, Limits, TerminationCause};

/// A container that is started.
pub(super) struct ContainerStart<'a> {
    pub(super) container: &'a SandboxContainer,
    /// Number of failed runs before this one.
    pub(super) restarts: u32,
    /// How the last run ended, if it failed.
    pub(super) failed_by: Option<&'a TerminationCause>,
}

/// Builds the launch spec of a container.
pub(super) fn launch_spec(
    host: &Host,
    request: &RunRequest<'_>,
    record: &InstanceRecord,
    start: &ContainerStart<'_>,
    image: Option<&Image>,
) -> Result<(LaunchSpec, Option<i32>), EnvironmentError> {
    let (settings, container) = (&host.settings, start.container);
    let value = serde_json::to_value(with_address(request.instance, record))
        .map_err(|error| Error::directory(&settings.dir)(error.into()))?;
    let sources = Sources { instance: &value, sizes: sizes(request)?, data: request.data };
    #[cfg(target_os = "linux")]
    if let Some(image) = image {
        return super::image_spec::image_spec(host, request, record, start, image, &sources);
    }
    let readable = sandbox::readable(settings);
    let find = settings.host_programs.then_some(|name: &str| find(name, &settings.path, &readable));
    let Program { path, first } =
        image::program(container, &settings.binary, find).map_err(EnvironmentError::Refused)?;
    let instance_dir = record.write(&settings.dir)?;
    if let Some(TerminationCause::DiskLimit(_)) = start.failed_by {
        instance_dir::clear_container(&instance_dir, &container.name)?;
    }
    let confined = is_confined(host);
    let owner = (confined && rustix::process::geteuid().is_root()).then(|| owner(record));
    let work = instance_dir::create_container(&instance_dir, &container.name, owner)?;
    let base = base_environment(request, container, record, settings, &work, start.restarts);
    let mut env = environment(base, container, &sources)?;
    env.insert(CONTAINER_ID_VARIABLE.to_owned(), format!("{}/{}", record.uid, container.name));
    let args: Vec<String> =
        first.into_iter().chain(container.args.iter().map(|arg| expand(arg, &env))).collect();
    let sandbox = settings.sandbox.then(|| sandbox::sandbox(&path, &work, &readable));
    let limits = limits(host, request)?;
    #[cfg(target_os = "linux")]
    let namespaces = sandbox.as_ref().filter(|_| confined).map(|sandbox| Namespaces {
        hostname: record.name.clone(),
        root: Root::Host {
            read: sandbox.read.clone(),
            write: sandbox.write.clone(),
            links: sandbox::links(settings, sandbox, &work),
        },
        network: network(container, request, record),
        identity: owner.map(|owner| Identity {
            user: owner,
            group: owner,
            groups: Vec::new(),
            capabilities: 0,
        }),
        inside: None,
    });
    let spec = LaunchSpec {
        program: path,
        args,
        env,
        disk: Some((work.clone(), settings.max_disk_bytes)),
        work,
        limits,
        sandbox,
        #[cfg(target_os = "linux")]
        namespaces,
    };
    Ok((spec, None))
}

/// The limits of each process of an instance.
pub(super) fn limits(host: &Host, request: &RunRequest<'_>) -> Result<Limits, EnvironmentError> {
    let settings = &host.settings;
    let memory = sizes(request)?.and_then(|sizes| u64::try_from(sizes.mebibytes).ok()).map(|size| size << 20);
    Ok(Limits {
        memory: memory.filter(|_| !host.isolation().cgroups.limits_memory()),
        files: settings.max_open_files,
        file_size: Some(settings.max_file_bytes.min(settings.max_disk_bytes)),
        processes: is_confined(host).then_some(settings.max_processes),
    })
}

/// Whether programs have namespaces of their own.
fn is_confined(host: &Host) -> bool {
    host.settings.sandbox && host.isolation().namespaces.is_ok()
}

fn sizes(request: &RunRequest<'_>) -> Result<Option<InstanceSize>, EnvironmentError> {
    quota::instance_size(&request.instance.spec).map_err(|error| {
        EnvironmentError::Refused(RunRefusal {
            reason: reasons::CONFIGURATION_ERROR,
            message: error.to_string(),
        })
    })
}

/// The user of an instance, where Polis is root.
fn owner(record: &InstanceRecord) -> u32 {
    #[cfg(target_os = "linux")]
    return identity::uid(record.address);
    #[cfg(not(target_os = "linux"))]
    return record.address.to_bits();
}

/// The network of a container: the address of its instance, its TCP ports, and those of its probes.
#[cfg(target_os = "linux")]
pub(super) fn network(
    container: &SandboxContainer,
    request: &RunRequest<'_>,
    record: &InstanceRecord,
) -> Network {
    let all = image::containers(&request.instance.spec).unwrap_or_default();
    let named = container.ports.iter().filter(is_tcp).filter_map(number);
    let ports = named.chain(health::extra_ports(container, all)).map(|port| record.port(port));
    Network {
        address: record.address,
        ports: ports.collect::<std::collections::BTreeSet<_>>().into_iter().collect(),
        join: None, // set when the container is started
    }
}

/// The instance with its allocated address in the status, for `fieldRef` variables.
fn with_address(instance: &Instance, record: &InstanceRecord) -> Instance {
    let mut instance = instance.clone();
    let interfaces = &mut instance.status.get_or_insert_default().network_interfaces;
    if interfaces.is_empty() {
        interfaces.push(Default::default());
    }
    if let Some(first) = interfaces.first_mut() {
        let assigned = first.assignments.get_or_insert_with(NetworkInterfaceAssignments::default);
        assigned.network_ip = Some(record.address.to_string());
    }
    instance
}

/// The variables that every container gets, before its own.
pub(super) fn base_environment(
    request: &RunRequest<'_>,
    container: &SandboxContainer,
    record: &InstanceRecord,
    settings: &ProcessSettings,
    work: &Path,
    restarts: u32,
) -> Environment {
    let mut env = Environment::new();
    let mut set = |name: &str, value: String| _ = env.insert(name.to_owned(), value);
    set("PATH", settings.path.clone());
    set("HOME", work.display().to_string());
    set("TMPDIR", instance_dir::temp_dir(work).display().to_string());
    set("POLIS_INSTANCE", record.name.clone());
    set("POLIS_CONTAINER", container.name.clone());
    set("POLIS_CITY", request.city.to_owned());
    set("POLIS_ADDRESS", record.address.to_string());
    set("POLIS_RESTARTS", restarts.to_string());
    if let Some(workload) = request.instance.label(labels::WORKLOAD_NAME) {
        set("POLIS_WORKLOAD", workload.to_owned());
    }
    if let Some(origin) = request.origin {
        set("POLIS_PROJECT", origin.project.clone());
        set("POLIS_NAMESPACE", origin.namespace.clone());
    }
    for (place, port) in container.ports.iter().enumerate() {
        let Some(number) = number(port) else { continue };
        let number = record.port(number).to_string();
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

/// Finds an executable by name on the search path, or by absolute path in a readable directory: a tenant who
/// names another path must not have it executed, and so opened in the sandbox.
fn find(name: &str, path: &str, readable: &[PathBuf]) -> Option<PathBuf> {
    let runs = |path: &Path| {
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        let target = fs::canonicalize(name).ok().filter(|_| Path::new(name).is_absolute())?;
        let allowed = readable.iter().any(|readable| target.starts_with(readable));
        return (allowed && runs(&target)).then(|| PathBuf::from(name));
    }
    let dirs = path.split(':').map(Path::new).filter(|dir| dir.is_absolute() && !name.is_empty());
    dirs.map(|dir| dir.join(name)).find(|path| runs(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_or_full_path() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let readable = [fs::canonicalize("/bin").unwrap(), dir.clone()];
        assert!(find("sh", "/nowhere::/usr/bin:/bin", &readable).unwrap().ends_with("sh"));
        assert_eq!(find("/bin/sh", "", &readable), Some("/bin/sh".into()));
        fs::write(dir.join("plain"), "no program").unwrap();
        let plain = dir.join("plain").display().to_string();
        for nothing in ["", "bin/sh", "./sh", "no-such-program", "/bin", "plain", plain.as_str()] {
            assert_eq!(
                find(nothing, &format!("/usr/bin:/bin:{}", dir.display()), &readable),
                None,
                "{nothing}"
            );
        }
    }

    #[test]
    fn a_full_path_must_lead_to_a_readable_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (link, program) = (dir.path().join("link"), dir.path().join("program"));
        fs::copy("/bin/sh", &program).unwrap();
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        let readable = [fs::canonicalize("/bin").unwrap()];
        let found = |path: &Path| find(path.to_str().unwrap(), "/bin", &readable);
        assert_eq!(found(&program), None);
        assert_eq!(found(&Path::new("/bin/..").join(program.strip_prefix("/").unwrap())), None);
        assert_eq!(found(&link), Some(link.clone()));
        assert_eq!(find("sh", ".:bin", &readable), None, "only absolute entries of the search path count");
    }
}
