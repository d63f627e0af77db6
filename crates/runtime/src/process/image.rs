//! Resolves a container's `image` to a program of this host.
//!
//! `polis.local/<name>` is a program built into the binary; `process:<path or name>` is a program of the
//! host; others come from a registry. Tags are ignored. `command` replaces the program, as it replaces an
//! image's entry point in Kubernetes.

use std::path::{Path, PathBuf};

use polis_api::compute::{InstanceSpec, SandboxContainer};
use polis_api::names::is_dns_label;
use polis_api::reasons;

use crate::internal_command::PROGRAM;
use crate::program::NAMES;
use crate::provider::RunRefusal;

/// Prefix of the built-in images.
pub const BUILT_IN: &str = "polis.local/";
/// Prefix of programs of the host.
pub const HOST: &str = "process:";

/// Whether an image is pulled from a registry.
pub(crate) fn is_pulled(image: &str) -> bool {
    !image.starts_with(BUILT_IN) && !image.starts_with(HOST)
}

/// The program of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// Arguments before the container's own.
    pub(crate) first: Vec<String>,
}

/// The containers of an instance; a refusal if the spec cannot run as processes.
pub(crate) fn containers(spec: &InstanceSpec) -> Result<&[SandboxContainer], RunRefusal> {
    let wrong =
        |message: &str| Err(RunRefusal { reason: reasons::CONFIGURATION_ERROR, message: message.to_owned() });
    let sandbox = match (&spec.runtime.sandbox, &spec.runtime.virtual_machine) {
        (Some(sandbox), None) => sandbox,
        (_, Some(_)) => {
            return wrong(
                "this city runs instances as processes and has no virtual machines; use spec.runtime.sandbox, or a city with virtual machines",
            );
        }
        (None, None) => return wrong("the instance has nothing to run; set spec.runtime.sandbox"),
    };
    for container in &sandbox.containers {
        if !is_dns_label(&container.name) {
            return wrong(&format!(
                "container name {:?} is not a DNS label: use at most 63 of a-z, 0-9 and -",
                container.name
            ));
        }
        if let Some(volume) = container.volume_attachments.first() {
            return wrong(&format!(
                "container {} attaches volume {}, and processes have no mounts; pass data through env with valueFrom, and keep files in the working directory",
                container.name, volume.name
            ));
        }
    }
    if sandbox.containers.is_empty() {
        return wrong("the sandbox has no container; add one to spec.runtime.sandbox.containers");
    }
    Ok(&sandbox.containers)
}

