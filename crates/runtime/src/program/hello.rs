//! `polis.local/hello`: a web server that shows its instance and counts requests.
//!
//! It listens on the instance's address, on its first port or 8080. On TERM it accepts no new connections,
//! answers the requests that have reached it, and exits, so that a rolling restart loses no request.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{block_on, terminated, variable};

/// Time to answer open requests after TERM.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn main() -> Result<ExitCode, String> {
    let address = variable::<IpAddr>("POLIS_ADDRESS")?.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let port = variable::<u16>("PORT")?.unwrap_or(8080);
    block_on(serve(SocketAddr::new(address, port)))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(address: SocketAddr) -> Result<(), String> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| format!("failed to listen on {address}: {error}"))?;
    println!("hello: listening on http://{address}");
    let greeting = Arc::new(Greeting::from_environment());
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stopped = std::pin::pin!(terminated());
    loop {
        let stream = tokio::select! {
            stopped = &mut stopped => {
                stopped?;
                break;
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely out of file descriptors: wait until other connections close.
                    eprintln!("hello: failed to accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve_connection(stream, greeting.clone(), stopping.clone()));
    }
    // Connections in the backlog have reached the server too. Yielding lets the runtime see them.
    tokio::task::yield_now().await;
    while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
        connections.spawn(serve_connection(stream, greeting.clone(), stopping.clone()));
    }
    drop(listener);
    stop.send_replace(true);
    _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, async { while connections.join_next().await.is_some() {} })
        .await;
    println!("hello: answered {} requests", greeting.requests.load(Ordering::Relaxed));
    Ok(())
}

/// Serves one connection until the client closes it or the server stops.
async fn serve_connection(stream: TcpStream, greeting: Arc<Greeting>, mut stopping: watch::Receiver<bool>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let greeting = greeting.clone();
        async move { Ok::<_, Infallible>(greeting.answer(request.uri().path())) }
    });
    let mut connection = std::pin::pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopping.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    _ = connection.await;
}

struct Greeting {
    instance: String,
    workload: String,
    city: String,
    project: String,
    requests: AtomicU64,
}

impl Greeting {
    fn from_environment() -> Self {
        let read = |name| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
        Greeting {
            instance: read("POLIS_INSTANCE"),
            workload: read("POLIS_WORKLOAD"),
            city: read("POLIS_CITY"),
            project: read("POLIS_PROJECT"),
            requests: AtomicU64::new(0),
        }
    }

    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let text = match path {
            "/healthz" => "ok\n".to_owned(),
            _ => self.text(self.requests.fetch_add(1, Ordering::Relaxed) + 1),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        response
    }

    fn text(&self, request: u64) -> String {
        let Greeting { instance, workload, city, project, .. } = self;
        format!(
            "Hello from {city}!\nworkload: {workload}\ninstance: {instance}\nproject:  {project}\nrequest:  {request}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_names_the_instance_and_counts_requests() {
        let greeting = Greeting {
            instance: "web-dfw-0".into(),
            workload: "web".into(),
            city: "dfw".into(),
            project: "acme".into(),
            requests: AtomicU64::new(0),
        };
        greeting.answer("/");
        greeting.answer("/healthz");
        assert_eq!(greeting.requests.load(Ordering::Relaxed), 1);
        assert_eq!(
            greeting.text(2),
            "Hello from dfw!\nworkload: web\ninstance: web-dfw-0\nproject:  acme\nrequest:  2\n"
        );
    }
}
