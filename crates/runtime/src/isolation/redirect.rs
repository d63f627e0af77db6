//! Redirects the connections that a program opens to the shim, which forwards them from the host's network.
//!
//! The network namespace of an instance has the loopback interface only. All addresses are routed to it, and
//! a rule of nf_tables sends each TCP connection, and each DNS query, to a port of the shim. Not redirected
//! are the address of the instance itself and `127.0.0.0/16`, its own loopback: a service that the host
//! offers on 127.0.0.1, such as the API server of Polis, is not reachable from an instance.

use std::io;
use std::net::Ipv4Addr;

use rustix::net::netlink;

use super::netlink::{CREATE, Messages, attribute, nested, number, text};

/// The loopback interface is the first of a network namespace.
const LOOPBACK: u32 = 1;

/// Activates the loopback interface, and routes all addresses to it.
pub(super) fn enable_loopback() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    const NEW_ROUTE: u16 = 24;
    // struct ifinfomsg: family, type, index, flags and their mask: IFF_UP.
    let link = [&[0; 4], &LOOPBACK.to_ne_bytes()[..], &1_u32.to_ne_bytes(), &1_u32.to_ne_bytes()].concat();
    // struct rtmsg: IPv4, any destination, main table, by the administrator, on this host, local.
    let route = [2, 0, 0, 0, 254, 4, 254, 2, 0, 0, 0, 0];
    Messages::default()
        .request(NEW_LINK, 0, &link, &[])
        .request(NEW_ROUTE, CREATE, &route, &attribute(4, &LOOPBACK.to_ne_bytes()))
        .send(None)
}

/// Redirects TCP connections to a port of the shim, and DNS queries over UDP to another.
pub(super) fn install(own: Ipv4Addr, tcp: u16, dns: u16) -> io::Result<()> {
    const SUBSYSTEM: u16 = 10 << 8;
    const BATCH_BEGIN: u16 = 16;
    const BATCH_END: u16 = 17;
    const NEW_TABLE: u16 = SUBSYSTEM;
    const NEW_CHAIN: u16 = SUBSYSTEM | 3;
    const NEW_RULE: u16 = SUBSYSTEM | 6;
    const OUTPUT_HOOK: u32 = 3;
    const NAT_PRIORITY: i32 = -100;
    const APPEND: u16 = 0x800;
    let (batch, ip) = ([0, 0, 0, 10], [2, 0, 0, 0]);
    let hook = nested(4, &[number(1, OUTPUT_HOOK), number(2, NAT_PRIORITY as u32)]);
    let chain = [text(1, TABLE), text(3, CHAIN), hook, text(7, "nat")].concat();
    let mut messages = Messages::default()
        .message(BATCH_BEGIN, 0, &batch, &[])
        .request(NEW_TABLE, CREATE, &ip, &text(1, TABLE))
        .request(NEW_CHAIN, CREATE, &ip, &chain);
    let keep = [(own, Ipv4Addr::BROADCAST), (Ipv4Addr::new(127, 0, 0, 0), Ipv4Addr::new(255, 255, 0, 0))];
    // The resolver of systemd, which the host's resolv.conf may name, is not in this network.
    let resolver = [destination(), equals(&[127, 0, 0, 53]), protocol(), equals(&[UDP])];
    let resolver = [&resolver[..], &[destination_port(), equals(&[0, 53]), port(dns), redirect()]].concat();
    let kept =
        keep.map(|(address, mask)| rule(&[destination(), masked(mask), equals(&address.octets()), accept()]));
    let others = [
        rule(&[protocol(), equals(&[TCP]), port(tcp), redirect()]),
        rule(&[protocol(), equals(&[UDP]), destination_port(), equals(&[0, 53]), port(dns), redirect()]),
    ];
    for rule in [rule(&resolver)].into_iter().chain(kept).chain(others) {
        messages = messages.request(NEW_RULE, CREATE | APPEND, &ip, &rule);
    }
    messages.message(BATCH_END, 0, &batch, &[]).send(Some(netlink::NETFILTER))
}

const TABLE: &str = "polis";
const CHAIN: &str = "output";
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The register that all expressions use.
const REGISTER: u32 = 1;

/// The attributes of a rule with these expressions.
fn rule(expressions: &[Vec<u8>]) -> Vec<u8> {
    [text(1, TABLE), text(2, CHAIN), nested(4, expressions)].concat()
}

fn expression(name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, attributes)])
}

/// Loads the destination address of a packet.
fn destination() -> Vec<u8> {
    expression("payload", &[number(1, REGISTER), number(2, 1), number(3, 16), number(4, 4)])
}

/// Loads the destination port of a packet.
fn destination_port() -> Vec<u8> {
    expression("payload", &[number(1, REGISTER), number(2, 2), number(3, 2), number(4, 2)])
}

/// Loads the protocol of a packet.
fn protocol() -> Vec<u8> {
    expression("meta", &[number(1, REGISTER), number(2, 16)])
}

fn masked(mask: Ipv4Addr) -> Vec<u8> {
    let value = |bytes: &[u8]| attribute(1, bytes);
    let (mask, none) = (nested(4, &[value(&mask.octets())]), nested(5, &[value(&[0; 4])]));
    expression("bitwise", &[number(1, REGISTER), number(2, REGISTER), number(3, 4), mask, none])
}

fn equals(value: &[u8]) -> Vec<u8> {
    expression("cmp", &[number(1, REGISTER), number(2, 0), nested(3, &[attribute(1, value)])])
}

/// Ends the evaluation: the packet stays as it is.
fn accept() -> Vec<u8> {
    const ACCEPT: u32 = 1;
    const DECISION_REGISTER: u32 = 0;
    let decision = nested(2, &[nested(2, &[number(1, ACCEPT)])]);
    expression("immediate", &[number(1, DECISION_REGISTER), decision])
}

/// Loads a port.
fn port(port: u16) -> Vec<u8> {
    expression("immediate", &[number(1, REGISTER), nested(2, &[attribute(1, &port.to_be_bytes())])])
}

/// Redirects to the loaded port of 127.0.0.1.
fn redirect() -> Vec<u8> {
    const SPECIFIED: u32 = 2;
    expression("redir", &[number(1, REGISTER), number(2, REGISTER), number(3, SPECIFIED)])
}
