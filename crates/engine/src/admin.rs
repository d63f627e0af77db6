//! The admin server: `/healthz`, `/readyz` and `/metrics` over HTTP.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use polis_tls::{ConnectionLimits, RequestBody};
use tokio::net::TcpListener;

use crate::engine::Handle;
use crate::{FailingRequests, Metrics};

/// Probes and scrapers are few and send one request at a time. The server has no client certificates, so
/// nothing is reserved for them.
const LIMITS: ConnectionLimits = ConnectionLimits { reserve: 0, ..ConnectionLimits::new(64, 8) };
/// Maximum number of plane names per state in `/readyz?verbose`.
const MAX_NAMES: usize = 20;

/// The paths that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// All paths.
    All,
    /// All paths except `/metrics`, which the program serves elsewhere with authentication.
    Probes,
    /// Only `/metrics`, for scrapers.
    Metrics,
}

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, pages: Pages, handle: Handle) {
    polis_tls::serve_plain(listener, LIMITS, move |_| {
        let handle = handle.clone();
        service_fn(move |request: Request<RequestBody>| {
            let (path, query) = (request.uri().path(), request.uri().query());
            let response = respond(request.method(), pages, path, query, &handle);
            async move { Ok::<_, Infallible>(response) }
        })
    })
    .await;
}

fn respond(
    method: &Method,
    pages: Pages,
    path: &str,
    query: Option<&str>,
    handle: &Handle,
) -> Response<Full<Bytes>> {
    if method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET\n".to_owned());
    }
    if pages == Pages::Metrics && path != "/metrics" {
        return text(StatusCode::NOT_FOUND, "not found: this address serves only /metrics\n".to_owned());
    }
    if pages == Pages::Probes && path == "/metrics" {
        let elsewhere = "not found: /metrics is served over TLS at the address of the metrics server\n";
        return text(StatusCode::NOT_FOUND, elsewhere.to_owned());
    }
    match path {
        "/healthz" | "/livez" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => {
            let verbose = query.is_some_and(|query| {
                query.split('&').any(|part| part == "verbose" || part.starts_with("verbose="))
            });
            let (ready, report) = readiness(handle);
            let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let short = if ready {
                format!("ok\n{}", erring(handle))
            } else {
                "not ready; use /readyz?verbose for details\n".to_owned()
            };
            text(code, if verbose { report } else { short })
        }
        "/metrics" => {
            let mut response = text(StatusCode::OK, handle.metrics());
            let kind = http::HeaderValue::from_static(Metrics::CONTENT_TYPE);
            response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
            response
        }
        _ => text(StatusCode::NOT_FOUND, "not found: use /healthz, /readyz?verbose or /metrics\n".to_owned()),
    }
}

/// Whether every set of planes is ready, and a report with one line for each set and for each plane that is
/// not engaged.
fn readiness(handle: &Handle) -> (bool, String) {
    let mut report = String::new();
    for (set, readiness) in handle.readiness() {
        let mark = if readiness.is_ready() { "+" } else { "-" };
        let (engaged, engaging) = (readiness.engaged, readiness.engaging.len());
        report.push_str(&format!(
            "[{mark}] {set}: {engaged} engaged, {engaging} engaging, {} failing\n",
            readiness.failing.len()
        ));
        if let Some(error) = &readiness.error {
            report.push_str(&format!("      failed to list the planes: {error}\n"));
        } else if !readiness.listed {
            report.push_str("      the planes have not been listed yet\n");
        }
        for (plane, reason, message) in readiness.failing.iter().take(MAX_NAMES) {
            report.push_str(&format!("      {plane} ({reason}): {message}\n"));
        }
        let syncing = readiness
            .engaging
            .iter()
            .filter(|plane| !readiness.failing.iter().any(|(failing, ..)| failing == *plane));
        for plane in syncing.take(MAX_NAMES) {
            report.push_str(&format!("      {plane}: engaging\n"));
        }
    }
    report.push_str(&erring(handle));
    let ready = handle.is_ready();
    report.push_str(if ready { "ready\n" } else { "not ready\n" });
    (ready, report)
}

/// One line for each verb that a plane has answered with nothing but errors for a minute.
fn erring(handle: &Handle) -> String {
    let mut lines = String::new();
    for (set, readiness) in handle.readiness() {
        for (plane, FailingRequests { verb, code, since }) in readiness.erring.iter().take(MAX_NAMES) {
            let seconds = since.as_secs();
            lines.push_str(&format!(
                "[!] {set} {plane}: only errors for {verb} for {seconds}s, last {code}\n"
            ));
        }
    }
    lines
}

fn text(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::Engine;

    #[tokio::test]
    async fn silent_connections_neither_block_a_probe_nor_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, Pages::All, Engine::new().handle()));
        let mut silent = Vec::new();
        for _ in 0..2 * LIMITS.connections {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        probe.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");

        tokio::time::pause();
        for mut connection in silent {
            let ended = timeout(Duration::from_secs(60), connection.read(&mut [0])).await;
            assert!(!matches!(ended.expect("closed within a minute"), Ok(1..)), "no data");
        }
        serving.abort();
    }
}
