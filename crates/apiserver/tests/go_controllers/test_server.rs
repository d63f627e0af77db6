//! An embedded server on a free port, for Go clients.

use polis_apiserver::{
    Access, Authority, EnabledControllers, MASTERS, PlaneSpec, Server, ServerTls, UserInfo, kubeconfig,
};
use tokio::task::JoinHandle;

use crate::common::mk_widgets_crd;

/// The plane of the test.
pub const PLANE: &str = "member";
/// The bearer token of an administrator.
pub const TOKEN: &str = "let-the-federation-in";

/// A server with one plane that serves widgets. It stops on drop.
pub struct TestServer {
    pub server: Server,
    pub authority: Authority,
    pub url: String,
    serving: JoinHandle<()>,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl TestServer {
    pub async fn new(enabled: EnabledControllers) -> Self {
        let authority = Authority::new().expect("an authority");
        let admin =
            UserInfo { name: "federation".into(), groups: vec![MASTERS.into()], ..UserInfo::default() };
        let access = Access::default().authority(authority.pem()).token(TOKEN, admin);
        let server = Server::builder().access(access).controllers(enabled).build().await.expect("a server");
        let spec = PlaneSpec { namespaces: vec!["kube-system".to_owned()], ..PlaneSpec::standalone(PLANE) };
        server.create_plane(spec).await.expect("a plane");
        server.install_crd_in(PLANE, &mk_widgets_crd()).await.expect("a definition");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let certificate = authority.server(&["127.0.0.1"]).expect("a certificate");
        let tls = ServerTls::new(&certificate, Some(authority.pem())).expect("TLS");
        let handle = server.clone();
        let serving = tokio::spawn(async move { handle.serve(listener, tls).await });
        Self { server, authority, url, serving }
    }

    /// The URL of the plane.
    pub fn endpoint(&self) -> String {
        format!("{}/planes/{PLANE}", self.url)
    }

    /// A kubeconfig of an administrator of the plane.
    pub fn kubeconfig(&self) -> String {
        let client = self.authority.client("controllers", &[MASTERS]).expect("a certificate");
        kubeconfig(&self.url, &format!("/planes/{PLANE}"), self.authority.pem(), &client)
    }
}
