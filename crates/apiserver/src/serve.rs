//! Serves the API over TLS with client certificates, HTTP/1.1 and HTTP/2.

use std::sync::Arc;

use polis_tls::{Certificate, ConnectionLimits, RequestBody, ServerTls};
use tokio::net::TcpListener;

use crate::{
    access::{Peer, certificates::ClientCertificate},
    server::Server,
};

/// 250 streams per connection is the default of kube-apiserver. Each watch of an HTTP/1.1 client holds a
/// connection.
const LIMITS: ConnectionLimits = ConnectionLimits::new(8192, 250);

impl Server {
    /// Serves all planes on `listener` until the future is dropped, which closes every connection.
    pub async fn serve(&self, listener: TcpListener, tls: ServerTls) {
        let service = self.service();
        polis_tls::serve(listener, LIMITS, tls, move |peer| {
            let service = service.clone();
            let certificate = peer.certificate.as_ref().and_then(ClientCertificate::from_der);
            let proved = Peer { certificate: certificate.map(Arc::new), address: Some(peer.address.ip()) };
            hyper::service::service_fn(move |mut request: http::Request<RequestBody>| {
                let service = service.clone();
                request.extensions_mut().insert(proved.clone());
                async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
            })
        })
        .await;
    }
}

/// A kubeconfig for one plane. `prefix` is the plane's URL path, empty for the root plane.
pub fn kubeconfig(server: &str, prefix: &str, authority: &str, client: &Certificate) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: polis\nclusters:\n- name: polis\n  cluster:\n    server: {server}{prefix}\n    certificate-authority-data: {}\nusers:\n- name: admin\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\ncontexts:\n- name: polis\n  context:\n    cluster: polis\n    user: admin\n",
        STANDARD.encode(authority),
        STANDARD.encode(&client.cert),
        STANDARD.encode(&client.key)
    )
}
