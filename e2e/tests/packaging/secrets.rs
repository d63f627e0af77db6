//! No secret of a manager appears in its logs, output, events, metrics, arguments or environment.

use std::{fs, path::Path, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use polis_e2e::{
    identities::MANAGERS,
    rendered::{RenderedManifests, as_text, objects},
};
use polis_testbed::{manifest, plane::SINGLE_PLANE};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    NAMESPACE, apply, cluster, kubectl,
    process::{Manager, program},
};

/// Planted secrets with their descriptions.
struct PlantedSecrets(Vec<(&'static str, String)>);

impl PlantedSecrets {
    #[track_caller]
    fn are_not_in(&self, location: &str, text: &str) {
        for (what, secret) in &self.0 {
            for encoded in [secret.clone(), BASE64_STANDARD.encode(secret)] {
                assert!(!text.contains(&encoded), "{what} is in {location}");
            }
        }
    }
}

/// A line from the middle of a PEM text: long enough to be unique, and short enough to fit on one line of a
/// log.
fn inner_line(pem: &str) -> String {
    let lines: Vec<&str> = pem.lines().collect();
    lines[lines.len() / 2].to_owned()
}

/// A kubeconfig with another user.
fn with_user(kubeconfig: &str, user: Value) -> String {
    let mut config = objects("kubeconfig", kubeconfig).remove(0);
    config["users"][0]["user"] = user;
    config.to_string()
}

/// Checks everything that a running manager exposes.
fn check_exposed(planted: &PlantedSecrets, manager: &Manager, what: &str) {
    planted.are_not_in(&format!("the log of {what}"), &manager.log_text());
    for page in ["/metrics", "/readyz?verbose", "/healthz"] {
        planted.are_not_in(&format!("{page} of {what}"), &manager.http_get(page).unwrap_or_default());
    }
    let pid = manager.pid().expect("it runs");
    for file in ["cmdline", "environ"] {
        let text = fs::read(format!("/proc/{pid}/{file}")).expect("its process");
        planted.are_not_in(&format!("{file} of {what}"), &String::from_utf8_lossy(&text));
    }
}

/// A preloaded library that makes `clock_gettime` fail on request: the Rust standard library panics without a
/// clock, so the process panics at its next read of the time.
struct RemovableClock {
    dir: TempDir,
}

impl RemovableClock {
    fn new() -> RemovableClock {
        let dir = tempfile::tempdir().expect("a directory");
        let source = r#"
            #define _GNU_SOURCE
            #include <errno.h>
            #include <stdlib.h>
            #include <sys/syscall.h>
            #include <time.h>
            #include <unistd.h>
            int clock_gettime(clockid_t clock, struct timespec *time) {
                const char *gone = getenv("CLOCK_IS_GONE");
                if (gone && access(gone, F_OK) == 0) {
                    errno = EINVAL;
                    return -1;
                }
                return syscall(SYS_clock_gettime, clock, time);
            }"#;
        fs::write(dir.path().join("clock.c"), source).expect("a file");
        // The linker of Rust programs.
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o", "clock.so", "clock.c"])
            .current_dir(dir.path())
            .status();
        assert!(built.expect("cc runs").success());
        RemovableClock { dir }
    }

    fn variables(&self) -> [(String, String); 3] {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        [
            ("LD_PRELOAD", path("clock.so")),
            ("CLOCK_IS_GONE", path("gone")),
            ("RUST_BACKTRACE", "full".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    }

    fn remove(&self) {
        fs::write(self.dir.path().join("gone"), "").expect("a file");
    }
}

/// The output of the binary in the environment of a pod, whatever its exit code.
fn output(manager: &Manager, arguments: &[&str]) -> String {
    let output = Command::new(program())
        .args(arguments)
        .env_clear()
        .envs(manager.pod.environment.iter().map(|(name, value)| (name, value)))
        .env("RUST_BACKTRACE", "full")
        .output()
        .expect("it runs");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn no_secret_is_in_logs_events_metrics_help_arguments_errors_or_panics() {
    let (cluster, _lock) = (cluster().await, crate::MANAGER_LOCK.lock().await);
    // The only plane is also hub and platform.
    for folder in [
        "deploy/components/federation",
        "deploy/components/rbac/project",
        "deploy/components/rbac/management",
    ] {
        apply(cluster, &RenderedManifests::of(folder));
    }
    let data = "planted-secret-data-Ao2o0ez3";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "planted", "namespace": NAMESPACE},
        "stringData": {"data": data}});
    kubectl(cluster, &["apply", "-f", "-"], &secret.to_string()).expect("a Secret");
    for (folder, role) in [
        ("docs/operations/examples/management-plane", "management"),
        ("docs/operations/examples/cell-dfw", "cell"),
    ] {
        let mut rendered = RenderedManifests::of(folder);
        // The log level for debugging.
        let deployment =
            rendered.0.iter_mut().find(|object| object["kind"] == "Deployment").expect("a Deployment");
        let variables =
            deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut().expect("variables");
        variables
            .iter_mut()
            .filter(|it| it["name"] == "RUST_LOG")
            .for_each(|it| it["value"] = json!("debug"));
        apply(cluster, &rendered);
        let own = cluster.kubeconfig_for(SINGLE_PLANE, &rendered.user(), &[MANAGERS]).expect("a kubeconfig");
        let user = &objects("kubeconfig", &own)[0]["users"][0]["user"];
        let key = as_text(&user["client-key-data"]).to_owned();
        let key_line = inner_line(&String::from_utf8_lossy(&BASE64_STANDARD.decode(&key).expect("base64")));
        let (hub_token, quota_token) = ("planted-hub-token-aiSh7Aec", "planted-quota-token-Uo4Ohph3");

        // Unknown tokens: both planes refuse them, and the manager logs errors.
        let token_file = json!({"tokenFile": "/etc/compute/hub-token/token"});
        let mut manager = Manager::with(&rendered, &own, &|name| match name {
            "" => hub_token.to_owned(),
            "compute-quota-credentials" => with_user(&own, json!({"token": quota_token})),
            _ => with_user(&own, token_file.clone()),
        });
        let mut planted = vec![
            ("the token of the hub", hub_token.to_owned()),
            ("the token for quota", quota_token.to_owned()),
            ("a client key", key),
            ("a client key", key_line),
            ("the data of a Secret", data.to_owned()),
        ];
        let webhook_key = manager.files.path().join("etc/compute/webhook-tls/tls.key");
        if Path::new(&webhook_key).is_file() {
            let line = inner_line(&fs::read_to_string(webhook_key).expect("a key"));
            planted.push(("the key of the webhooks", line));
        }
        let planted = PlantedSecrets(planted);
        let clock = RemovableClock::new();
        let environment = manager.pod.environment.clone();
        manager.pod.environment.extend(clock.variables());
        manager.start();
        let refused =
            manifest::until("pod", "the hub to refuse the manager", crate::process::TIMEOUT, async || {
                let log = manager.log_text();
                Ok(log.contains("the server does not accept the credentials").then_some(()))
            });
        refused.await.unwrap_or_else(|err| panic!("{err}\n{}", manager.log_text()));
        check_exposed(&planted, &manager, &format!("a refused manager of role {role}"));
        for arguments in [
            &["manager", "--help"][..],
            &["manager", "--check-config=planes"],
            &["manager", "--colour", hub_token.split_at(3).0],
        ] {
            planted.are_not_in(&arguments.join(" "), &output(&manager, arguments));
        }
        // The process panics with all secrets in memory.
        clock.remove();
        let panicked = manifest::until("pod", "the manager to panic", crate::process::TIMEOUT, async || {
            Ok(manager.log_text().contains("panicked at").then_some(()))
        });
        panicked.await.unwrap_or_else(|err| panic!("{err}\n{}", manager.log_text()));
        // The process may hang after the panic.
        manager.kill();
        planted.are_not_in("the output of a panic", &manager.log_text());
        manager.pod.environment = environment;

        // Unreadable files: the error has path and reason, and not the content.
        let broken = format!(
            "users:\n- name: a\n  user:\n    token: {hub_token}\n   client-key-data: {}\n",
            planted.0[2].1
        );
        for file in
            ["own.kubeconfig", "etc/compute/hub/kubeconfig", "etc/compute/quota-credentials/kubeconfig"]
        {
            let path = manager.files.path().join(file);
            let Ok(good) = fs::read_to_string(&path) else { continue };
            for bad in [
                &broken,
                hub_token,
                "{\"users\": [{\"name\": \"a\", \"user\": \"planted-hub-token-aiSh7Aec\"}]}",
            ] {
                fs::write(&path, bad).expect("a file");
                for arguments in [&["manager"][..], &["manager", "--check-config"]] {
                    planted.are_not_in(
                        &format!("the error about a broken {file}"),
                        &output(&manager, arguments),
                    );
                }
            }
            fs::write(&path, good).expect("a file");
        }

        // Valid credentials and a working manager.
        let mut manager = Manager::of(cluster, &rendered);
        manager.start();
        manager.until_leading().await;
        check_exposed(&planted, &manager, &format!("a manager of role {role}"));
        manager.stop();
        planted.are_not_in("the log of a stopped manager", &manager.log_text());
        let events = kubectl(cluster, &["get", "events", "-A", "-o", "yaml"], "").expect("events");
        planted.are_not_in("events", &events);
    }
}
