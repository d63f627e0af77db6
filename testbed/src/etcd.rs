//! etcd: one for all planes of a bed. Each kube-apiserver keeps to its own prefix.

use crate::{binaries::Binaries, home::Home, pins, process::Spec};

/// The component's name.
pub const NAME: &str = "etcd";

/// Ports that it needs: for clients and for peers (it has none, but insists on listening).
pub const PORTS: usize = 2;

/// The address for clients.
pub fn url(ports: &[u16]) -> String {
    format!("http://127.0.0.1:{}", ports[0])
}

/// How etcd is started.
pub fn spec(binaries: &Binaries, home: &Home, ports: &[u16]) -> Spec {
    let (clients, peers) = (url(ports), format!("http://127.0.0.1:{}", ports[1]));
    Spec {
        name: NAME.to_owned(),
        program: binaries.path(pins::ETCD),
        args: vec![
            "--name=bed".to_owned(),
            format!("--data-dir={}", home.etcd().display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=bed={peers}"),
            // A crash of the machine may lose the bed; a crash of etcd does not, the kernel has its writes.
            "--unsafe-no-fsync".to_owned(),
            // 4 GiB: thousands of objects on several planes in one store, between two compactions.
            "--quota-backend-bytes=4294967296".to_owned(),
            "--log-level=warn".to_owned(),
        ],
        ports: ports.to_vec(),
        ready: format!("{clients}/health"),
    }
}
