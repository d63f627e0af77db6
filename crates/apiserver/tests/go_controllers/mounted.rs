//! An embedded server on a free port, as Go programs reach it.

use polis_apiserver::{Access, Authority, Identity, MASTERS, PlaneSpec, Server, Switches, Tls, kubeconfig};
use tokio::task::JoinHandle;

use crate::common::mk_widgets_crd;

/// The plane that the controllers work on.
pub const PLANE: &str = "member";
/// The bearer token of an administrator.
pub const TOKEN: &str = "let-the-federation-in";

/// A server with one plane that serves widgets. It ends with the value.
pub struct Mounted {
    pub server: Server,
    pub authority: Authority,
    pub url: String,
    serving: JoinHandle<()>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Mounted {
    pub async fn new(switches: Switches) -> Self {
        let authority = Authority::new().expect("an authority");
        let admin =
            Identity { user: "federation".into(), groups: vec![MASTERS.into()], ..Identity::default() };
        let access = Access::default().authority(authority.pem()).token(TOKEN, admin);
        let server = Server::builder().access(access).controllers(switches).build().await.expect("a server");
        let spec = PlaneSpec { namespaces: vec!["kube-system".to_owned()], ..PlaneSpec::own(PLANE) };
        server.create_plane(spec).await.expect("a plane");
        server.install_crd_in(PLANE, &mk_widgets_crd()).await.expect("a definition");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let certificate = authority.server(&["127.0.0.1"]).expect("a certificate");
        let tls = Tls::new(&certificate, Some(authority.pem())).expect("TLS");
        let answering = server.clone();
        let serving = tokio::spawn(async move { answering.serve(listener, tls).await });
        Self { server, authority, url, serving }
    }

    /// The address of the plane, as an API server.
    pub fn endpoint(&self) -> String {
        format!("{}/planes/{PLANE}", self.url)
    }

    /// A kubeconfig of an administrator of the plane.
    pub fn kubeconfig(&self) -> String {
        let client = self.authority.client("controllers", &[MASTERS]).expect("a certificate");
        kubeconfig(&self.url, &format!("/planes/{PLANE}"), self.authority.pem(), &client)
    }
}
