//! Makes the checks of a running container's probes, and keeps their results.
//!
//! Each probe has a task of its own, as in Kubernetes, so that a slow check does not delay the others. The
//! tasks end with the run of the container. While Polis is stopped, nothing is checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::{HttpGetAction, LifecycleHandler, NamedPort, Probe, SandboxContainer};
use polis_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use polis_core::health::{
    ContainerHealth, HealthState, NextCheck, ProbeKind, ProbeResult, ProbeTiming, port_number, probed_ports,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::instance_dir::InstanceRecord;
use super::launch_spec::{is_tcp, number};
use crate::check::NetworkCheck;
use crate::shim::PreStop;
use crate::shim::exec::{ExecReply, ExecRequest, exec};

/// The probes of one run of a container. Dropping it ends them.
pub(super) struct HealthMonitor {
    health: Arc<Mutex<ContainerHealth>>,
    _checks: JoinSet<()>,
}

impl HealthMonitor {
    /// Starts the probes of a container that has been running since `since`. `on_change` is called when its
    /// visible health changes.
    pub(super) fn start(
        health: ContainerHealth,
        checks: Vec<ProbeCheck>,
        since: Instant,
        on_change: impl Fn() + Clone + Send + 'static,
    ) -> Self {
        let health = Arc::new(Mutex::new(health));
        let started = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        for check in checks {
            tasks.spawn(repeat(check, health.clone(), started.clone(), since, on_change.clone()));
        }
        HealthMonitor { health, _checks: tasks }
    }

    pub(super) fn health(&self) -> HealthState {
        self.health.lock().health()
    }
}

async fn repeat(
    check: ProbeCheck,
    health: Arc<Mutex<ContainerHealth>>,
    started: Arc<Notify>,
    since: Instant,
    on_change: impl Fn(),
) {
    loop {
        let notified = started.notified();
        let next = health.lock().next_check(check.kind);
        let due = match next {
            NextCheck::At(due) => due,
            NextCheck::AfterStartup => {
                notified.await;
                continue;
            }
            NextCheck::Never => return,
        };
        sleep_until(since + due).await;
        let at = since.elapsed();
        let result = check.run().await;
        let (changed, is_started) = {
            let mut health = health.lock();
            (health.record(check.kind, at, result), health.health().started)
        };
        if changed {
            if is_started {
                started.notify_waiters();
            }
            on_change();
        }
    }
}

/// A probe with everything that its checks need.
pub(super) struct ProbeCheck {
    kind: ProbeKind,
    timeout: Duration,
    handler: Handler,
}

enum Handler {
    Network(NetworkCheck),
    Exec {
        container_dir: PathBuf,
        command: Vec<String>,
    },
    /// The spec has passed no admission, and the probe cannot be made.
    Invalid(&'static str),
}

impl ProbeCheck {
    async fn run(&self) -> Option<ProbeResult> {
        let result = match &self.handler {
            Handler::Network(check) => check.run(self.timeout).await,
            Handler::Exec { container_dir, command } => {
                let request = ExecRequest { command: command.clone(), timeout: self.timeout };
                match exec(container_dir, &request).await {
                    Ok(ExecReply::Exited { code: 0, .. }) => Ok(()),
                    Ok(ExecReply::Exited { code, output }) => {
                        let output = output.trim();
                        let separator = if output.is_empty() { "" } else { ": " };
                        Err(format!("exit code {code}{separator}{output}"))
                    }
                    Ok(ExecReply::TimedOut) => Err(format!("no end within {:?}", self.timeout)),
                    Ok(ExecReply::NotStarted(why)) => Err(why),
                    Ok(ExecReply::Failed(why)) => return unknown(self.kind, &why),
                    Err(error) => return unknown(self.kind, &error.to_string()),
                }
            }
            Handler::Invalid(why) => Err((*why).to_owned()),
        };
        Some(result.map_or_else(ProbeResult::Failure, |()| ProbeResult::Success))
    }
}

/// A check that could not be made says nothing about the container.
fn unknown(kind: ProbeKind, why: &str) -> Option<ProbeResult> {
    tracing::debug!(%kind, why, "a check could not be made");
    None
}

/// The checks of a container's probes.
pub(super) fn checks(
    container: &SandboxContainer,
    record: &InstanceRecord,
    container_dir: &std::path::Path,
) -> Vec<ProbeCheck> {
    let check = |kind: ProbeKind| {
        let probe = kind.of(container)?;
        let handler = handler(probe, container, record, container_dir);
        Some(ProbeCheck { kind, timeout: ProbeTiming::of(probe).timeout, handler })
    };
    ProbeKind::ALL.into_iter().filter_map(check).collect()
}

fn handler(
    probe: &Probe,
    container: &SandboxContainer,
    record: &InstanceRecord,
    container_dir: &std::path::Path,
) -> Handler {
    let network = match probe {
        Probe { exec: Some(exec), .. } => {
            let container_dir = container_dir.to_owned();
            return Handler::Exec { container_dir, command: exec.command.clone() };
        }
        Probe { http_get: Some(get), .. } => http_check(get, &container.ports, record),
        Probe { tcp_socket: Some(socket), .. } => {
            endpoint(&socket.port, &container.ports, record).map(|endpoint| NetworkCheck::Tcp { endpoint })
        }
        Probe { grpc: Some(grpc), .. } => {
            endpoint(&IntOrString::Int(grpc.port), &container.ports, record).map(|endpoint| {
                NetworkCheck::Grpc { endpoint, service: grpc.service.clone().unwrap_or_default() }
            })
        }
        _ => return Handler::Invalid("the probe has no handler; set one of exec, grpc, httpGet, tcpSocket"),
    };
    network.map_or(Handler::Invalid("the container has no port of this name"), Handler::Network)
}

/// The hook that runs before a container is asked to stop.
pub(super) fn pre_stop(container: &SandboxContainer, record: &InstanceRecord) -> Option<PreStop> {
    match container.lifecycle.as_ref()?.pre_stop.as_ref()? {
        LifecycleHandler { exec: Some(exec), .. } => Some(PreStop::Exec(exec.command.clone())),
        LifecycleHandler { http_get: Some(get), .. } => {
            http_check(get, &container.ports, record).map(PreStop::Check)
        }
        LifecycleHandler { sleep: Some(sleep), .. } => {
            Some(PreStop::Sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default())))
        }
        LifecycleHandler { .. } => None,
    }
}

