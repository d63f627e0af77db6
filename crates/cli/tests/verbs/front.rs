//! A front for the API server that adds what `polis up` adds to it: the logs of instances.

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use polis_apiserver::{Body, Server};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Serves until it is dropped. Requests on this socket are the administrator's.
pub async fn serve(server: Server, listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = server.service();
        connections.spawn(async move {
            let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
                let service = service.clone();
                async move {
                    Ok::<_, std::convert::Infallible>(match log_of(&request) {
                        Some(text) => Response::new(Body::full(Bytes::from(text))),
                        None => service.handle(request).await,
                    })
                }
            });
            let _ =
                auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// Two lines that say whose they are and what was asked.
fn log_of(request: &Request<Incoming>) -> Option<String> {
    let (_, rest) = request.uri().path().split_once("/instances/")?;
    let name = rest.strip_suffix("/log")?;
    Some(format!("{name} listens\nasked {}\n", request.uri().query().unwrap_or_default()))
}
