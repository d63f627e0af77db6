//! Health of a container: the results of its probes, as a state machine with the rules of Kubernetes.
//!
//! A container with a startup probe has not started until that probe succeeds; the other probes wait for it.
//! A liveness or startup probe that fails `failureThreshold` times in a row ends the run: the container is
//! restarted, and a new state machine begins. A container with a readiness probe is not ready until the probe
//! has succeeded `successThreshold` times in a row, and not ready again after `failureThreshold` failures.
//!
//! Time is the time since the start of the container. The machine changes its visible state, and so the
//! status of the instance, only when a threshold is crossed and at the first failure: a probe that keeps its
//! result writes nothing.

use std::fmt;
use std::time::Duration;

use polis_api::compute::{NamedPort, Probe, SandboxContainer};
use polis_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The longest detail of a failed check in a message, in characters.
const MAX_DETAIL: usize = 200;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    /// The container has started.
    Startup,
    /// The container must be restarted if it fails.
    Liveness,
    /// The container can serve.
    Readiness,
}

impl ProbeKind {
    /// All kinds.
    pub const ALL: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];

    /// The probe of this kind that a container has.
    pub fn of(self, container: &SandboxContainer) -> Option<&Probe> {
        match self {
            ProbeKind::Startup => container.startup_probe.as_ref(),
            ProbeKind::Liveness => container.liveness_probe.as_ref(),
            ProbeKind::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeKind::Startup => "startup probe",
            ProbeKind::Liveness => "liveness probe",
            ProbeKind::Readiness => "readiness probe",
        })
    }
}

/// When a probe checks, and how many results count, with the defaults of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    /// From the start of the container to the first check.
    pub initial_delay: Duration,
    /// Between two checks.
    pub period: Duration,
    /// A check without an answer after this time has failed.
    pub timeout: Duration,
    /// Successes in a row that count.
    pub success_threshold: u32,
    /// Failures in a row that count.
    pub failure_threshold: u32,
}

impl ProbeTiming {
    /// The timing of a probe. As in Kubernetes, zero is the default.
    pub fn of(probe: &Probe) -> Self {
        let number = |given: Option<i32>, default: u32| {
            given.and_then(|given| u32::try_from(given).ok()).filter(|given| *given > 0).unwrap_or(default)
        };
        let seconds = |given, default| Duration::from_secs(number(given, default).into());
        ProbeTiming {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }
}

/// The result of one check. A check that could not be made, for a reason that is not the container's, has
/// none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The container is healthy.
    Success,
    /// It is not; what was wrong.
    Failure(String),
}

/// When a probe checks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextCheck {
    /// At this time.
    At(Duration),
    /// Once the startup probe has succeeded.
    AfterStartup,
    /// Not any more in this run.
    Never,
}

/// The visible health of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthState {
    /// The startup probe has succeeded, or there is none.
    pub started: bool,
    /// It has started, and the readiness probe has succeeded or there is none.
    pub ready: bool,
    /// Why it has not started or is not ready.
    pub waiting_for: Option<String>,
    /// Why the container must be restarted.
    pub failed: Option<ProbeFailure>,
}

/// A liveness or startup probe that has failed as often as its threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFailure {
    /// The probe, and what was wrong.
    pub message: String,
    /// Time that the container has to stop, if the probe sets one.
    pub grace_period: Option<Duration>,
}

/// The probes of one run of a container.
#[derive(Clone, Debug)]
pub struct ContainerHealth {
    probes: Vec<ProbeState>,
    started: bool,
    ready: bool,
    failed: Option<ProbeFailure>,
}

#[derive(Clone, Debug)]
struct ProbeState {
    kind: ProbeKind,
    timing: ProbeTiming,
    grace_period: Option<Duration>,
    /// When the next check is due.
    due: Duration,
    /// The last result, and how often it occurred in a row.
    last: Option<(bool, u32)>,
    /// The failure that the state shows.
    shown: Option<String>,
}

impl ContainerHealth {
    /// The health of a container that has just been started; `None` if it has no probes.
    pub fn of(container: &SandboxContainer) -> Option<Self> {
        let state = |kind: ProbeKind| {
            let probe = kind.of(container)?;
            let timing = ProbeTiming::of(probe);
            let seconds = probe.termination_grace_period_seconds.and_then(|given| u64::try_from(given).ok());
            let grace_period = seconds.filter(|given| *given > 0).map(Duration::from_secs);
            Some(ProbeState {
                kind,
                timing,
                grace_period,
                due: timing.initial_delay,
                last: None,
                shown: None,
            })
        };
        let probes: Vec<ProbeState> = ProbeKind::ALL.into_iter().filter_map(state).collect();
        let has = |kind| probes.iter().any(|probe: &ProbeState| probe.kind == kind);
        let (started, ready) = (!has(ProbeKind::Startup), !has(ProbeKind::Readiness));
        (!probes.is_empty()).then_some(ContainerHealth { probes, started, ready, failed: None })
    }

