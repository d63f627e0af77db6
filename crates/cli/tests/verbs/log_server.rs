//! An HTTP server in front of the API server that adds the `log` subresource of instances, as `polis up`
//! does.

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use polis_apiserver::{ResponseBody, Server};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Serves until it is dropped. Requests have the rights of an administrator.
pub async fn serve(server: Server, listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = server.service();
        connections.spawn(async move {
            let handler = hyper::service::service_fn(move |request: Request<Incoming>| {
                let service = service.clone();
                async move {
                    Ok::<_, std::convert::Infallible>(match log_of(&request) {
                        Some(text) => {
                            Response::new(ResponseBody::stream(futures::stream::iter([Bytes::from(text)])))
                        }
                        None => service.handle(request).await,
                    })
                }
            });
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), handler)
                .await;
        });
    }
}

/// The log: two lines with the name of the instance and the query of the request. That of workload `hostile`
/// is an escape sequence.
fn log_of(request: &Request<Incoming>) -> Option<String> {
    let (_, rest) = request.uri().path().split_once("/instances/")?;
    let name = rest.strip_suffix("/log")?;
    if name.starts_with("hostile") {
        return Some("\u{1b}[2Jcleared\n".to_owned());
    }
    Some(format!("{name} listens\nasked {}\n", request.uri().query().unwrap_or_default()))
}
