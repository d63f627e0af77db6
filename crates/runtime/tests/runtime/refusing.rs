//! What cannot be run, and the sentence that says what to do.

use polis_api::compute::{VirtualMachineRuntime, VolumeAttachment};

use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_needs_an_engine_is_unavailable() {
    let world = World::new().await;
    world.create(&mk_instance("nginx", "docker.io/library/nginx:1.29", &[])).await;
    let message = world.until_says("nginx", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("polis.local/hello") && message.contains("process:"), "{message}");
    assert!(world.message("nginx", "Running", "False", "Stopped").await.is_some());
    assert_eq!(world.instance("nginx").await.unwrap().status.unwrap().controller, None);
    world.delete("nginx").await;
    world.until_gone("nginx").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_the_host_does_not_have_is_unavailable() {
    let world = World::new().await;
    world.create(&mk_instance("nope", "process:no-such-program", &[])).await;
    let message = world.until_says("nope", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("no-such-program") && message.contains("install it"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_machine_is_a_configuration_error() {
    let world = World::new().await;
    let mut instance = mk_instance("machine", "", &[]);
    instance.spec.runtime.sandbox = None;
    let boot = VolumeAttachment { name: "boot".into(), mount_path: None };
    instance.spec.runtime.virtual_machine =
        Some(VirtualMachineRuntime { volume_attachments: vec![boot], ports: Vec::new() });
    world.create(&instance).await;
    let message = world.until_says("machine", "Programmed", "False", "ConfigurationError").await;
    assert!(message.contains("use spec.runtime.sandbox"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_executed_says_why() {
    let world = World::new().await;
    let program = world.outside().join("not-a-program");
    std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    world.create(&mk_instance("bad", &format!("process:{}", program.display()), &[])).await;
    let message = world.until_says("bad", "Running", "False", "InstanceCrashing").await;
    assert!(message.contains("it could not be started") && message.contains("not-a-program"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_start_shims_says_so_and_goes_on_when_it_can() {
    let binary = tempfile::tempdir().unwrap();
    let shim = binary.path().join("polis");
    let world = World::with(|settings| settings.binary = shim.clone()).await;
    let uid = world.create(&mk_script("early", "echo up; sleep 1000")).await;
    let message = world.until_says("early", "Programmed", "False", "ProgrammingInProgress").await;
    assert!(message.contains("failed to start container app"), "{message}");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_polis-shim"), &shim).unwrap();
    world.until_writes(&uid, "up").await;
    world.until_running("early").await;
}
