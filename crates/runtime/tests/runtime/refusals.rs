//! Instances that cannot run, and the advice in their conditions.

use polis_api::compute::{VirtualMachineRuntime, VolumeAttachment};
use polis_runtime::ProcessSettings;

use crate::test_cell::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_registry_that_does_not_answer_is_unavailable() {
    let cell = TestCell::new().await;
    cell.create(&mk_instance("nginx", "127.0.0.1:1/library/nginx:1.29", &[])).await;
    let message = cell.until_condition("nginx", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("failed to connect to 127.0.0.1:1"), "{message}");
    assert!(cell.message("nginx", "Running", "False", "Stopped").await.is_some());
    cell.delete("nginx").await;
    cell.until_gone("nginx").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_the_host_does_not_have_is_unavailable() {
    let cell = TestCell::new().await;
    cell.create(&mk_instance("nope", "process:no-such-program", &[])).await;
    let message = cell.until_condition("nope", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("no-such-program") && message.contains("install it"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_machine_is_a_configuration_error() {
    let cell = TestCell::new().await;
    let mut instance = mk_instance("machine", "", &[]);
    instance.spec.runtime.sandbox = None;
    let boot = VolumeAttachment { name: "boot".into(), mount_path: None };
    instance.spec.runtime.virtual_machine =
        Some(VirtualMachineRuntime { volume_attachments: vec![boot], ports: Vec::new() });
    cell.create(&instance).await;
    let message = cell.until_condition("machine", "Programmed", "False", "ConfigurationError").await;
    assert!(message.contains("use spec.runtime.sandbox"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_executed_reports_the_error() {
    let open = |settings: &mut ProcessSettings| {
        settings.readable = vec![settings.dir.with_file_name("not-a-program")];
    };
    let cell = TestCell::with(open).await;
    let program = cell.outside().join("not-a-program");
    std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    cell.create(&mk_instance("bad", &format!("process:{}", program.display()), &[])).await;
    let message = cell.until_condition("bad", "Running", "False", "InstanceCrashing").await;
    assert!(message.contains("failed to start") && message.contains("not-a-program"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_start_shims_reports_it_and_recovers() {
    let binary = tempfile::tempdir().unwrap();
    let shim = binary.path().join("polis");
    let cell = TestCell::with(|settings| settings.binary = shim.clone()).await;
    let uid = cell.create(&mk_script("early", "echo up; sleep 1000")).await;
    let message = cell.until_condition("early", "Programmed", "False", "ProgrammingInProgress").await;
    assert!(message.contains("failed to start container app"), "{message}");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_polis-shim"), &shim).unwrap();
    cell.until_writes(&uid, "up").await;
    cell.until_running("early").await;
}
