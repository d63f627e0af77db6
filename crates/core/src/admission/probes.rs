//! Validation of probes, hooks and the termination grace period, with the rules of Kubernetes.
//!
//! One rule is stricter: a probe or hook may not name a host. It would be reached from the host of the
//! runtime, and so tell a tenant about networks that the instance itself cannot reach.

use polis_api::compute::{
    ExecAction, HttpGetAction, LifecycleHandler, NamedPort, Probe, SandboxContainer, SandboxRuntime,
};
use polis_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{FieldError, Path};
use crate::health::{ProbeKind, port_number};

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";

pub(super) fn check_container(container: &SandboxContainer, at: &Path, errors: &mut Vec<FieldError>) {
    for kind in ProbeKind::ALL {
        let field = match kind {
            ProbeKind::Startup => "startupProbe",
            ProbeKind::Liveness => "livenessProbe",
            ProbeKind::Readiness => "readinessProbe",
        };
        if let Some(probe) = kind.of(container) {
            check_probe(kind, probe, &container.ports, &at.at(field), errors);
        }
    }
}

/// Checks the termination grace period, and the hooks that take part of it.
pub(super) fn check_termination(sandbox: &SandboxRuntime, at: &Path, errors: &mut Vec<FieldError>) {
    let grace = sandbox.termination_grace_period_seconds;
    if let Some(seconds) = grace.filter(|seconds| *seconds < 0) {
        errors.push(at.at("terminationGracePeriodSeconds").invalid(seconds, NOT_NEGATIVE));
    }
    for (index, container) in sandbox.containers.iter().enumerate() {
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let Some(hook) = hook {
            let at = at.at("containers").index(index).at("lifecycle.preStop");
            check_hook(hook, &container.ports, grace, &at, errors);
        }
    }
}

fn check_probe(kind: ProbeKind, probe: &Probe, ports: &[NamedPort], at: &Path, errors: &mut Vec<FieldError>) {
    let handlers = [
        ("exec", probe.exec.is_some()),
        ("grpc", probe.grpc.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
    ];
    check_one(&handlers, at, errors);
    if let Some(exec) = &probe.exec {
        check_exec(exec, &at.at("exec"), errors);
    }
    if let Some(get) = &probe.http_get {
        check_get(get, ports, &at.at("httpGet"), errors);
    }
    if let Some(socket) = &probe.tcp_socket {
        let at = at.at("tcpSocket");
        check_host(socket.host.as_deref(), &at, errors);
        check_port(&socket.port, ports, &at, errors);
    }
    if let Some(grpc) = &probe.grpc {
        check_port(&IntOrString::Int(grpc.port), ports, &at.at("grpc"), errors);
    }
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            errors.push(at.at(field).invalid(value, NOT_NEGATIVE));
        }
    }
    if kind != ProbeKind::Readiness
        && let Some(threshold) = probe.success_threshold.filter(|threshold| *threshold > 1)
    {
        errors.push(at.at("successThreshold").invalid(threshold, "must be 1"));
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let at = at.at("terminationGracePeriodSeconds");
        match kind {
            ProbeKind::Readiness => {
                errors.push(at.invalid(seconds, "must not be set for readiness probes"));
            }
            _ if seconds <= 0 => errors.push(at.invalid(seconds, POSITIVE)),
            _ => {}
        }
    }
}

fn check_hook(
    hook: &LifecycleHandler,
    ports: &[NamedPort],
    grace: Option<i64>,
    at: &Path,
    errors: &mut Vec<FieldError>,
) {
    let handlers = [
        ("exec", hook.exec.is_some()),
        ("httpGet", hook.http_get.is_some()),
        ("sleep", hook.sleep.is_some()),
    ];
    check_one(&handlers, at, errors);
    if let Some(exec) = &hook.exec {
        check_exec(exec, &at.at("exec"), errors);
    }
    if let Some(get) = &hook.http_get {
        check_get(get, ports, &at.at("httpGet"), errors);
    }
    if let Some(sleep) = &hook.sleep {
        let at = at.at("sleep.seconds");
        match grace {
            _ if sleep.seconds <= 0 => errors.push(at.invalid(sleep.seconds, POSITIVE)),
            Some(grace) if sleep.seconds > grace => {
                let detail = format!("must not exceed terminationGracePeriodSeconds ({grace})");
                errors.push(at.invalid(sleep.seconds, detail));
            }
            _ => {}
        }
    }
}