/// The program of a container. `binary` is this binary; `find` looks up a host program by path or name, and
/// is `None` if host programs are disabled.
pub(crate) fn program(
    container: &SandboxContainer,
    binary: &Path,
    find: Option<impl Fn(&str) -> Option<PathBuf>>,
) -> Result<Program, RunRefusal> {
    let image = container.image.as_str();
    let unavailable = |message: String| RunRefusal { reason: reasons::IMAGE_UNAVAILABLE, message };
    if let Some(name) = image.strip_prefix(BUILT_IN) {
        let name = name.split_once(':').map_or(name, |(name, _)| name);
        let available = NAMES.map(|name| format!("{BUILT_IN}{name}")).join(", ");
        if !NAMES.contains(&name) {
            return Err(unavailable(format!("there is no built-in image {image}; use one of {available}")));
        }
        if !container.command.is_empty() {
            let message = format!(
                "container {} sets a command, and the built-in image {image} has no other program; use args, or a {HOST} image",
                container.name
            );
            return Err(RunRefusal { reason: reasons::CONFIGURATION_ERROR, message });
        }
        return Ok(Program { path: binary.to_owned(), first: vec![PROGRAM.to_owned(), name.to_owned()] });
    }
    let Some(named) = image.strip_prefix(HOST) else {
        return Err(unavailable(format!(
            "image {image} needs Linux; use {HOST}<program of the host> or one of {}",
            NAMES.map(|name| format!("{BUILT_IN}{name}")).join(", ")
        )));
    };
    let Some(find) = find else {
        return Err(unavailable(format!(
            "image {image} is a program of the host, and host programs are disabled in this city; ask its operator (polis up --allow-host-processes), or use one of {}",
            NAMES.map(|name| format!("{BUILT_IN}{name}")).join(", ")
        )));
    };
    let (wanted, first) = match container.command.split_first() {
        Some((program, rest)) => (program.as_str(), rest.to_vec()),
        None => (named, Vec::new()),
    };
    match find(wanted) {
        Some(path) => Ok(Program { path, first }),
        None => Err(unavailable(format!(
            "there is no program {wanted:?} on this host that instances may run; install it on the search path, in /usr or in /opt, or ask the operator to open its directory (polis up --allow-read)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use polis_api::compute::{SandboxRuntime, VirtualMachineRuntime, VolumeAttachment};

    fn mk_container(image: &str, command: &[&str]) -> SandboxContainer {
        SandboxContainer {
            name: "app".into(),
            image: image.into(),
            command: command.iter().map(|&word| word.into()).collect(),
            ..SandboxContainer::default()
        }
    }

    fn started(image: &str, command: &[&str]) -> Result<(String, Vec<String>), (&'static str, String)> {
        let find =
            Some(|name: &str| (name == "sh" || name == "/opt/app").then(|| Path::new("/bin").join(name)));
        program(&mk_container(image, command), Path::new("/usr/bin/polis"), find)
            .map(|program| (program.path.display().to_string(), program.first))
            .map_err(|refusal| (refusal.reason, refusal.message))
    }

    #[test]
    fn an_image_is_a_built_in_program_or_a_host_program() {
        let hello = ("/usr/bin/polis".to_owned(), vec!["__program".to_owned(), "hello".to_owned()]);
        assert_eq!(started("polis.local/hello", &[]), Ok(hello.clone()));
        assert_eq!(started("polis.local/hello:v2", &[]), Ok(hello));
        assert_eq!(started("process:sh", &[]), Ok(("/bin/sh".into(), vec![])));
        assert_eq!(started("process:/opt/app", &[]), Ok(("/opt/app".into(), vec![])));
        assert_eq!(started("process:any", &["sh", "-c"]), Ok(("/bin/sh".into(), vec!["-c".into()])));
    }

    #[test]
    fn an_image_that_cannot_run_is_refused_with_advice() {
        let table: &[(&str, &[&str], &str, &str)] = &[
            ("nginx:1.29", &[], "ImageUnavailable", "polis.local/hello"),
            ("polis.local/hullo", &[], "ImageUnavailable", "polis.local/hello"),
            ("process:nope", &[], "ImageUnavailable", "install it"),
            ("process:", &[], "ImageUnavailable", "no program \"\""),
            ("polis.local/hello", &["x"], "ConfigurationError", "use args"),
        ];
        for (image, command, reason, way_out) in table {
            let (actual, message) = started(image, command).unwrap_err();
            assert_eq!(actual, *reason, "{image}");
            assert!(message.contains(way_out), "{image}: {message}");
        }
    }

    #[test]
    fn only_built_in_images_run_where_host_programs_are_disabled() {
        let run = |image| {
            let none: Option<fn(&str) -> Option<PathBuf>> = None;
            program(&mk_container(image, &[]), Path::new("/usr/bin/polis"), none)
        };
        assert!(run("polis.local/hello").is_ok());
        assert!(run("process:sh").unwrap_err().message.contains("ask its operator"));
    }

    #[test]
    fn virtual_machines_mounts_and_invalid_names_are_refused() {
        let mut spec = InstanceSpec::default();
        let why = |spec: &InstanceSpec| containers(spec).map(|_| ()).map_err(|refusal| refusal.message);
        assert!(why(&spec).unwrap_err().contains("nothing to run"));
        spec.runtime.virtual_machine = Some(VirtualMachineRuntime::default());
        assert!(why(&spec).unwrap_err().contains("no virtual machines"));
        spec.runtime.virtual_machine = None;
        spec.runtime.sandbox =
            Some(SandboxRuntime { containers: vec![mk_container("x", &[])], ..SandboxRuntime::default() });
        assert_eq!(why(&spec), Ok(()));
        for name in ["../up", "", "A", "-a", "a/b"] {
            spec.runtime.sandbox.as_mut().unwrap().containers[0].name = name.into();
            assert!(why(&spec).unwrap_err().contains("not a DNS label"), "{name}");
        }
        let container = &mut spec.runtime.sandbox.as_mut().unwrap().containers[0];
        container.name = "app".into();
        container.volume_attachments = vec![VolumeAttachment { name: "disk".into(), mount_path: None }];
        assert!(why(&spec).unwrap_err().contains("volume disk"));
    }
}
