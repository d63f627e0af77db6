//! Free ports on 127.0.0.1, and whose they are.
//!
//! A port is chosen, then a component is started on it; in between another process may take it. Nothing can
//! prevent that from outside, so it is noticed and another port is tried. Two things keep it rare: ports come
//! from below the range that the kernel gives to outgoing connections, and a bed never offers one twice.

use std::{
    collections::{HashSet, VecDeque},
    fs,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use crate::Error;

/// Below are well-known ports, and the defaults of most servers.
const LOWEST: u16 = 20_000;
/// Where outgoing connections begin on an ordinary Linux.
const USUAL_EPHEMERAL: u16 = 32_768;
const TRIES: usize = 200;

/// Where ports come from. Clones share what was offered.
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
    /// Offers these first, free or not, as if they had been taken after they were looked at.
    pub fn beginning_with(ports: impl IntoIterator<Item = u16>) -> Self {
        let offered = Offered { first: ports.into_iter().collect(), ..Offered::default() };
        Ports { offered: Arc::new(Mutex::new(offered)) }
    }

    /// Chooses a port that is free now.
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

/// Ports that the kernel does not give to outgoing connections.
fn range(ip_local_port_range: &str) -> Range<u16> {
    let lowest = ip_local_port_range.split_whitespace().next().and_then(|number| number.parse().ok());
    match lowest {
        // Too few left below it: take them from everywhere and rely on trying again.
        Some(ephemeral) if ephemeral < LOWEST + 1_000 => LOWEST..60_000,
        Some(ephemeral) => LOWEST..ephemeral,
        None => LOWEST..USUAL_EPHEMERAL,
    }
}

fn pick(range: &Range<u16>, random: u64) -> u16 {
    let width = u64::from(range.end - range.start);
    range.start + u16::try_from(random % width).expect("less than the width of a range of u16")
}

/// Whether this very process listens on the port: an answer from the port says only that somebody does.
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

/// The inode of the socket that listens on the port, from the kernel's table of sockets.
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
    fn ports_are_chosen_below_those_of_outgoing_connections() {
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
    fn ports_given_to_begin_with_come_first_and_unseen() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let ports = Ports::beginning_with([port]);
        assert_eq!(ports.choose().unwrap(), port);
        assert_ne!(ports.choose().unwrap(), port);
    }

    #[test]
    fn a_listener_is_told_from_a_connection_to_the_same_port() {
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
