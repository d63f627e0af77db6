//! Handlers of non-resource paths: health, version, metrics, discovery, OpenAPI, OpenID.

use std::sync::Arc;

use http::{Method, Response, header, request::Parts};
use serde_json::{Value, json};

use crate::{
    access,
    http::{Output, ResponseBody, object, plain},
    kinds::Kinds,
    plane::Plane,
    server::Core,
    status::StatusError,
};

/// The Kubernetes version whose behaviour the server implements, and the commit that the program was built
/// from. Only the build of an image sets the commit and its date: a build in the work tree is of no commit.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": "35",
        "emulationMajor": "1",
        "emulationMinor": "35",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "34",
        "gitVersion": concat!("v1.35.4+polis.", env!("CARGO_PKG_VERSION")),
        "gitCommit": option_env!("POLIS_COMMIT").unwrap_or_default(),
        "gitTreeState": if option_env!("POLIS_COMMIT").is_some() { "clean" } else { "" },
        "buildDate": option_env!("POLIS_COMMIT_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": "",
        "compiler": "rustc",
        "platform": concat!("linux/", "amd64"),
    })
}

/// Names of the single checks below `/healthz`, `/livez` and `/readyz`.
const CHECKS: [&str; 3] = ["ping", "log", "store"];

/// Handles a request for a non-resource path.
pub(crate) fn respond(
    core: &Arc<Core>,
    plane: &Arc<Plane>,
    path: &str,
    parts: &Parts,
) -> Result<Response<ResponseBody>, StatusError> {
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Err(StatusError::method_not_allowed());
    }
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let output = Output::negotiate(accept).unwrap_or_default();
    let kinds = plane.catalogue.kinds();
    let path = path.trim_end_matches('/');
    let mut steps = path.trim_start_matches('/').split('/');
    match (steps.next().unwrap_or_default(), steps.next(), steps.next(), steps.next()) {
        ("", ..) => Ok(object(200, &kinds.discovery().paths(), output)),
        ("version", None, ..) => Ok(object(200, &version(), output)),
        (root @ ("healthz" | "livez" | "readyz"), check, None, _) => {
            health(core, root, check, parts.uri.query().unwrap_or_default())
        }
        ("metrics", None, ..) if plane.name.is_empty() => Ok(metrics(core)),
        ("api", None, ..) if output.aggregated => Ok(aggregated(&kinds.discovery().aggregated(true))),
        ("apis", None, ..) if output.aggregated => Ok(aggregated(&kinds.discovery().aggregated(false))),
        ("api", None, ..) => Ok(object(
            200,
            &json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
            output,
        )),
        ("apis", None, ..) => Ok(object(200, &kinds.discovery().groups(), output)),
        ("apis", Some(group), None, _) => kinds
            .discovery()
            .group(group)
            .map(|doc| object(200, &doc, output))
            .ok_or_else(StatusError::no_such_path),
        ("api", Some(version), None, _) => kinds
            .discovery()
            .resources("", version)
            .map(|doc| object(200, &doc, output))
            .ok_or_else(StatusError::no_such_resource),
        ("apis", Some(group), Some(version), None) => {
            resources(&kinds, group, version).map(|doc| object(200, &doc, output))
        }
        ("openapi", Some("v2"), None, _) => Ok(kinds.openapi().v2(parts)),
        ("openapi", Some("v3"), None, _) => Ok(object(200, kinds.openapi().index(), output)),
        ("openapi", Some("v3"), Some(_), _) => {
            kinds.openapi().v3(path.trim_start_matches("/openapi/v3/"), parts)
        }
        (".well-known", Some("openid-configuration"), None, _) => {
            let doc = access::openid_configuration(&plane.name);
            Ok(openid("application/json", &doc))
        }
        ("openid", Some("v1"), Some("jwks"), None) => {
            Ok(openid("application/jwk-set+json", &core.access.token_keys.jwks()))
        }
        _ => Err(StatusError::no_such_path()),
    }
}

/// The resources of a group version.
fn resources(kinds: &Kinds, group: &str, version: &str) -> Result<Value, StatusError> {
    let discovery = kinds.discovery();
    let known = group.ends_with(".k8s.io") && discovery.group(group).is_some();
    let missing = if known { StatusError::no_such_resource } else { StatusError::no_such_path };
    discovery.resources(group, version).ok_or_else(missing)
}

/// A document for verifiers of service account tokens. They may keep it for an hour, as in Kubernetes.
fn openid(media: &'static str, doc: &Value) -> Response<ResponseBody> {
    let mut response = crate::http::json_bytes(200, doc.to_string().into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(media));
    headers.insert(header::CACHE_CONTROL, http::HeaderValue::from_static("public, max-age=3600"));
    response
}

fn metrics(core: &Core) -> Response<ResponseBody> {
    let mut response = plain(200, core.metrics.text());
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
    );
    response
}

fn aggregated(doc: &serde_json::Value) -> Response<ResponseBody> {
    let mut response = crate::http::json_bytes(200, doc.to_string().into());
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static(
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ),
    );
    response
}

fn health(
    core: &Core,
    root: &str,
    check: Option<&str>,
    query: &str,
) -> Result<Response<ResponseBody>, StatusError> {
    // Reads come from memory and cannot fail. A store that can no longer write reports it on the next write.
    let _ = core.store.view().revision();
    match check {
        Some(name) if CHECKS.contains(&name) => return Ok(plain(200, "ok")),
        Some(_) => return Err(StatusError::no_such_path()),
        None => {}
    }
    if query.split('&').any(|part| part == "verbose" || part.starts_with("verbose=")) {
        let mut text: String = CHECKS.iter().map(|name| format!("[+]{name} ok\n")).collect();
        text.push_str(&format!("{root} check passed\n"));
        return Ok(plain(200, text));
    }
    Ok(plain(200, "ok"))
}
