//! The webhook server: TLS from files or a Secret, renewed while it runs.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use polis_admission::{VALIDATE_PATH, serve};
use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::Secret;
use polis_api::kube::Api;
use polis_api::kube::api::PostParams;
use polis_engine::{CertificateSecret, Engine};
use polis_testing::{PLATFORM, eventually};
use polis_tls::{Authority, Certificate};
use polis_tls::{CertificateFiles, ReloadingCertificate};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::env::{TestEnv, mk_review};
use crate::manifests::mk_sandbox;

/// Writes a new certificate and swaps a link to it, as the kubelet does for a mounted Secret.
fn renew(dir: &Path, state: &str, authority: &Authority) {
    let pair = authority.server(&["localhost"]).expect("a certificate");
    fs::create_dir(dir.join(state)).expect("a folder");
    fs::write(dir.join(state).join("tls.crt"), pair.cert).expect("a certificate");
    fs::write(dir.join(state).join("tls.key"), pair.key).expect("a key");
    std::os::unix::fs::symlink(state, dir.join("..new")).expect("a link");
    fs::rename(dir.join("..new"), dir.join("..data")).expect("swapped");
}

/// A new connection that trusts the authority and may present a client certificate.
async fn connect(
    address: SocketAddr,
    authority: &Authority,
    client: Option<&Certificate>,
) -> Result<TlsStream<TcpStream>, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM")).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match client {
        Some(Certificate { cert, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
            config.with_client_auth_cert(chain, key).expect("a client certificate")
        }
        None => config.with_no_client_auth(),
    };
    let tcp = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|error| error.to_string())
}

/// Posts a review over a new connection that trusts the authority.
async fn post(address: SocketAddr, authority: &Authority, review: &Value) -> Result<Value, String> {
    post_over(connect(address, authority, None).await?, review).await
}

async fn post_over(tls: TlsStream<TcpStream>, review: &Value) -> Result<Value, String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(|error| error.to_string())?;
    let driver = tokio::spawn(connection);
    let request = Request::post(VALIDATE_PATH)
        .header("host", "localhost")
        .body(Full::new(Bytes::from(review.to_string())))
        .expect("a request");
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    driver.abort();
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

/// Serves the webhooks with these certificates on a free port.
async fn served(env: &TestEnv, certificates: ReloadingCertificate) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (address, tokio::spawn(serve(listener, certificates, env.webhook.clone())))
}

/// Waits until the server ends a connection, for a minute of the paused clock; returns what it sent.
async fn read_to_end(mut connection: impl AsyncRead + Unpin) -> String {
    let mut sent = Vec::new();
    let reading = timeout(Duration::from_secs(60), connection.read_to_end(&mut sent));
    // The end may be a reset, or an end without a close_notify.
    let _ = reading.await.expect("the server closes the connection");
    String::from_utf8(sent).expect("UTF-8")
}

