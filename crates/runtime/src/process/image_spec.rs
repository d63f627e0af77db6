//! The launch spec of a container from an OCI image.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use polis_api::reasons;

use super::environment::{Environment, EnvironmentError, Sources, environment, expand};
use super::host::Host;
use super::instance_dir::{self, InstanceRecord};
use super::launch_spec::{ContainerStart, base_environment, limits, network};
use super::shim_process::CONTAINER_ID_VARIABLE;
use crate::Error;
use crate::isolation::identity::Identity;
use crate::isolation::root::Root;
use crate::oci::{Image, identity};
use crate::provider::{RunRefusal, RunRequest};
use crate::shim::{LaunchSpec, Namespaces, Sandbox};

/// Search path of images that set none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The name server in containers: an address whose queries the shim answers.
const NAME_SERVER: &str = "169.254.0.53";

/// Builds the launch spec of a container from an image. Returns the image's stop signal, too.
pub(super) fn image_spec(
    host: &Host,
    request: &RunRequest<'_>,
    record: &InstanceRecord,
    start: &ContainerStart<'_>,
    image: &Image,
    sources: &Sources<'_>,
) -> Result<(LaunchSpec, Option<i32>), EnvironmentError> {
    let (settings, container) = (&host.settings, start.container);
    let refused = |message: String| {
        EnvironmentError::Refused(RunRefusal { reason: reasons::IMAGE_UNAVAILABLE, message })
    };
    if let Err(why) = &host.isolation().namespaces {
        return Err(refused(format!(
            "image {} needs namespaces, which this host does not give: {why}; ask its operator, or use a built-in image",
            container.image
        )));
    }
    let wrong = |error| refused(format!("image {} cannot run: {error}", container.image));
    let config = &image.config;
    let line = config.command_line(&container.command, &container.args).map_err(wrong)?;
    let layers: Vec<PathBuf> = image.layers.iter().map(|name| host.images.store.layer(name)).collect();
    let user = identity(config.user.as_deref(), &layers).map_err(wrong)?;

    let mut base = base_environment(request, container, record, settings, Path::new("/"), start.restarts);
    base.remove("TMPDIR");
    base.insert("PATH".to_owned(), PATH.to_owned());
    base.insert("HOME".to_owned(), user.home.unwrap_or_else(|| "/".to_owned()));
    base.insert("HOSTNAME".to_owned(), record.name.clone());
    let own = |name: &String| name.starts_with("POLIS_");
    base.extend(config.environment().into_iter().filter(|(name, _)| !own(name)));
    let mut env: Environment = environment(base, container, sources)?;
    env.insert(CONTAINER_ID_VARIABLE.to_owned(), format!("{}/{}", record.uid, container.name));
    let mut line = line.into_iter().map(|word| expand(&word, &env));
    let program = PathBuf::from(line.next().unwrap_or_default());
    let args = line.collect();

    let instance_dir = record.write(&settings.dir)?;
    let failed = |error| Error::directory(&instance_dir)(error);
    host.images.store.claim(&format!("{}.{}", record.uid, container.name), image).map_err(failed)?;
    let writable = instance_dir::create_layer(&instance_dir, &container.name)?;
    let files = network_files(&writable, record).map_err(failed)?;
    let is_root = rustix::process::geteuid().is_root();
    let work = config.working_dir.as_deref().filter(|work| work.starts_with('/')).unwrap_or("/");
    let mut limits = limits(host, request)?;
    // Root of the host is the user of several containers, whose processes the kernel counts together.
    limits.processes = limits.processes.filter(|_| !is_root);
    let namespaces = Namespaces {
        hostname: record.name.clone(),
        root: Root::Image {
            store: host.images.store.layer(""),
            layers: image.layers.clone(),
            writable: writable.clone(),
            files,
            work: work.into(),
        },
        network: network(container, request, record),
        identity: Some(Identity {
            user: user.user,
            group: user.group,
            groups: user.groups,
            capabilities: if user.user == 0 { Identity::ROOT_CAPABILITIES } else { 0 },
        }),
        inside: Some((user.user, user.group)),
    };
    let spec = LaunchSpec {
        program,
        args,
        env,
        work: work.into(),
        limits,
        disk: Some((writable, settings.max_disk_bytes)),
        sandbox: Some(Sandbox { read: Vec::new(), write: vec!["/".into()] }),
        namespaces: Some(namespaces),
    };
    Ok((spec, config.stop_signal().and_then(signal)))
}

/// Writes the files that tell a container its name and its name server; returns them with their paths in it.
fn network_files(writable: &Path, record: &InstanceRecord) -> std::io::Result<Vec<(PathBuf, PathBuf)>> {
    let InstanceRecord { name, address, .. } = record;
    let contents = BTreeMap::from([
        ("hosts", format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n{address} {name}\n")),
        ("hostname", format!("{name}\n")),
        ("resolv.conf", format!("nameserver {NAME_SERVER}\n")),
    ]);
    let mut files = Vec::new();
    for (file, content) in contents {
        let path = writable.join(file);
        fs::write(&path, content)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        // The root of a container has no links to resolve on the host.
        files.push((fs::canonicalize(path)?, Path::new("/etc").join(file)));
    }
    Ok(files)
}

/// The number of a signal: `SIGQUIT`, `QUIT` or `3`.
fn signal(name: &str) -> Option<i32> {
    let numbers = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("KILL", 9),
        ("USR1", 10),
        ("USR2", 12),
        ("TERM", 15),
        ("WINCH", 28),
    ];
    let name = name.trim_start_matches("SIG");
    numbers.iter().find(|(known, _)| *known == name).map(|(_, number)| *number).or_else(|| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_have_names_and_numbers() {
        assert_eq!(
            ["SIGQUIT", "QUIT", "3", "SIGTERM", "nonsense"].map(signal),
            [Some(3), Some(3), Some(3), Some(15), None]
        );
    }
}
