//! `/healthz`, `/readyz` and `/metrics`, for probes and scrapers.

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

/// Names of planes listed per state in `/readyz?verbose`; more would only fill the screen.
const NAMED: usize = 20;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Everything.
    All,
    /// Everything but `/metrics`, which are served elsewhere to those who may see them.
    Probes,
    /// `/metrics` alone, for scrapers that are let in to nothing else.
    Metrics,
}

/// Serves until dropped.
pub(crate) async fn serve(listener: TcpListener, pages: Pages, handle: Handle) {
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Out of file descriptors, most likely: give others time to return some.
                tracing::warn!(%error, "admin server cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                continue;
            }
        };
        let handle = handle.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (path, query) = (request.uri().path(), request.uri().query());
                let answer = answer(request.method(), pages, path, query, &handle);
                async move { Ok::<_, Infallible>(answer) }
            });
            // A client that hangs up in the middle is no concern of ours.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

fn answer(
    method: &Method,
    pages: Pages,
    path: &str,
    query: Option<&str>,
    handle: &Handle,
) -> Response<Full<Bytes>> {
    if method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n".to_owned());
    }
    if pages == Pages::Metrics && path != "/metrics" {
        return text(StatusCode::NOT_FOUND, "only /metrics is here\n".to_owned());
    }
    if pages == Pages::Probes && path == "/metrics" {
        let elsewhere = "metrics are served over TLS, at the address of their own\n";
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
                "not ready; ask with ?verbose for details\n".to_owned()
            };
            text(code, if verbose { report } else { short })
        }
        "/metrics" => {
            let mut response = text(StatusCode::OK, handle.metrics());
            let kind = http::HeaderValue::from_static(Metrics::CONTENT_TYPE);
            response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
            response
        }
        _ => text(StatusCode::NOT_FOUND, "try /healthz, /readyz?verbose or /metrics\n".to_owned()),
    }
}

/// Whether every set of planes is complete, and a line for each with the planes that are not.
fn readiness(handle: &Handle) -> (bool, String) {
    let mut report = String::new();
    for (set, readiness) in handle.readiness() {
        let mark = if readiness.is_ready() { "+" } else { "-" };
        let (engaged, engaging) = (readiness.engaged, readiness.engaging.len());
        report.push_str(&format!(
            "[{mark}] {set}: {engaged} engaged, {engaging} engaging, {} failing\n",
            readiness.failing.len()
        ));
        if let Some(fault) = &readiness.fault {
            report.push_str(&format!("      cannot tell which planes there are: {fault}\n"));
        } else if !readiness.listed {
            report.push_str("      not yet known which planes there are\n");
        }
        for (plane, reason, story) in readiness.failing.iter().take(NAMED) {
            report.push_str(&format!("      {plane} ({reason}): {story}\n"));
        }
        let quiet = readiness
            .engaging
            .iter()
            .filter(|plane| !readiness.failing.iter().any(|(failing, ..)| failing == *plane));
        for plane in quiet.take(NAMED) {
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