#[tokio::test]
async fn silent_connections_and_trickled_bodies_are_closed() {
    let env = TestEnv::new().await;
    let authority = Authority::new().expect("an authority");
    let dir = tempfile::tempdir().expect("a folder");
    renew(dir.path(), "one", &authority);
    let certificates = CertificateFiles::in_dir(&dir.path().join("..data")).open().expect("usable");
    let (address, serving) = served(&env, certificates).await;

    let silent = connect(address, &authority, None).await.expect("a connection");
    tokio::time::pause();
    assert_eq!(read_to_end(silent).await, "");

    tokio::time::resume();
    let (read, mut write) = tokio::io::split(connect(address, &authority, None).await.expect("a connection"));
    let head = format!("POST {VALIDATE_PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n");
    write.write_all(head.as_bytes()).await.expect("sent");
    tokio::time::pause();
    let sending = tokio::spawn(async move {
        while write.write_all(b" ").await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let response = read_to_end(read).await;
    assert!(response.contains("the request body did not arrive within 10 s"), "{response}");
    sending.abort();
    serving.abort();
}

#[tokio::test]
async fn with_a_client_ca_only_its_clients_are_answered() {
    let env = TestEnv::new().await;
    let (server, clients) =
        (Authority::new().expect("an authority"), Authority::new().expect("an authority"));
    let dir = tempfile::tempdir().expect("a folder");
    renew(dir.path(), "one", &server);
    fs::write(dir.path().join("client-ca.crt"), clients.pem()).expect("a client CA");
    let client_ca = Some(dir.path().join("client-ca.crt"));
    let files = CertificateFiles { client_ca, ..CertificateFiles::in_dir(&dir.path().join("..data")) };
    let (address, serving) = served(&env, files.open().expect("usable")).await;

    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let answer = async |client: Option<&Certificate>| {
        post_over(connect(address, &server, client).await?, &review).await
    };
    answer(None).await.expect_err("no certificate");
    let of_another_ca = server.client("kube-apiserver", &[]).expect("a certificate");
    answer(Some(&of_another_ca)).await.expect_err("a certificate of another CA");
    let certified = clients.client("kube-apiserver", &[]).expect("a certificate");
    let response = answer(Some(&certified)).await.expect("a response");
    assert_eq!(response["response"]["allowed"], true, "{response}");
    serving.abort();
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let env = TestEnv::new().await;
    let (old, new) = (Authority::new().expect("an authority"), Authority::new().expect("an authority"));
    let dir = tempfile::tempdir().expect("a folder");
    renew(dir.path(), "one", &old);
    let certificates = CertificateFiles::in_dir(&dir.path().join("..data")).open().expect("usable");
    let (address, serving) = served(&env, certificates).await;

    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let response = post(address, &old, &review).await.expect("a response");
    assert_eq!(response["response"]["allowed"], true, "{response}");
    assert!(post(address, &new, &review).await.is_err(), "not yet renewed");
    renew(dir.path(), "two", &new);
    let response = post(address, &new, &review).await.expect("a response with the new certificate");
    assert_eq!(response["response"]["allowed"], true, "{response}");
    assert!(post(address, &old, &review).await.is_err(), "the old certificate is not served");
    serving.abort();
}

/// A Secret with a certificate of the authority.
fn mk_secret(authority: &Authority) -> Secret {
    let pair = authority.server(&["localhost"]).expect("a certificate");
    let mut secret = Secret::default();
    secret.metadata.name = Some("webhook-tls".into());
    let data = [("tls.crt", pair.cert), ("tls.key", pair.key)];
    secret.data = Some(data.map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes()))).into());
    secret
}

#[tokio::test]
async fn a_renewed_secret_is_served_without_a_restart_and_a_mismatched_one_is_not() {
    let env = TestEnv::new().await;
    let own = || env.cluster.plane(PLATFORM);
    let secrets = Api::<Secret>::namespaced(env.cluster.client(PLATFORM), "default");
    let mut engine = Engine::new();
    let named = ("default", "webhook-tls");
    let secret = CertificateSecret::watch(&mut engine, "certificate", own(), named, None);
    let missing = secret.open().await.expect_err("there is none").to_string();
    assert!(missing.contains("Secret default/webhook-tls"), "{missing}");

    let (old, new) = (Authority::new().expect("an authority"), Authority::new().expect("an authority"));
    secrets.create(&PostParams::default(), &mk_secret(&old)).await.expect("made");
    let mut engine = Engine::new();
    let secret = CertificateSecret::watch(&mut engine, "certificate", own(), named, None);
    let certificates = secret.open().await.expect("usable");
    let stop = CancellationToken::new();
    let watching = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    let (address, serving) = served(&env, certificates).await;
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    post(address, &old, &review).await.expect("a response");

    // A key that does not match the certificate is not served; the old certificate stays.
    let mut half = secrets.get("webhook-tls").await.expect("there");
    let other = mk_secret(&new).data.expect("data");
    half.data.as_mut().expect("data").insert("tls.key".into(), other["tls.key"].clone());
    let half = secrets.replace("webhook-tls", &PostParams::default(), &half).await.expect("written");
    post(address, &old, &review).await.expect("a response with the old certificate");

    let mut whole = half;
    whole.data = Some(other);
    secrets.replace("webhook-tls", &PostParams::default(), &whole).await.expect("written");
    eventually("the new certificate is served", async || post(address, &new, &review).await.ok()).await;
    assert!(post(address, &old, &review).await.is_err(), "the old certificate is not served");

    // After the Secret is deleted, its last certificate stays.
    secrets.delete("webhook-tls", &Default::default()).await.expect("deleted");
    post(address, &new, &review).await.expect("a response with the last certificate");
    serving.abort();
    stop.cancel();
    watching.await.expect("no panic").expect("a clean end");
}
