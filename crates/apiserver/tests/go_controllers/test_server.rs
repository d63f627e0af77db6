//! An embedded server on a free port, for Go clients.

use polis_apiserver::{Access, EnabledControllers, MASTERS, PlaneSpec, Server, UserInfo, kubeconfig};
use polis_testing::TlsSocket;
use polis_tls::Authority;

use crate::common::mk_widgets_crd;

/// The plane of the test.
pub const PLANE: &str = "member";
/// The bearer token of an administrator.
pub const TOKEN: &str = "let-the-federation-in";

/// A server with one plane that serves widgets. It stops on drop.
pub struct TestServer {
    pub server: Server,
    pub socket: TlsSocket,
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
        let socket = TlsSocket::with_authority(&server, authority).await;
        Self { server, socket }
    }

    /// The URL of the plane.
    pub fn endpoint(&self) -> String {
        format!("{}/planes/{PLANE}", self.socket.address)
    }

    /// A kubeconfig of an administrator of the plane.
    pub fn kubeconfig(&self) -> String {
        let client = self.socket.authority.client("controllers", &[MASTERS]).expect("a certificate");
        kubeconfig(&self.socket.address, &format!("/planes/{PLANE}"), self.socket.authority.pem(), &client)
    }
}
