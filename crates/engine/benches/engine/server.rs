//! The server process of the benchmark: responds to lists and watches of any project with the same prepared
//! bytes, and sends no further events.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::Address;

type ResponseBody = BoxBody<Bytes, Infallible>;

/// The prepared responses.
struct Prepared {
    kinds: Bytes,
    list: Bytes,
    empty: Bytes,
    stream: Bytes,
    end: Bytes,
    requests: AtomicU64,
}

/// An object of 0.9 KiB as JSON.
fn object(number: usize) -> serde_json::Value {
    let meta = json!({"name": format!("object-{number:02}"), "namespace": "default", "uid": format!("00000000-0000-0000-0000-{number:012}"),
        "resourceVersion": "100", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "bench"}});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"settings": "x".repeat(640)}})
}

impl Prepared {
    fn new(objects: usize) -> Self {
        let items: Vec<_> = (0..objects).map(object).collect();
        let end = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "100", "annotations": {"k8s.io/initial-events-end": "true"}}}});
        let lines: String =
            items.iter().map(|item| format!("{}\n", json!({"type": "ADDED", "object": item}))).collect();
        let list = |items: &[serde_json::Value]| {
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "100"}, "items": items}).to_string().into()
        };
        let kinds = ["configmaps", "secrets", "serviceaccounts"]
            .map(|name| json!({"name": name, "namespaced": true}));
        Self {
            kinds: json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": kinds})
                .to_string()
                .into(),
            list: list(&items),
            empty: list(&[]),
            stream: format!("{lines}{end}\n").into(),
            end: format!("{end}\n").into(),
            requests: AtomicU64::new(0),
        }
    }

    fn answer(&self, path: &str, query: &str) -> ResponseBody {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let whole = |bytes: Bytes| Full::new(bytes).boxed();
        if path == "/requests" {
            return whole(self.requests.load(Ordering::Relaxed).to_string().into());
        }
        if path.ends_with("/api/v1") {
            return whole(self.kinds.clone());
        }
        let full = path.ends_with("/configmaps");
        if !query.contains("watch=true") {
            return whole(if full { self.list.clone() } else { self.empty.clone() });
        }
        let first = match (query.contains("sendInitialEvents=true"), full) {
            (true, true) => Some(self.stream.clone()),
            (true, false) => Some(self.end.clone()),
            (false, _) => None,
        };
        let first = futures::stream::iter(first.map(|bytes| Ok(Frame::data(bytes))));
        let then = futures::stream::pending();
        BodyExt::boxed(StreamBody::new(futures::StreamExt::chain(first, then)))
    }
}

#[tokio::main(worker_threads = 2)]
pub(crate) async fn run(objects: usize) {
    let (acceptor, authority) = tls();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("a port"));
    println!("{}", serde_json::to_string(&Address { url, authority }).expect("plain data"));
    let prepared = Arc::new(Prepared::new(objects));
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let (acceptor, prepared) = (acceptor.clone(), prepared.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let service = service_fn(move |request: Request<Incoming>| {
                let body = prepared.answer(request.uri().path(), request.uri().query().unwrap_or_default());
                async move { Ok::<_, Infallible>(Response::new(body)) }
            });
            let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(100);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn tls() -> (TlsAcceptor, Vec<u8>) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("a certificate").der().to_vec();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &issuer).expect("a certificate").der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring");
    let mut config =
        builder.with_no_client_auth().with_single_cert(vec![certificate], key).expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), authority)
}
