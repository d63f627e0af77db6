//! The limits of a server, and the timeouts of its peers.

use std::time::Duration;

/// The connection and stream limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// The part of `connections` that only peers with a verified client certificate may hold.
    pub reserve: usize,
    /// Maximum number of connections of one client certificate or, without one, of one address. An IPv6
    /// address counts as its /64 network, because one host usually has a whole one.
    pub per_peer: usize,
    /// Maximum number of concurrent streams of one HTTP/2 connection.
    pub streams: u32,
    /// The timeouts of the peer.
    pub timeouts: Timeouts,
}

impl ConnectionLimits {
    /// Limits with the default shares: an eighth of the connections is reserved for client certificates, and
    /// one peer holds at most a quarter.
    pub const fn new(connections: usize, streams: u32) -> Self {
        Self {
            connections,
            reserve: connections / 8,
            per_peer: connections / 4,
            streams,
            timeouts: Timeouts::DEFAULT,
        }
    }
}

/// How long a server waits for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The TLS handshake.
    pub handshake: Duration,
    /// The first request after the handshake, and the headers of each HTTP/1.1 request.
    pub header: Duration,
    /// A connection that waits for its peer: no request is being handled, and no response makes progress. A
    /// watch is a request that is being handled.
    pub idle: Duration,
    /// The next data of a request body.
    pub body_stall: Duration,
    /// A whole request body.
    pub body: Duration,
}

impl Timeouts {
    /// The defaults. kube-apiserver, too, limits a request to 60 s.
    pub const DEFAULT: Self = Self {
        handshake: Duration::from_secs(10),
        header: Duration::from_secs(10),
        idle: Duration::from_secs(120),
        body_stall: Duration::from_secs(30),
        body: Duration::from_secs(60),
    };
}
