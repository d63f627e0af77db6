//! etcd: one process for all planes of a test cluster. Each kube-apiserver uses its own prefix.

use crate::{binaries::Binaries, pins, process::ComponentSpec, state_dir::StateDir};

/// The component's name.
pub const NAME: &str = "etcd";

/// Number of ports: one for clients, and one for peers, which etcd requires even without peers.
pub const PORTS: usize = 2;

/// The client URL.
pub fn url(ports: &[u16]) -> String {
    format!("http://127.0.0.1:{}", ports[0])
}

/// The spec of etcd.
pub fn spec(binaries: &Binaries, state_dir: &StateDir, ports: &[u16]) -> ComponentSpec {
    let (clients, peers) = (url(ports), format!("http://127.0.0.1:{}", ports[1]));
    ComponentSpec {
        name: NAME.to_owned(),
        program: binaries.path(pins::ETCD),
        args: vec![
            "--name=testbed".to_owned(),
            format!("--data-dir={}", state_dir.etcd().display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=testbed={peers}"),
            // A crash of the machine may lose data; a crash of etcd does not, because the kernel holds its
            // writes.
            "--unsafe-no-fsync".to_owned(),
            // 4 GiB: thousands of objects of several planes between two compactions.
            "--quota-backend-bytes=4294967296".to_owned(),
            "--log-level=warn".to_owned(),
        ],
        ports: ports.to_vec(),
        ready: format!("{clients}/health"),
    }
}