/// Requires exactly one of several fields.
fn check_one(handlers: &[(&str, bool)], at: &Path, errors: &mut Vec<FieldError>) {
    let names: Vec<&str> = handlers.iter().map(|(name, _)| *name).collect();
    let mut set = handlers.iter().filter(|(_, set)| *set);
    if set.next().is_none() {
        errors.push(at.required(format!("set one of {}", names.join(", "))));
    }
    for (name, _) in set {
        errors.push(at.at(name).forbidden(format!("set only one of {}", names.join(", "))));
    }
}

fn check_exec(exec: &ExecAction, at: &Path, errors: &mut Vec<FieldError>) {
    if exec.command.is_empty() {
        errors.push(at.at("command").required(""));
    }
}

fn check_get(get: &HttpGetAction, ports: &[NamedPort], at: &Path, errors: &mut Vec<FieldError>) {
    check_host(get.host.as_deref(), at, errors);
    check_port(&get.port, ports, at, errors);
    if let Some(scheme) = get.scheme.as_deref().filter(|scheme| !["HTTP", "HTTPS"].contains(scheme)) {
        errors.push(at.at("scheme").not_supported(scheme, ["HTTP", "HTTPS"]));
    }
    if let Some(path) = get.path.as_deref()
        && path.bytes().any(|byte| byte <= b' ' || byte == 0x7f)
    {
        errors.push(at.at("path").invalid(path, "must not contain spaces or control characters"));
    }
    for (index, header) in get.http_headers.iter().enumerate() {
        let at = at.at("httpHeaders").index(index);
        if !is_header_name(&header.name) {
            let detail = "must be letters, digits and '-'";
            errors.push(at.at("name").invalid(header.name.as_str(), detail));
        }
        if header.value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
            errors.push(at.at("value").invalid(header.value.as_str(), "must not contain control characters"));
        }
    }
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn check_host(host: Option<&str>, at: &Path, errors: &mut Vec<FieldError>) {
    if host.is_some_and(|host| !host.is_empty()) {
        let detail = "the instance itself is reached; use httpHeaders for a Host header";
        errors.push(at.at("host").forbidden(detail));
    }
}

