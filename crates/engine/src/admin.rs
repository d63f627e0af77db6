//! The admin server: `/healthz`, `/readyz` and `/metrics` over HTTP.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Metrics;
use crate::engine::Handle;

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
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Most likely out of file descriptors: wait until some are closed.
                tracing::warn!(%error, "admin server failed to accept a connection; will retry");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                continue;
            }
        };
        let handle = handle.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (path, query) = (request.uri().path(), request.uri().query());
                let response = respond(request.method(), pages, path, query, &handle);
                async move { Ok::<_, Infallible>(response) }
            });
            // An error means that the client closed the connection.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
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
                "ok\n".to_owned()
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
    let ready = handle.is_ready();
    report.push_str(if ready { "ready\n" } else { "not ready\n" });
    (ready, report)
}

fn text(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response
}
