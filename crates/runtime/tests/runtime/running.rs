//! What an instance has that runs.

use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::networking::{NetworkBinding, SubnetClaim};
use polis_api::{finalizers, labels, names};
use polis_runtime::logs::Query;
use polis_runtime::{Addresses, Keep};
use serde_json::json;

use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn hello_answers_at_its_own_address_and_says_where_it_is() {
    let world = World::new().await;
    world.create(&with_port(mk_instance("web-dfw-0", "polis.local/hello", &[]), 8080)).await;
    let instance = world.until_running("web-dfw-0").await;
    let answer = ask(&address(&instance), 8080).await;
    for words in ["Hello from dfw!", "workload: web", "instance: web-dfw-0", "project:  acme", "request:  1"]
    {
        assert!(answer.contains(words), "{words} in {answer}");
    }
    assert!(ask(&address(&instance), 8080).await.contains("request:  2"));
    assert_eq!(instance.metadata.finalizers.as_deref(), Some(&[finalizers::RUNTIME.to_owned()][..]));
    let status = instance.status.unwrap();
    assert_eq!(status.controller.unwrap().observed_template_hash, "0123456789");
    assert!(
        !status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_listen_on_the_same_port_each_at_its_address() {
    let world = World::new().await;
    for name in ["web-0", "web-1"] {
        world.create(&with_port(mk_instance(name, "polis.local/hello", &[]), 8080)).await;
    }
    let (first, second) = (world.until_running("web-0").await, world.until_running("web-1").await);
    assert_ne!(address(&first), address(&second));
    assert!(ask(&address(&first), 8080).await.contains("instance: web-0"));
    assert!(ask(&address(&second), 8080).await.contains("instance: web-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_the_network_has_given_is_used() {
    let world = World::new().await;
    let gated = with_gate(with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080), "Network");
    world.create(&gated).await;
    world
        .change("web-0", |instance| {
            let given = json!([{"assignments": {"networkIP": "127.250.7.9"}}]);
            instance.status.get_or_insert_default().network_interfaces =
                serde_json::from_value(given).unwrap();
            instance.spec.controller.as_mut().unwrap().scheduling_gates.clear();
        })
        .await;
    assert_eq!(address(&world.until_running("web-0").await), "127.250.7.9");
    assert!(ask("127.250.7.9", 8080).await.contains("instance: web-0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_comes_from_the_network_where_the_cell_keeps_networks() {
    let world = World::new().await;
    let mut binding = NetworkBinding::default();
    binding.metadata.name = Some(names::network_binding("web-dfw", 0));
    binding.metadata.namespace = Some(HOME.into());
    let mut claim = SubnetClaim::default();
    claim.metadata.name = Some(names::subnet_claim("default-dfw"));
    claim.metadata.namespace = Some(HOME.into());
    world.put(&binding).await;
    world.put(&claim).await;
    let context = json!({"name": "default-dfw", "namespace": HOME});
    world
        .change_status::<NetworkBinding>(&binding, |binding| {
            binding.status.get_or_insert_default().network_context_ref =
                serde_json::from_value(context.clone()).unwrap();
        })
        .await;
    world
        .change_status::<SubnetClaim>(&claim, |claim| {
            let status = claim.status.get_or_insert_default();
            status.start_address = Some("127.200.6.0".into());
            status.prefix_length = Some(23);
        })
        .await;
    for name in ["web-dfw-0", "web-dfw-1"] {
        let mut instance = with_port(mk_instance(name, "polis.local/hello", &[]), 8080);
        let labels = instance.metadata.labels.as_mut().unwrap();
        labels.insert(labels::WORKLOAD_DEPLOYMENT_NAME.into(), "web-dfw".into());
        world.create(&instance).await;
        let address = address(&world.until_running(name).await);
        assert!(address.starts_with("127.200.6.") || address.starts_with("127.200.7."), "{address}");
        assert!(ask(&address, 8080).await.contains(name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_addresses_are_shared_ports_are_mapped() {
    let world = World::with(|settings| settings.addresses = Addresses::Shared).await;
    for name in ["web-0", "web-1"] {
        world.create(&with_port(mk_instance(name, "polis.local/hello", &[]), 8080)).await;
    }
    for name in ["web-0", "web-1"] {
        assert_eq!(address(&world.until_running(name).await), "127.0.0.1");
        let message = world.until_says(name, "Running", "True", "Running").await;
        let port = message.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(ask("127.0.0.1", port).await.contains(&format!("instance: {name}")), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_a_gate_is_left_alone() {
    let world = World::new().await;
    let uid = world.create(&with_gate(mk_instance("held", "polis.local/sleep", &[]), "Quota")).await;
    world.create(&mk_instance("free", "polis.local/sleep", &[])).await;
    world.until_running("free").await;
    assert_eq!(world.state(&uid), None);
    assert_eq!(world.instance("held").await.unwrap().metadata.finalizers, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_runs_when_its_first_port_accepts() {
    let world = World::new().await;
    let script = r#"while [ ! -e go ]; do sleep 0.02; done; exec "$0" __program hello"#;
    let mut instance = with_port(mk_script("late", script), 8080);
    container(&mut instance).args.push(env!("CARGO_BIN_EXE_polis-shim").into());
    let uid = world.create(&instance).await;
    let message = world.until_says("late", "Running", "False", "Starting").await;
    world
        .until("the port is waited for", async || {
            let message = world.message("late", "Running", "False", "Starting").await?;
            message.contains(":8080 accepts connections").then_some(())
        })
        .await;
    assert!(!message.is_empty());
    let work = files(world.outside()).into_keys().find(|path| path.ends_with("state.json")).unwrap();
    assert!(work.display().to_string().contains(&uid));
    std::fs::write(work.with_file_name("work").join("go"), "").unwrap();
    world.until_running("late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_comes_from_fields_config_maps_and_secrets() {
    let world = World::new().await;
    let mut instance = mk_script(
        "told",
        r#"echo "name=$NAME level=$LEVEL token=${#TOKEN} at=$AT port=$1 home=$(pwd)"; sleep 1000"#,
    );
    container(&mut instance).args.extend(["sh".to_owned(), "$(PORT)".to_owned()]);
    container(&mut instance).ports =
        serde_json::from_value(json!([{"name": "udp", "port": 53, "protocol": "UDP"}])).unwrap();
    container(&mut instance).env = serde_json::from_value(json!([
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "vault", "key": "token"}}},
        {"name": "AT", "valueFrom": {"fieldRef": {"fieldPath": "status.networkInterfaces[0].assignments.networkIP"}}},
    ]))
    .unwrap();
    let uid = world.create(&instance).await;

    let message = world.until_says("told", "Programmed", "False", "ConfigurationError").await;
    assert!(message.contains("config map settings"), "{message}");
    let mut settings =
        ConfigMap { data: Some([("level".into(), "debug".into())].into()), ..ConfigMap::default() };
    settings.metadata.name = Some("settings".into());
    settings.metadata.namespace = Some(HOME.into());
    world.put(&settings).await;
    world
        .until("the secret is asked for", async || {
            let message = world.message("told", "Programmed", "False", "ConfigurationError").await?;
            message.contains("secret vault").then_some(())
        })
        .await;
    let token = ByteString(b"s3cret-s3cret".into());
    let mut vault = Secret { data: Some([("token".into(), token)].into()), ..Secret::default() };
    vault.metadata.name = Some("vault".into());
    vault.metadata.namespace = Some(HOME.into());
    world.put(&vault).await;

    let at = address(&world.until_running("told").await);
    let rest =
        world.until_writes(&uid, &format!("name=told level=debug token=13 at={at} port=53 home=")).await;
    assert!(rest.ends_with(&format!("{uid}/app/work")), "{rest}");
    let secret = |content: &Vec<u8>| content.windows(6).any(|window| window == b"s3cret");
    assert!(!files(world.outside()).values().any(secret), "secrets stay off the disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_follow_the_instance_type() {
    let world = World::new().await;
    let uid = world.create(&mk_script("small", "echo data=$(ulimit -d) core=$(ulimit -c); sleep 1000")).await;
    world.until_writes(&uid, "data=2097152 core=0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_touches_its_own_folder_and_no_other() {
    use landlock::{ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if strict.handle_access(AccessFs::from_all(ABI::V1)).is_err() {
        eprintln!("this kernel has no landlock: nothing to see here");
        return;
    }
    let world = World::new().await;
    let neighbour = world.create(&mk_instance("neighbour", "polis.local/sleep", &[])).await;
    world.until_running("neighbour").await;
    std::fs::write(world.outside().join("private"), "x").unwrap();
    let script = format!(
        "echo mine > file && cat file; cat {dir}/private || echo cannot read; echo x > {dir}/new || echo cannot write; ls {dir}/dfw/{neighbour} || echo cannot look; sleep 1000",
        dir = world.outside().display(),
    );
    let uid = world.create(&mk_script("curious", &script)).await;
    for words in ["mine", "cannot read", "cannot write", "cannot look"] {
        world.until_writes(&uid, words).await;
    }
    assert!(!world.outside().join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_served_as_the_log_of_an_instance() {
    let world = World::new().await;
    let uid = world.create(&mk_script("talker", "echo one; echo two >&2; sleep 1000")).await;
    world.until_writes(&uid, "one").await;
    world.until_writes(&uid, "two").await;
    let whole = world.log("talker", "").await.unwrap();
    assert!(whole == "one\ntwo\n" || whole == "two\none\n", "{whole}");
    assert_eq!(world.log("talker", "tailLines=0").await.unwrap(), "");
    assert!(world.log("talker", "timestamps=true&tailLines=1").await.unwrap().starts_with("20"));
    let wrong = world.log("talker", "tailLines=x").await.unwrap_err();
    assert!(wrong.contains("tailLines=x"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_never_stops_talking_fills_no_disk() {
    let keep = Keep { bytes: 64 << 10, files: 3 };
    let world = World::with(|settings| settings.keep = keep).await;
    let uid = world.create(&mk_script("talker", "i=0; while :; do i=$((i+1)); echo line $i; done")).await;
    let size = || {
        let logs = files(world.outside()).into_iter();
        let logs = logs.filter(|(path, _)| path.display().to_string().contains("output.log"));
        logs.map(|(_, content)| content.len() as u64).collect::<Vec<_>>()
    };
    let number = async || {
        let last = world.lines(&uid, &Query { tail: Some(1), ..Query::default() }).await;
        last.first().and_then(|line| line.text.strip_prefix("line ")?.parse::<u64>().ok())
    };
    // More than four times of what is kept.
    world.until("much is written", async || number().await.filter(|lines| *lines > 20_000)).await;
    let sizes = size();
    assert!(sizes.len() <= 3 && sizes.iter().all(|size| *size <= keep.bytes), "{sizes:?}");
    let tail = world.lines(&uid, &Query { tail: Some(10), ..Query::default() }).await;
    assert_eq!(tail.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_while_nothing_happens() {
    let world = World::new().await;
    world.create(&with_port(mk_instance("calm", "polis.local/hello", &[]), 8080)).await;
    let before = world.until_running("calm").await.metadata.resource_version;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await; // a quiet window, in which nothing may happen
    assert_eq!(world.instance("calm").await.unwrap().metadata.resource_version, before);
}
