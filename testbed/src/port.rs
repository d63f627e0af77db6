//! Free ports on 127.0.0.1, and the check which process listens on a port.
//!
//! Between the choice of a port and the start of its component another process may take the port. This cannot
//! be prevented; it is detected, and another port is tried. Two rules keep it rare: ports come from below the
//! kernel's ephemeral port range, and a test cluster never offers a port twice.

use std::{
    collections::{HashSet, VecDeque},
    fs,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use crate::Error;

/// Ports below are well-known ports and the defaults of most servers.
const LOWEST: u16 = 20_000;
/// The first ephemeral port in Linux's default configuration.
const USUAL_EPHEMERAL: u16 = 32_768;
const TRIES: usize = 200;

/// A source of free ports. Clones share the set of offered ports.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    offered: Arc<Mutex<Offered>>,
}

#[derive(Debug, Default)]
struct Offered {
    first: VecDeque<u16>,
    before: HashSet<u16>,
}

impl Ports {
    /// Offers these ports first, free or not; tests use it to simulate ports that are taken after the check.
    pub fn beginning_with(ports: impl IntoIterator<Item = u16>) -> Self {
        let offered = Offered { first: ports.into_iter().collect(), ..Offered::default() };
        Ports { offered: Arc::new(Mutex::new(offered)) }
    }

    /// Chooses a free port.
    pub fn choose(&self) -> Result<u16, Error> {
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(port) = offered.first.pop_front() {
            return Ok(port);
        }
        let range = range(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default());
        for _ in 0..TRIES {
            let port = pick(&range, RandomState::new().hash_one(0));
            if !offered.before.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                offered.before.insert(port);
                return Ok(port);
            }
        }
        Err(Error::NoPort { tries: TRIES })
    }
}

/// The ports below the ephemeral port range.
fn range(ip_local_port_range: &str) -> Range<u16> {
    let lowest = ip_local_port_range.split_whitespace().next().and_then(|number| number.parse().ok());
    match lowest {
        // Too few ports below it: use all ports and rely on the retry.
        Some(ephemeral) if ephemeral < LOWEST + 1_000 => LOWEST..60_000,
        Some(ephemeral) => LOWEST..ephemeral,
        None => LOWEST..USUAL_EPHEMERAL,
    }
}

fn pick(range: &Range<u16>, random: u64) -> u16 {
    let width = u64::from(range.end - range.start);
    range.start + u16::try_from(random % width).expect("less than the width of a range of u16")
}

/// Whether this process listens on the port. A response from the port only shows that some process does.
pub fn is_held_by(pid: u32, port: u16) -> bool {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let Some(inode) = listener(&table, port) else { return false };
    let socket = format!("socket:[{inode}]");
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .any(|target| target.as_os_str() == socket.as_str())
}

/// The inode of the socket that listens on the port, from the kernel's socket table.
fn listener(table: &str, port: u16) -> Option<&str> {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&suffix) && *fields.get(3)? == LISTEN;
        if listens { fields.get(9).copied() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_chosen_below_the_ephemeral_range() {
        assert_eq!(range("32768\t60999\n"), 20_000..32_768);
        assert_eq!(range("1024 65535"), 20_000..60_000);
        assert_eq!(range(""), 20_000..32_768);
    }

    #[test]
    fn every_pick_is_in_the_range() {
        for random in [0, 1, 12_767, 12_768, u64::MAX] {
            assert!((20_000..32_768).contains(&pick(&(20_000..32_768), random)));
        }
    }

    #[test]
    fn a_port_is_offered_once() {
        let ports = Ports::default();
        let offered: HashSet<u16> = (0..50).map(|_| ports.choose().unwrap()).collect();
        assert_eq!(offered.len(), 50);
    }

    #[test]
    fn initial_ports_are_offered_first_and_unchecked() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let ports = Ports::beginning_with([port]);
        assert_eq!(ports.choose().unwrap(), port);
        assert_ne!(ports.choose().unwrap(), port);
    }

    #[test]
    fn a_listener_is_distinct_from_a_connection_to_the_same_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 111 1\n\
                     1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1\n";
        assert_eq!(listener(table, 8080), Some("222"));
        assert_eq!(listener(table, 8081), None);
    }

    #[test]
    fn a_port_is_held_by_the_process_that_listens_and_by_no_other() {
        let here = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = here.local_addr().unwrap().port();
        assert!(is_held_by(std::process::id(), port));
        let parent = rustix::process::getppid().expect("a test has a parent").as_raw_nonzero().get();
        assert!(!is_held_by(u32::try_from(parent).unwrap(), port));
        drop(here);
        assert!(!is_held_by(std::process::id(), port));
    }
}
