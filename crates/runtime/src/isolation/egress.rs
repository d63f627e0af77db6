//! Which connections of an instance the shim opens in the host's network.
//!
//! Open are the addresses of other instances, and of other machines. Closed are the host's own addresses: a
//! service of the host that listens on all of its addresses, such as an API server or SSH, takes its peers
//! for local ones. Closed are link-local addresses, too: the metadata service of a cloud gives the
//! credentials of the machine to every client of the machine.
//!
//! All of `127.0.0.0/8` is local to the host, the addresses of instances included. A shim listens at exactly
//! the address of its instance, and other services listen at `0.0.0.0` or in `127.0.0.0/16`: so a socket that
//! listens at exactly the destination is an instance.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use tokio::net::{TcpStream, UdpSocket};

use super::listener;

/// Opens a connection of the program, if the instance may reach the destination.
pub(super) async fn connect(target: SocketAddrV4) -> io::Result<TcpStream> {
    let source = source_address(*target.ip()).await;
    if !is_open(*target.ip(), source, || listener::inode(target).is_some()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{target} is an address of the host or link-local"),
        ));
    }
    TcpStream::connect(SocketAddr::V4(target)).await
}

/// Whether an instance may reach an address. `source` is the address of the host from which it would be
/// reached; `listens` tells whether a socket of the host listens at exactly the destination.
fn is_open(target: Ipv4Addr, source: Option<Ipv4Addr>, listens: impl FnOnce() -> bool) -> bool {
    if target.is_loopback() {
        let [_, second, ..] = target.octets();
        return second != 0 && listens();
    }
    // The kernel reaches its own address from the same address, or from a loopback address.
    let own = source.is_some_and(|source| source == target || source.is_loopback());
    !own && !target.is_link_local() && !target.is_unspecified() && !target.is_broadcast()
}

/// The source address of packets to a destination; `None` if there is no route. Nothing is sent.
async fn source_address(target: Ipv4Addr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.ok()?;
    socket.connect((target, 9)).await.ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(source) => Some(source),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_and_instances_are_open_and_the_host_is_not() {
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        for (target, source, listens, open) in [
            ("93.184.216.34", Some("10.0.0.5"), false, true),
            ("10.0.0.9", Some("10.0.0.5"), false, true),
            ("93.184.216.34", None, false, true), // the connection fails by itself
            ("127.64.3.4", Some("127.0.0.1"), true, true),
            ("127.64.3.4", Some("127.0.0.1"), false, false), // only a listener at 0.0.0.0
            ("127.0.0.1", Some("127.0.0.1"), true, false),
            ("127.0.1.1", Some("127.0.0.1"), true, false),
            ("10.0.0.5", Some("10.0.0.5"), true, false),
            ("172.17.0.1", Some("172.17.0.1"), true, false),
            ("10.96.0.1", Some("127.0.0.1"), true, false), // a range that is routed to the host
            ("169.254.169.254", Some("10.0.0.5"), false, false),
            ("0.0.0.0", Some("127.0.0.1"), true, false),
            ("255.255.255.255", None, false, false),
        ] {
            assert_eq!(
                is_open(address(target), source.map(address), || listens),
                open,
                "{target} {source:?}"
            );
        }
    }

    #[tokio::test]
    async fn the_host_reaches_its_own_addresses_from_themselves() {
        assert_eq!(source_address(Ipv4Addr::LOCALHOST).await, Some(Ipv4Addr::LOCALHOST));
        if let Some(own) = source_address([192, 0, 2, 1].into()).await {
            assert_eq!(source_address(own).await, Some(own));
        }
    }
}