/// The request of an HTTP check. A host in the spec has no effect: a check reaches the instance alone.
fn http_check(get: &HttpGetAction, ports: &[NamedPort], record: &InstanceRecord) -> Option<NetworkCheck> {
    Some(NetworkCheck::Http {
        endpoint: endpoint(&get.port, ports, record)?,
        tls: get.scheme.as_deref() == Some("HTTPS"),
        path: get.path.clone().unwrap_or_default(),
        headers: get.http_headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect(),
    })
}

fn endpoint(port: &IntOrString, ports: &[NamedPort], record: &InstanceRecord) -> Option<SocketAddr> {
    Some(SocketAddr::from((record.address, record.port(port_number(port, ports)?))))
}

/// The ports that a container's shim must offer on the host for its probes and hooks, besides those that the
/// container names: a port of another container is offered by the shim of that one, and a port that several
/// containers check by that of the first.
pub(super) fn extra_ports(container: &SandboxContainer, all: &[SandboxContainer]) -> Vec<u16> {
    let named: Vec<u16> =
        all.iter().flat_map(|container| &container.ports).filter(is_tcp).filter_map(number).collect();
    let before = all.iter().take_while(|other| other.name != container.name);
    let taken: Vec<u16> = before.flat_map(probed_ports).chain(named).collect();
    probed_ports(container).into_iter().filter(|port| !taken.contains(port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    fn mk_containers() -> Vec<SandboxContainer> {
        serde_json::from_value(json!([
            {
                "name": "app", "image": "a", "ports": [{"name": "http", "port": 8080}],
                "livenessProbe": {"httpGet": {"port": "http", "path": "/live"}},
                "readinessProbe": {"tcpSocket": {"port": 9000}},
                "lifecycle": {"preStop": {"httpGet": {"port": 9001}}},
            },
            {
                "name": "side", "image": "b",
                "livenessProbe": {"httpGet": {"port": 8080}},
                "readinessProbe": {"grpc": {"port": 9000}},
                "startupProbe": {"tcpSocket": {"port": 9002}},
            },
        ]))
        .unwrap()
    }

    #[test]
    fn each_port_is_offered_by_one_shim() {
        let all = mk_containers();
        assert_eq!(extra_ports(&all[0], &all), [9000, 9001]);
        assert_eq!(extra_ports(&all[1], &all), [9002]);
    }

    #[test]
    fn checks_reach_the_address_and_the_mapped_port_of_the_instance() {
        let record = InstanceRecord {
            uid: "u-1".into(),
            namespace: "ns-1".into(),
            name: "web-0".into(),
            address: [127, 9, 0, 1].into(),
            ports: [(8080, 40_080)].into(),
        };
        let mut container = mk_containers().remove(0);
        container.liveness_probe.as_mut().unwrap().http_get.as_mut().unwrap().host = Some("10.0.0.1".into());
        let checks = checks(&container, &record, std::path::Path::new("/c"));
        let Handler::Network(NetworkCheck::Http { endpoint, path, tls, .. }) = &checks[0].handler else {
            panic!("no HTTP check");
        };
        assert_eq!((endpoint.to_string().as_str(), path.as_str(), *tls), ("127.9.0.1:40080", "/live", false));
        let hook = pre_stop(&container, &record);
        assert!(
            matches!(hook, Some(PreStop::Check(NetworkCheck::Http { endpoint, .. })) if endpoint.port() == 9001)
        );
    }
}