fn check_port(port: &IntOrString, ports: &[NamedPort], at: &Path, errors: &mut Vec<FieldError>) {
    if port_number(port, ports).is_some() {
        return;
    }
    let at = at.at("port");
    match port {
        IntOrString::Int(number) => errors.push(at.invalid(*number, "must be between 1 and 65535")),
        IntOrString::String(name) => {
            errors.push(at.not_found(name.as_str(), "the container has no port of this name"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::{Value, json};

    fn errors_of(container: Value, grace: Option<i64>) -> Vec<String> {
        let mut container = container;
        container["name"] = json!("app");
        container["image"] = json!("app:1");
        container["ports"] = json!([{"name": "http", "port": 8080}]);
        let sandbox = json!({"containers": [container], "terminationGracePeriodSeconds": grace});
        let sandbox: SandboxRuntime = serde_json::from_value(sandbox).unwrap();
        let (at, mut errors) = (Path::new("sandbox"), Vec::new());
        check_container(&sandbox.containers[0], &Path::new("c"), &mut errors);
        check_termination(&sandbox, &at, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn probes_and_hooks_of_every_kind_are_valid() {
        for (container, grace) in [
            (json!({}), None),
            (json!({}), Some(0)),
            (
                json!({"livenessProbe": {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 5}}),
                None,
            ),
            (json!({"startupProbe": {"grpc": {"port": 9000, "service": "x"}, "successThreshold": 1}}), None),
            (
                json!({"readinessProbe": {
                    "httpGet": {"port": "http", "path": "/ready?x=1", "scheme": "HTTPS", "httpHeaders": [{"name": "Host", "value": "a b"}]},
                    "successThreshold": 3, "initialDelaySeconds": 0,
                }}),
                None,
            ),
            (json!({"readinessProbe": {"tcpSocket": {"port": 81}}}), None),
            (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}), Some(5)),
            (json!({"lifecycle": {"preStop": {"httpGet": {"port": 8080}}}}), None),
            (json!({"lifecycle": {}}), None),
        ] {
            assert_eq!(errors_of(container.clone(), grace), Vec::<String>::new(), "{container}");
        }
    }

    #[test]
    fn an_invalid_field_is_named() {
        let one = "set one of exec, grpc, httpGet, tcpSocket";
        let only = "set only one of exec, grpc, httpGet, tcpSocket";
        let get = |get: Value| json!({"livenessProbe": {"httpGet": get}});
        let with = |field: &str, value: Value| json!({"livenessProbe": {"exec": {"command": ["true"]}, field: value}});
        let hook = |hook: Value| json!({"lifecycle": {"preStop": hook}});
        let table = [
            (json!({"startupProbe": {}}), None, format!("c.startupProbe: Required value: {one}")),
            (
                json!({"livenessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}}),
                None,
                format!("c.livenessProbe.tcpSocket: Forbidden: {only}"),
            ),
            (json!({"livenessProbe": {"exec": {}}}), None, "c.livenessProbe.exec.command: Required value".into()),
            (
                get(json!({"port": 0})),
                None,
                "c.livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535".into(),
            ),
            (
                get(json!({"port": "web"})),
                None,
                "c.livenessProbe.httpGet.port: Not found: \"web\": the container has no port of this name".into(),
            ),
            (
                get(json!({"port": 80, "host": "169.254.169.254"})),
                None,
                "c.livenessProbe.httpGet.host: Forbidden: the instance itself is reached; use httpHeaders for a Host header".into(),
            ),
            (
                get(json!({"port": 80, "scheme": "http"})),
                None,
                "c.livenessProbe.httpGet.scheme: Unsupported value: \"http\": supported values: \"HTTP\", \"HTTPS\"".into(),
            ),
            (
                get(json!({"port": 80, "path": "/a b"})),
                None,
                "c.livenessProbe.httpGet.path: Invalid value: \"/a b\": must not contain spaces or control characters".into(),
            ),
            (
                get(json!({"port": 80, "httpHeaders": [{"name": "a b", "value": "x"}]})),
                None,
                "c.livenessProbe.httpGet.httpHeaders[0].name: Invalid value: \"a b\": must be letters, digits and '-'".into(),
            ),
            (
                get(json!({"port": 80, "httpHeaders": [{"name": "a", "value": "x\r\ny"}]})),
                None,
                "c.livenessProbe.httpGet.httpHeaders[0].value: Invalid value: \"x\\r\\ny\": must not contain control characters".into(),
            ),
            (
                with("periodSeconds", json!(-1)),
                None,
                "c.livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0".into(),
            ),
            (
                with("successThreshold", json!(2)),
                None,
                "c.livenessProbe.successThreshold: Invalid value: 2: must be 1".into(),
            ),
            (
                with("terminationGracePeriodSeconds", json!(0)),
                None,
                "c.livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0".into(),
            ),
            (
                json!({"readinessProbe": {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 3}}),
                None,
                "c.readinessProbe.terminationGracePeriodSeconds: Invalid value: 3: must not be set for readiness probes".into(),
            ),
            (
                json!({}),
                Some(-1),
                "sandbox.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0".into(),
            ),
            (
                hook(json!({})),
                None,
                "sandbox.containers[0].lifecycle.preStop: Required value: set one of exec, httpGet, sleep".into(),
            ),
            (
                hook(json!({"sleep": {"seconds": 6}})),
                Some(5),
                "sandbox.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 6: must not exceed terminationGracePeriodSeconds (5)".into(),
            ),
        ];
        for (container, grace, error) in table {
            assert_eq!(errors_of(container.clone(), grace), [error], "{container}");
        }
    }
}