    /// As [`ContainerHealth::of`], for a container that an earlier runtime has seen `started` and `ready`,
    /// and that has been running for this long: it stays so until a probe fails.
    pub fn resumed(
        container: &SandboxContainer,
        up_for: Duration,
        started: bool,
        ready: bool,
    ) -> Option<Self> {
        let mut health = Self::of(container)?;
        health.started |= started;
        health.ready |= ready;
        for probe in &mut health.probes {
            probe.due = probe.due.max(up_for);
        }
        Some(health)
    }

    /// When the next check of a probe is due.
    pub fn next_check(&self, kind: ProbeKind) -> NextCheck {
        let Some(probe) = self.probes.iter().find(|probe| probe.kind == kind) else {
            return NextCheck::Never;
        };
        match (self.failed.is_some(), kind == ProbeKind::Startup, self.started) {
            (true, _, _) | (_, true, true) => NextCheck::Never,
            (_, false, false) => NextCheck::AfterStartup,
            _ => NextCheck::At(probe.due),
        }
    }

    /// Takes in the result of a check that was made at this time; `None` if the check could not be made.
    /// Returns whether the visible health has changed.
    pub fn record(&mut self, kind: ProbeKind, at: Duration, result: Option<ProbeResult>) -> bool {
        let before = self.health();
        let Some(probe) = self.probes.iter_mut().find(|probe| probe.kind == kind) else { return false };
        probe.due = at + probe.timing.period;
        let Some(result) = result else { return false };
        let success = result == ProbeResult::Success;
        let in_a_row = match probe.last {
            Some((last, times)) if last == success => times.saturating_add(1),
            _ => 1,
        };
        probe.last = Some((success, in_a_row));
        let threshold = if success { probe.timing.success_threshold } else { probe.timing.failure_threshold };
        let counts = in_a_row >= threshold;
        match (kind, result) {
            (ProbeKind::Startup, ProbeResult::Success) if counts => {
                self.started = true;
                // The others are due at once, or after their own delay.
                for probe in &mut self.probes {
                    probe.due = probe.due.max(at);
                }
            }
            (ProbeKind::Readiness, ProbeResult::Success) if counts => {
                self.ready = true;
                probe.shown = None;
            }
            (ProbeKind::Readiness, ProbeResult::Failure(detail)) => {
                let was_ready = self.ready;
                self.ready &= !counts;
                if !self.ready && (was_ready || probe.shown.is_none()) {
                    probe.shown = Some(shortened(&detail));
                }
            }
            (ProbeKind::Startup | ProbeKind::Liveness, ProbeResult::Failure(detail)) => {
                let detail = shortened(&detail);
                if counts {
                    let times = if in_a_row == 1 { "once".to_owned() } else { format!("{in_a_row} times") };
                    let message = format!("{kind} failed {times}: {detail}");
                    self.failed = Some(ProbeFailure { message, grace_period: probe.grace_period });
                } else if kind == ProbeKind::Startup && probe.shown.is_none() {
                    probe.shown = Some(detail);
                }
            }
            _ => {}
        }
        self.health() != before
    }

    /// The visible health.
    pub fn health(&self) -> HealthState {
        let waiting = |kind: ProbeKind| {
            let probe = self.probes.iter().find(|probe| probe.kind == kind)?;
            Some(match &probe.shown {
                Some(detail) => format!("{kind} fails: {detail}"),
                None => format!("{kind} has not succeeded yet"),
            })
        };
        let waiting_for = match (self.started, self.ready) {
            (false, _) => waiting(ProbeKind::Startup),
            (true, false) => waiting(ProbeKind::Readiness),
            (true, true) => None,
        };
        HealthState {
            started: self.started,
            ready: self.started && self.ready,
            waiting_for,
            failed: self.failed.clone(),
        }
    }
}

/// The first line of a text, shortened.
fn shortened(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default().trim_end();
    match line.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The number of a port that a probe or hook names; `None` if the container has no such port, or the number
/// is no port.
pub fn port_number(port: &IntOrString, ports: &[NamedPort]) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match ports.iter().find(|port| port.name == *name) {
            Some(port) => port.port,
            None => name.parse().ok()?,
        },
    };
    u16::try_from(number).ok().filter(|number| *number > 0)
}

