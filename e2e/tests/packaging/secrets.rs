//! Secrets stay where they are: nothing that a manager was given as one is in what it writes, shows or is started with.

use std::{fs, path::Path, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use polis_e2e::rendered::{Rendered, objects, word};
use polis_testbed::{manifest, plane::LONE};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    NAMESPACE, apply, bed, kubectl,
    process::{Manager, program},
};

/// What must not be seen, by what it is.
struct Planted(Vec<(&'static str, String)>);

impl Planted {
    #[track_caller]
    fn are_not_in(&self, place: &str, text: &str) {
        for (what, secret) in &self.0 {
            for form in [secret.clone(), BASE64_STANDARD.encode(secret)] {
                assert!(!text.contains(&form), "{what} is in {place}");
            }
        }
    }
}

/// A line from the middle of a PEM text: enough to tell it, and short enough to be on one line of a log.
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

/// Looks at everything that a running manager shows.
fn inspect(planted: &Planted, manager: &Manager, what: &str) {
    planted.are_not_in(&format!("the log of {what}"), &manager.said());
    for page in ["/metrics", "/readyz?verbose", "/healthz"] {
        planted.are_not_in(&format!("{page} of {what}"), &manager.ask(page).unwrap_or_default());
    }
    let pid = manager.pid().expect("it runs");
    for file in ["cmdline", "environ"] {
        let text = fs::read(format!("/proc/{pid}/{file}")).expect("its process");
        planted.are_not_in(&format!("{file} of {what}"), &String::from_utf8_lossy(&text));
    }
}

/// A clock that can be taken away from a process, which then panics wherever it looks at the time: no clock is the one thing
/// that the standard library of Rust does not do without. It stands between the program and the C library.
struct Clock {
    home: TempDir,
}

impl Clock {
    fn new() -> Clock {
        let home = tempfile::tempdir().expect("a folder");
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
        fs::write(home.path().join("clock.c"), source).expect("a file");
        // What links programs of Rust.
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o", "clock.so", "clock.c"])
            .current_dir(home.path())
            .status();
        assert!(built.expect("cc runs").success());
        Clock { home }
    }

    fn variables(&self) -> [(String, String); 3] {
        let path = |name: &str| self.home.path().join(name).display().to_string();
        [
            ("LD_PRELOAD", path("clock.so")),
            ("CLOCK_IS_GONE", path("gone")),
            ("RUST_BACKTRACE", "full".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    }

    fn take_away(&self) {
        fs::write(self.home.path().join("gone"), "").expect("a file");
    }
}

/// What a program says that is given the environment of a pod, whatever comes of it.
fn says(manager: &Manager, arguments: &[&str]) -> String {
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
async fn no_secret_is_in_logs_events_metrics_help_arguments_faults_or_panics() {
    let (bed, _turn) = (bed().await, crate::TURN.lock().await);
    // The one plane is also hub and platform, and needs what those need.
    for folder in [
        "deploy/components/federation",
        "deploy/components/rbac/project",
        "deploy/components/rbac/management",
    ] {
        apply(bed, &Rendered::of(folder));
    }
    let data = "planted-secret-data-Ao2o0ez3";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "planted", "namespace": NAMESPACE},
        "stringData": {"data": data}});
    kubectl(bed, &["apply", "-f", "-"], &secret.to_string()).expect("a Secret");
    for (folder, switched) in [
        ("docs/operations/examples/management-plane", "management"),
        ("docs/operations/examples/cell-dfw", "cell"),
    ] {
        let mut rendered = Rendered::of(folder);
        // Whoever looks for a fault turns this up.
        let deployment =
            rendered.0.iter_mut().find(|object| object["kind"] == "Deployment").expect("a Deployment");
        let variables =
            deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut().expect("variables");
        variables
            .iter_mut()
            .filter(|it| it["name"] == "RUST_LOG")
            .for_each(|it| it["value"] = json!("debug"));
        apply(bed, &rendered);
        let own = bed.kubeconfig_for(LONE, &rendered.user(), &[]).expect("a kubeconfig");
        let user = &objects("kubeconfig", &own)[0]["users"][0]["user"];
        let key = word(&user["client-key-data"]).to_owned();
        let key_line = inner_line(&String::from_utf8_lossy(&BASE64_STANDARD.decode(&key).expect("base64")));
        let (hub_token, quota_token) = ("planted-hub-token-aiSh7Aec", "planted-quota-token-Uo4Ohph3");

        // Tokens that nobody knows: both planes refuse them, and the manager has something to say.
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
        let planted = Planted(planted);
        let clock = Clock::new();
        let usual = manager.pod.environment.clone();
        manager.pod.environment.extend(clock.variables());
        manager.start();
        let refused = manifest::until(
            "pod",
            "the manager to be refused by the hub",
            crate::process::WITHIN,
            async || {
                let said = manager.said();
                Ok(said.contains("the server does not know us").then_some(()))
            },
        );
        refused.await.unwrap_or_else(|err| panic!("{err}\n{}", manager.said()));
        inspect(&planted, &manager, &format!("a refused manager of role {switched}"));
        for arguments in [
            &["manager", "--help"][..],
            &["manager", "--check-config=planes"],
            &["manager", "--colour", hub_token.split_at(3).0],
        ] {
            planted.are_not_in(&arguments.join(" "), &says(&manager, arguments));
        }
        // With everything in its memory that it was given, it panics.
        clock.take_away();
        let panicked = manifest::until("pod", "the manager to panic", crate::process::WITHIN, async || {
            Ok(manager.said().contains("panicked at").then_some(()))
        });
        panicked.await.unwrap_or_else(|err| panic!("{err}\n{}", manager.said()));
        // What is left of it may hang.
        manager.kill();
        planted.are_not_in("what is said in a panic", &manager.said());
        manager.pod.environment = usual;

        // Files that cannot be read: what is said of them is where and why, not what is in them.
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
                    planted
                        .are_not_in(&format!("what is said of a broken {file}"), &says(&manager, arguments));
                }
            }
            fs::write(&path, good).expect("a file");
        }

        // Credentials that are good, and a manager that works.
        let mut manager = Manager::of(bed, &rendered);
        manager.start();
        manager.leads().await;
        inspect(&planted, &manager, &format!("a manager of role {switched}"));
        manager.stop();
        planted.are_not_in("the log of a manager that ends", &manager.said());
        let events = kubectl(bed, &["get", "events", "-A", "-o", "yaml"], "").expect("events");
        planted.are_not_in("events", &events);
    }
}
