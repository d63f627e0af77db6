//! Which socket listens at an address, and whether it belongs to an instance.

use std::fs;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};

/// The inode of the socket in the network of this process that listens at exactly this address.
pub(super) fn inode(endpoint: SocketAddrV4) -> Option<u64> {
    // Of the process, not of the calling thread: the threads of an instance are in another network.
    find(&fs::read_to_string("/proc/self/net/tcp").ok()?, endpoint)
}

/// Looks up a listening socket in the text of `/proc/net/tcp`.
fn find(table: &str, endpoint: SocketAddrV4) -> Option<u64> {
    const LISTEN: &str = "0A";
    let address = u32::from_ne_bytes(endpoint.ip().octets());
    let local = format!("{address:08X}:{:04X}", endpoint.port());
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(1) == Some(&local.as_str()) && fields.get(3) == Some(&LISTEN);
        fields.get(9).filter(|_| listens)?.parse().ok()
    })
}

/// Whether a process that is neither the shim nor started by it listens at exactly this address: another
/// installation of Polis, for example, which uses the same range. False if it is not known: nothing listens
/// at exactly this address, or the sockets of a process may not be read.
pub(crate) fn is_foreign(endpoint: SocketAddr, shim: i32) -> bool {
    let SocketAddr::V4(endpoint) = endpoint else { return false };
    let Some(inode) = inode(endpoint) else { return false };
    owns(shim, &format!("socket:[{inode}]")).is_ok_and(|owned| !owned)
}

/// Whether a process or one of its descendants has a file open. An error if one of them cannot be read.
fn owns(process: i32, file: &str) -> io::Result<bool> {
    for open in fs::read_dir(format!("/proc/{process}/fd"))? {
        // A file that was closed meanwhile has no target.
        if fs::read_link(open?.path()).is_ok_and(|target| target.as_os_str() == file) {
            return Ok(true);
        }
    }
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let children = fs::read_to_string(thread?.path().join("children"))?;
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            if owns(child, file)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_listens_at_exactly_the_address_is_found() {
        let listener = std::net::TcpListener::bind("127.77.0.1:0").unwrap();
        let SocketAddr::V4(listening) = listener.local_addr().unwrap() else { panic!() };
        assert!(inode(listening).is_some());
        assert!(inode(SocketAddrV4::new([127, 77, 0, 2].into(), listening.port())).is_none());
        let port = listening.port();
        let everywhere = format!("head\n 0: 00000000:{port:04X} 00000000:0000 0A 0:0 0:0 0 0 0 1\n");
        assert_eq!(find(&everywhere, listening), None);
        let address = u32::from_ne_bytes(listening.ip().octets());
        let connected = format!("head\n 0: {address:08X}:{port:04X} 0100007F:0001 01 0:0 0:0 0 0 0 1\n");
        assert_eq!(find(&connected, listening), None);
    }

    #[test]
    fn a_listener_of_another_process_is_foreign() {
        let listener = std::net::TcpListener::bind("127.77.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap();
        let this = i32::try_from(std::process::id()).unwrap();
        assert!(!is_foreign(endpoint, this));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_foreign(endpoint, i32::try_from(other.id()).unwrap()));
        other.kill().unwrap();
        other.wait().unwrap();
        drop(listener);
        assert!(!is_foreign(endpoint, this), "nothing listens");
    }
}
