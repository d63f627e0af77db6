//! Running instances: addresses, environment, limits, sandbox and logs.

use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::networking::{NetworkBinding, SubnetClaim};
use polis_api::{finalizers, labels, names};
use polis_runtime::logs::LogQuery;
use polis_runtime::{AddressMode, LogRetention};
use serde_json::json;

use crate::test_cell::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_process_serves_does_not_make_an_instance_run() {
    let cell = TestCell::new().await;
    cell.create(&with_port(mk_instance("closed", "polis.local/sleep", &[]), 8080)).await;
    let waits = async || {
        let message = cell.message("closed", "Running", "False", "Starting").await?;
        message.split(' ').find(|word| word.ends_with(":8080")).map(str::to_owned)
    };
    let endpoint = cell.until("it waits for its port", waits).await;
    let _foreign = std::net::TcpListener::bind(&endpoint).unwrap();
    cell.until("the foreign listener is reported", async || {
        let message = cell.message("closed", "Running", "False", "Starting").await?;
        message.contains("a process outside of the instance listens there").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_responds_at_its_own_address_and_names_its_instance() {
    let cell = TestCell::new().await;
    cell.create(&with_port(mk_instance("web-dfw-0", "polis.local/hello", &[]), 8080)).await;
    let instance = cell.until_running("web-dfw-0").await;
    let response = http_get(&address(&instance), 8080).await;
    for words in ["Hello from dfw!", "workload: web", "instance: web-dfw-0", "project:  acme", "request:  1"]
    {
        assert!(response.contains(words), "{words} in {response}");
    }
    assert!(http_get(&address(&instance), 8080).await.contains("request:  2"));
    assert_eq!(instance.metadata.finalizers.as_deref(), Some(&[finalizers::RUNTIME.to_owned()][..]));
    let status = instance.status.unwrap();
    assert_eq!(status.controller.unwrap().observed_template_hash, "0123456789");
    assert!(
        !status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_listen_on_the_same_port_each_at_its_address() {
    let cell = TestCell::new().await;
    for name in ["web-0", "web-1"] {
        cell.create(&with_port(mk_instance(name, "polis.local/hello", &[]), 8080)).await;
    }
    let (first, second) = (cell.until_running("web-0").await, cell.until_running("web-1").await);
    assert_ne!(address(&first), address(&second));
    assert!(http_get(&address(&first), 8080).await.contains("instance: web-0"));
    assert!(http_get(&address(&second), 8080).await.contains("instance: web-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_the_status_is_used() {
    let cell = TestCell::new().await;
    let gated = with_gate(with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080), "Network");
    cell.create(&gated).await;
    cell.change("web-0", |instance| {
        let given = json!([{"assignments": {"networkIP": "127.250.7.9"}}]);
        instance.status.get_or_insert_default().network_interfaces = serde_json::from_value(given).unwrap();
        instance.spec.controller.as_mut().unwrap().scheduling_gates.clear();
    })
    .await;
    assert_eq!(address(&cell.until_running("web-0").await), "127.250.7.9");
    assert!(http_get("127.250.7.9", 8080).await.contains("instance: web-0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_comes_from_the_subnet_where_the_cell_has_networks() {
    let cell = TestCell::new().await;
    let mut binding = NetworkBinding::default();
    binding.metadata.name = Some(names::network_binding("web-dfw", 0));
    binding.metadata.namespace = Some(NAMESPACE.into());
    let mut claim = SubnetClaim::default();
    claim.metadata.name = Some(names::subnet_claim("default-dfw"));
    claim.metadata.namespace = Some(NAMESPACE.into());
    cell.put(&binding).await;
    cell.put(&claim).await;
    let context = json!({"name": "default-dfw", "namespace": NAMESPACE});
    cell.change_status::<NetworkBinding>(&binding, |binding| {
        binding.status.get_or_insert_default().network_context_ref =
            serde_json::from_value(context.clone()).unwrap();
    })
    .await;
    cell.change_status::<SubnetClaim>(&claim, |claim| {
        let status = claim.status.get_or_insert_default();
        status.start_address = Some("127.200.6.0".into());
        status.prefix_length = Some(23);
    })
    .await;
    for name in ["web-dfw-0", "web-dfw-1"] {
        let mut instance = with_port(mk_instance(name, "polis.local/hello", &[]), 8080);
        let labels = instance.metadata.labels.as_mut().unwrap();
        labels.insert(labels::WORKLOAD_DEPLOYMENT_NAME.into(), "web-dfw".into());
        cell.create(&instance).await;
        let address = address(&cell.until_running(name).await);
        assert!(address.starts_with("127.200.6.") || address.starts_with("127.200.7."), "{address}");
        assert!(http_get(&address, 8080).await.contains(name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_mapped_where_addresses_are_shared() {
    let cell = TestCell::with(|settings| settings.addresses = AddressMode::Shared).await;
    for name in ["web-0", "web-1"] {
        cell.create(&with_port(mk_instance(name, "polis.local/hello", &[]), 8080)).await;
    }
    for name in ["web-0", "web-1"] {
        assert_eq!(address(&cell.until_running(name).await), "127.0.0.1");
        let message = cell.until_condition(name, "Running", "True", "Running").await;
        let port = message.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(http_get("127.0.0.1", port).await.contains(&format!("instance: {name}")), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_a_gate_does_not_start() {
    let cell = TestCell::new().await;
    let uid = cell.create(&with_gate(mk_instance("held", "polis.local/sleep", &[]), "Quota")).await;
    cell.create(&mk_instance("free", "polis.local/sleep", &[])).await;
    cell.until_running("free").await;
    assert_eq!(cell.state(&uid), None);
    assert_eq!(cell.instance("held").await.unwrap().metadata.finalizers, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_running_when_its_first_port_accepts_connections() {
    let binary = env!("CARGO_BIN_EXE_polis-shim");
    let cell = TestCell::with(|settings| settings.readable = vec![binary.into()]).await;
    let script = r#"while [ ! -e go ]; do sleep 0.02; done; exec "$0" __program hello"#;
    let mut instance = with_port(mk_script("late", script), 8080);
    container(&mut instance).args.push(binary.into());
    let uid = cell.create(&instance).await;
    let message = cell.until_condition("late", "Running", "False", "Starting").await;
    cell.until("a message about the port", async || {
        let message = cell.message("late", "Running", "False", "Starting").await?;
        message.contains(":8080 accepts connections").then_some(())
    })
    .await;
    assert!(!message.is_empty());
    let work = files(cell.outside()).into_keys().find(|path| path.ends_with("state.json")).unwrap();
    assert!(work.display().to_string().contains(&uid));
    std::fs::write(work.with_file_name("work").join("go"), "").unwrap();
    cell.until_running("late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_comes_from_fields_config_maps_and_secrets() {
    let cell = TestCell::new().await;
    let mut instance = mk_script(
        "env-test",
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
    let uid = cell.create(&instance).await;

    let message = cell.until_condition("env-test", "Programmed", "False", "ConfigurationError").await;
    assert!(message.contains("config map settings"), "{message}");
    let mut settings =
        ConfigMap { data: Some([("level".into(), "debug".into())].into()), ..ConfigMap::default() };
    settings.metadata = mk_companion("ConfigMap", "settings");
    cell.put(&settings).await;
    cell.until("a message about the secret", async || {
        let message = cell.message("env-test", "Programmed", "False", "ConfigurationError").await?;
        message.contains("secret vault").then_some(())
    })
    .await;
    let token = ByteString(b"s3cret-s3cret".into());
    let mut vault = Secret { data: Some([("token".into(), token)].into()), ..Secret::default() };
    vault.metadata = mk_companion("Secret", "vault");
    cell.put(&vault).await;

    let at = address(&cell.until_running("env-test").await);
    let rest =
        cell.until_writes(&uid, &format!("name=env-test level=debug token=13 at={at} port=53 home=")).await;
    assert!(rest.ends_with(&format!("{uid}/app/work")), "{rest}");
    let secret = |content: &Vec<u8>| content.windows(6).any(|window| window == b"s3cret");
    assert!(!files(cell.outside()).values().any(secret), "secrets are not written to disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_follow_the_instance_type() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_script("small", "echo data=$(ulimit -d) core=$(ulimit -c); sleep 1000")).await;
    // The control group limits the memory of all processes; where there is none, each has a limit of its own.
    let data = if isolation().missing_limits.contains(&"memory") { "2097152" } else { "unlimited" };
    cell.until_writes(&uid, &format!("data={data} core=0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_limits_open_files_and_the_size_of_a_file() {
    let cell = TestCell::with(|settings| {
        settings.max_open_files = 100;
        settings.max_file_bytes = 1 << 20;
    })
    .await;
    let script =
        "head -c 2000000 /dev/zero > large || echo refused: $(stat -c %s large) of $(ulimit -n); sleep 1000";
    let uid = cell.create(&mk_script("large", script)).await;
    cell.until_writes(&uid, "refused: 1048576 of 100").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_served_as_the_log_of_an_instance() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_script("talker", "echo one; echo two >&2; sleep 1000")).await;
    cell.until_writes(&uid, "one").await;
    cell.until_writes(&uid, "two").await;
    let whole = cell.log("talker", "").await.unwrap();
    assert!(whole == "one\ntwo\n" || whole == "two\none\n", "{whole}");
    assert_eq!(cell.log("talker", "tailLines=0").await.unwrap(), "");
    assert!(cell.log("talker", "timestamps=true&tailLines=1").await.unwrap().starts_with("20"));
    let wrong = cell.log("talker", "tailLines=x").await.unwrap_err();
    assert!(wrong.contains("tailLines=x"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_chatty_program_stays_within_its_limits() {
    let retention = LogRetention { max_file_bytes: 64 << 10, max_files: 3 };
    let cell = TestCell::with(|settings| settings.log_retention = retention).await;
    let uid = cell.create(&mk_script("talker", "i=0; while :; do i=$((i+1)); echo line $i; done")).await;
    let size = || {
        let logs = files(cell.outside()).into_iter();
        let logs = logs.filter(|(path, _)| path.display().to_string().contains("output.log"));
        logs.map(|(_, content)| content.len() as u64).collect::<Vec<_>>()
    };
    let number = async || {
        let last = cell.lines(&uid, &LogQuery { tail: Some(1), ..LogQuery::default() }).await;
        last.first().and_then(|line| line.text.strip_prefix("line ")?.parse::<u64>().ok())
    };
    // More than four times the retained amount.
    cell.until("many lines", async || number().await.filter(|lines| *lines > 20_000)).await;
    let sizes = size();
    assert!(sizes.len() <= 3 && sizes.iter().all(|size| *size <= retention.max_file_bytes), "{sizes:?}");
    let tail = cell.lines(&uid, &LogQuery { tail: Some(10), ..LogQuery::default() }).await;
    assert_eq!(tail.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_causes_no_writes() {
    let cell = TestCell::new().await;
    cell.create(&with_port(mk_instance("calm", "polis.local/hello", &[]), 8080)).await;
    let before = cell.until_running("calm").await.metadata.resource_version;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await; // the window in which nothing may be written
    assert_eq!(cell.instance("calm").await.unwrap().metadata.resource_version, before);
}