/// The numbers of the TCP ports that the probes and hooks of a container reach.
pub fn probed_ports(container: &SandboxContainer) -> Vec<u16> {
    let mut ports = Vec::new();
    let mut add = |port: &IntOrString| ports.extend(port_number(port, &container.ports));
    for probe in ProbeKind::ALL.into_iter().filter_map(|kind| kind.of(container)) {
        probe.http_get.iter().for_each(|get| add(&get.port));
        probe.tcp_socket.iter().for_each(|socket| add(&socket.port));
        probe.grpc.iter().for_each(|grpc| add(&IntOrString::Int(grpc.port)));
    }
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    hook.and_then(|hook| hook.http_get.as_ref()).iter().for_each(|get| add(&get.port));
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    use ProbeKind::{Liveness, Readiness, Startup};
    use polis_api::compute::{
        ContainerLifecycle, GrpcAction, HttpGetAction, LifecycleHandler, TcpSocketAction,
    };

    fn mk_probe(period: i32, success: i32, failure: i32) -> Probe {
        Probe {
            period_seconds: Some(period),
            success_threshold: Some(success),
            failure_threshold: Some(failure),
            ..Probe::default()
        }
    }

    fn mk_container(
        startup: Option<Probe>,
        liveness: Option<Probe>,
        readiness: Option<Probe>,
    ) -> SandboxContainer {
        SandboxContainer {
            name: "app".into(),
            startup_probe: startup,
            liveness_probe: liveness,
            readiness_probe: readiness,
            ..SandboxContainer::default()
        }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn failure() -> Option<ProbeResult> {
        Some(ProbeResult::Failure("HTTP 503\nbody".into()))
    }

    /// Runs checks when they are due; each result is `+`, `-` or `?` (not made). Returns after each check its
    /// kind and time, whether the health changed, and the health as `started ready failed`.
    fn run(container: &SandboxContainer, results: &str) -> Vec<String> {
        let mut health = ContainerHealth::of(container).unwrap();
        let mut out = Vec::new();
        for result in results.chars() {
            let due = ProbeKind::ALL.into_iter().filter_map(|kind| match health.next_check(kind) {
                NextCheck::At(due) => Some((kind, due)),
                _ => None,
            });
            let Some((kind, at)) = due.min_by_key(|(kind, due)| (*due, *kind)) else {
                out.push("none".to_owned());
                continue;
            };
            let result = match result {
                '+' => Some(ProbeResult::Success),
                '-' => failure(),
                _ => None,
            };
            let changed = health.record(kind, at, result);
            let now = health.health();
            let letter = |set: bool, letter| if set { letter } else { '.' };
            out.push(format!(
                "{} {}{}{}{}{}",
                at.as_secs(),
                letter(kind == Startup, 's'),
                letter(kind == Liveness, 'l'),
                letter(kind == Readiness, 'r'),
                if changed { " * " } else { "   " },
                [letter(now.started, 'S'), letter(now.ready, 'R'), letter(now.failed.is_some(), 'F')]
                    .into_iter()
                    .collect::<String>(),
            ));
        }
        out
    }

    #[test]
    fn absent_and_zero_fields_have_the_defaults_of_kubernetes() {
        let defaults = ProbeTiming {
            initial_delay: secs(0),
            period: secs(10),
            timeout: secs(1),
            success_threshold: 1,
            failure_threshold: 3,
        };
        assert_eq!(ProbeTiming::of(&Probe::default()), defaults);
        let zeros = Probe {
            initial_delay_seconds: Some(0),
            timeout_seconds: Some(0),
            period_seconds: Some(0),
            success_threshold: Some(0),
            failure_threshold: Some(-1),
            ..Probe::default()
        };
        assert_eq!(ProbeTiming::of(&zeros), defaults);
    }

    #[test]
    fn a_readiness_probe_makes_a_container_ready_and_not_ready_at_its_thresholds() {
        let container = mk_container(None, None, Some(mk_probe(5, 2, 2)));
        assert_eq!(
            run(&container, "-+++--+?+"),
            [
                "0 ..r * S..", // the first failure is shown
                "5 ..r   S..",
                "10 ..r * SR.",
                "15 ..r   SR.",
                "20 ..r   SR.",
                "25 ..r * S..",
                "30 ..r   S..",
                "35 ..r   S..", // a check that was not made neither counts nor resets
                "40 ..r * SR.",
            ]
        );
    }

    #[test]
    fn a_liveness_probe_fails_once_and_then_rests() {
        let container = mk_container(None, Some(mk_probe(1, 1, 3)), None);
        assert_eq!(
            run(&container, "+--+---+"),
            [
                "0 .l.   SR.",
                "1 .l.   SR.",
                "2 .l.   SR.",
                "3 .l.   SR.",
                "4 .l.   SR.",
                "5 .l.   SR.",
                "6 .l. * SRF",
                "none",
            ]
        );
    }

    #[test]
    fn the_other_probes_wait_for_the_startup_probe() {
        let delayed = Probe { initial_delay_seconds: Some(3), ..mk_probe(10, 1, 1) };
        let container = mk_container(Some(mk_probe(2, 1, 3)), Some(delayed), Some(mk_probe(4, 1, 1)));
        assert_eq!(
            run(&container, "-++++"),
            [
                "0 s.. * ...",
                "2 s.. * S..",
                "2 ..r * SR.", // due at once
                "3 .l.   SR.", // after its own delay
                "6 ..r   SR.",
            ]
        );
        assert_eq!(run(&container, "---+"), ["0 s.. * ...", "2 s..   ...", "4 s.. * ..F", "none"]);
    }

    #[test]
    fn a_container_without_probes_has_no_health() {
        assert!(ContainerHealth::of(&mk_container(None, None, None)).is_none());
    }

    #[test]
    fn a_resumed_container_keeps_its_health_until_a_probe_fails() {
        let container = mk_container(Some(mk_probe(1, 1, 1)), None, Some(mk_probe(5, 1, 1)));
        let mut health = ContainerHealth::resumed(&container, secs(100), true, true).unwrap();
        assert!(health.health().ready);
        assert_eq!(health.next_check(Startup), NextCheck::Never);
        assert_eq!(health.next_check(Readiness), NextCheck::At(secs(100)));
        assert!(health.record(Readiness, secs(100), failure()));
        assert!(!health.health().ready);
        let health = ContainerHealth::resumed(&container, secs(100), false, false).unwrap();
        assert_eq!(health.next_check(Startup), NextCheck::At(secs(100)));
        assert_eq!(health.next_check(Readiness), NextCheck::AfterStartup);
        assert_eq!(health.next_check(Liveness), NextCheck::Never);
    }

    #[test]
    fn messages_name_the_probe_and_the_first_failure() {
        let mut container = mk_container(Some(mk_probe(1, 1, 2)), None, Some(mk_probe(1, 1, 1)));
        container.startup_probe.as_mut().unwrap().termination_grace_period_seconds = Some(7);
        let mut health = ContainerHealth::of(&container).unwrap();
        let waiting = |health: &ContainerHealth| health.health().waiting_for.unwrap();
        assert_eq!(waiting(&health), "startup probe has not succeeded yet");
        health.record(Startup, secs(0), failure());
        assert_eq!(waiting(&health), "startup probe fails: HTTP 503");
        let mut failed = health.clone();
        failed.record(Startup, secs(1), Some(ProbeResult::Failure("x".repeat(500))));
        let failure_of = failed.health().failed.unwrap();
        assert!(failure_of.message.starts_with("startup probe failed 2 times: xxx"), "{failure_of:?}");
        assert!(failure_of.message.chars().count() < 250);
        assert_eq!(failure_of.grace_period, Some(secs(7)));
        health.record(Startup, secs(1), Some(ProbeResult::Success));
        assert_eq!(waiting(&health), "readiness probe has not succeeded yet");
        health.record(Readiness, secs(1), failure());
        assert_eq!(waiting(&health), "readiness probe fails: HTTP 503");
        assert!(!health.record(Readiness, secs(2), Some(ProbeResult::Failure("another".into()))));
        health.record(Readiness, secs(3), Some(ProbeResult::Success));
        assert_eq!(health.health().waiting_for, None);
    }

    #[test]
    fn ports_are_found_by_number_and_name() {
        let port = |name: &str, port| NamedPort { name: name.into(), port, protocol: None };
        let ports = [port("http", 8080), port("bad", 0)];
        let text = |text: &str| IntOrString::String(text.into());
        for (named, number) in [
            (IntOrString::Int(81), Some(81)),
            (text("http"), Some(8080)),
            (text("82"), Some(82)),
            (text("nope"), None),
            (text("bad"), None),
            (IntOrString::Int(0), None),
            (IntOrString::Int(70_000), None),
        ] {
            assert_eq!(port_number(&named, &ports), number, "{named:?}");
        }
        let get =
            |port| HttpGetAction { host: None, http_headers: Vec::new(), path: None, port, scheme: None };
        let mut container = mk_container(
            Some(Probe {
                tcp_socket: Some(TcpSocketAction { host: None, port: IntOrString::Int(9) }),
                ..Probe::default()
            }),
            Some(Probe { grpc: Some(GrpcAction { port: 7, service: None }), ..Probe::default() }),
            Some(Probe { http_get: Some(get(text("http"))), ..Probe::default() }),
        );
        container.ports = ports.to_vec();
        let hook =
            LifecycleHandler { http_get: Some(get(IntOrString::Int(9))), ..LifecycleHandler::default() };
        container.lifecycle = Some(ContainerLifecycle { pre_stop: Some(hook) });
        assert_eq!(probed_ports(&container), [7, 9, 8080]);
    }
}
