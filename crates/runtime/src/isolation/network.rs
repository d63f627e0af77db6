//! The network of an instance: its own namespace, and the connections that the shim forwards.
//!
//! The namespace has the loopback interface only, on which all of 127.0.0.0/8 is local, as on the host. So an
//! instance has the same address inside and outside, and `0.0.0.0:8080` in two instances never collides.
//!
//! - From outside, the shim listens on the instance's address at each TCP port of the container, once the
//!   program accepts connections there, and forwards each connection.
//! - From inside, connections to other addresses are redirected to the shim, which opens them from the
//!   host's network, except to the host itself; see [`super::redirect`] and [`super::egress`].
//!
//! No host configuration changes, and the kernel removes everything when the shim ends.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use futures::FutureExt as _;
use rustix::net::sockopt::ip_original_dst;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::{egress, namespaces, redirect};

/// Connections of a container that are forwarded at the same time, in each direction. Further ones wait.
const MAX_CONNECTIONS: usize = 4096;
/// Connections that wait until they are accepted.
const BACKLOG: u32 = 1024;
/// Time to hand over the connections that have reached a port when the container stops.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of a connection that a program opens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a DNS query; resolvers repeat it after 5 s.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// DNS queries that are answered at the same time.
const MAX_QUERIES: usize = 64;

/// The network of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network {
    pub(crate) address: Ipv4Addr,
    /// TCP ports of the container.
    pub(crate) ports: Vec<u16>,
    /// A process in the namespaces of the instance, if another container of it runs.
    pub(crate) join: Option<i32>,
}

/// The ports of a container, reserved on the host.
pub(crate) struct HostPorts(Vec<(SocketAddr, TcpSocket)>);

impl HostPorts {
    /// Reserves the ports. They refuse connections until the program accepts them.
    pub(crate) fn bind(network: &Network) -> io::Result<Self> {
        let bind = |port: &u16| {
            let endpoint = SocketAddr::from((network.address, *port));
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(endpoint).map_err(|error| {
                io::Error::new(error.kind(), format!("failed to listen on {endpoint} of the host: {error}"))
            })?;
            Ok((endpoint, socket))
        };
        network.ports.iter().map(bind).collect::<io::Result<_>>().map(HostPorts)
    }
}

/// The thread of the shim that is in the instance's namespaces.
pub(crate) struct InsideThread {
    stop: watch::Sender<bool>,
    /// Closed when no port accepts connections any more.
    open: mpsc::Receiver<()>,
}

impl InsideThread {
    /// Stops accepting connections from outside; those that have reached a port are handed to the program.
    pub(crate) async fn stop_accepting(&mut self) {
        self.stop.send_replace(true);
        _ = timeout(HAND_OVER_TIMEOUT, async { while self.open.recv().await.is_some() {} }).await;
    }
}

/// The sockets inside that receive what programs send to other addresses.
struct Redirected {
    tcp: StdListener,
    dns: StdUdpSocket,
}

/// Starts a thread in the namespaces of the instance, and calls `spawn` there. Call it in the runtime of the
/// shim's main thread, which opens the connections of the program.
pub(crate) fn enter<T: Send + 'static>(
    network: &Network,
    ports: HostPorts,
    spawn: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<(T, InsideThread)> {
    let (stop, stopping) = watch::channel(false);
    let (closed, open) = mpsc::channel(1);
    let (entered, result) = std_mpsc::channel();
    let network = network.clone();
    std::thread::Builder::new().name("inside".to_owned()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                _ = entered.send(Err(error));
                return;
            }
        };
        let started = enter_namespaces(&network).and_then(|()| {
            let redirected = redirect_connections(network.address);
            spawn().map(|spawned| (spawned, redirected))
        });
        let failed = started.is_err();
        _ = entered.send(started);
        if failed {
            return;
        }
        // The kernel kills the program when this thread ends, so it runs until the process exits.
        runtime.block_on(async {
            for (endpoint, socket) in ports.0 {
                tokio::spawn(accept(endpoint, socket, stopping.clone(), closed.clone()));
            }
            drop(closed);
            std::future::pending::<()>().await;
        });
    })?;
    let (spawned, redirected) =
        result.recv().map_err(|_| io::Error::other("the thread of the instance's network panicked"))??;
    if let Some(Redirected { tcp, dns }) = redirected {
        tokio::spawn(open_connections(TcpListener::from_std(tcp)?));
        tokio::spawn(answer_queries(UdpSocket::from_std(dns)?));
    }
    Ok((spawned, InsideThread { stop, open }))
}

fn enter_namespaces(network: &Network) -> io::Result<()> {
    let Some(other) = network.join.and_then(Pid::from_raw) else {
        namespaces::enter_instance_namespaces()?;
        redirect::enable_loopback()?;
        // Ports below 1024 belong to the instance, and its program has no capability to bind them.
        _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
        return Ok(());
    };
    let other = pidfd_open(other, PidfdFlags::empty())?;
    let shared = ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    move_into_thread_name_spaces(other.as_fd(), shared)?;
    namespaces::enter_process_namespace()
}

/// Redirects connections to sockets of this thread; `None` if the kernel has no nf_tables, and then an
/// instance reaches only itself.
fn redirect_connections(own: Ipv4Addr) -> Option<Redirected> {
    let sockets = || -> io::Result<Redirected> {
        let tcp = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let dns = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        tcp.set_nonblocking(true)?;
        dns.set_nonblocking(true)?;
        redirect::install(own, tcp.local_addr()?.port(), dns.local_addr()?.port())?;
        Ok(Redirected { tcp, dns })
    };
    sockets().ok()
}

/// Forwards the connections to a port from outside, from the moment when the program accepts them.
async fn accept(
    endpoint: SocketAddr,
    socket: TcpSocket,
    mut stopping: watch::Receiver<bool>,
    _open: mpsc::Sender<()>,
) {
    let listener = tokio::select! {
        () = stopped(&mut stopping) => return,
        () = accepts_connections(endpoint) => match socket.listen(BACKLOG) {
            Ok(listener) => listener,
            Err(_) => return, // another process listens there, which the probe of Polis will report
        },
    };
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let forward = |stream: TcpStream, permit| {
        tokio::spawn(async move {
            forward(stream, TcpStream::connect(endpoint)).await;
            drop(permit);
        })
    };
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => _ = forward(stream, Some(permit)),
                Err(_) => sleep(Duration::from_millis(50)).await, // most likely out of descriptors
            },
        }
    }
    while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
        forward(stream, None);
    }
    // The tasks connect to the program before it gets the signal to stop.
    tokio::task::yield_now().await;
}

/// Waits until the container stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    _ = stopping.wait_for(|stop| *stop).await;
}

/// Waits until the program accepts connections. The interval grows with the time, from 2 ms to 1 s.
async fn accepts_connections(endpoint: SocketAddr) {
    let start = Instant::now();
    while TcpStream::connect(endpoint).await.is_err() {
        sleep((start.elapsed() / 4).clamp(Duration::from_millis(2), Duration::from_secs(1))).await;
    }
}

/// Copies both directions of a connection until both have ended. A failure resets the other side.
async fn forward(mut stream: TcpStream, other: impl Future<Output = io::Result<TcpStream>>) {
    match other.await {
        Ok(mut other) => {
            _ = (stream.set_nodelay(true), other.set_nodelay(true));
            _ = copy_bidirectional(&mut stream, &mut other).await;
        }
        Err(_) => _ = stream.set_zero_linger(),
    }
}

/// Opens the connections that programs have opened, from the host's network.
async fn open_connections(listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(target) = ip_original_dst(&stream) else { continue };
        tokio::spawn(async move {
            forward(stream, async { timeout(CONNECT_TIMEOUT, egress::connect(target)).await? }).await;
            drop(permit);
        });
    }
}

/// Answers DNS queries by the first name server of the host.
async fn answer_queries(socket: UdpSocket) {
    let (socket, queries) = (Arc::new(socket), Arc::new(Semaphore::new(MAX_QUERIES)));
    let mut buffer = [0; 4096];
    loop {
        let Ok(permit) = queries.clone().acquire_owned().await else { return };
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let (query, socket) = (buffer[..length].to_vec(), socket.clone());
        tokio::spawn(async move {
            if let Ok(Ok(answer)) = timeout(DNS_TIMEOUT, query_host(&query)).await {
                _ = socket.send_to(&answer, from).await;
            }
            drop(permit);
        });
    }
}

async fn query_host(query: &[u8]) -> io::Result<Vec<u8>> {
    let server = fs::read_to_string("/etc/resolv.conf").ok().and_then(|text| name_server(&text));
    let server = server.ok_or_else(|| io::Error::other("the host has no name server"))?;
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect((server, 53)).await?;
    socket.send(query).await?;
    let mut answer = vec![0; 4096];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

/// The first name server in the text of a resolv.conf.
fn name_server(text: &str) -> Option<IpAddr> {
    text.lines().find_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_server_is_used() {
        let text = "# none\nsearch example.org\nnameserver 127.0.0.53\nnameserver 9.9.9.9\n";
        assert_eq!(name_server(text), Some([127, 0, 0, 53].into()));
        assert_eq!(name_server("nameserver fe80::1"), "fe80::1".parse().ok());
        assert_eq!(name_server("options edns0\n"), None);
    }

    #[tokio::test]
    async fn a_reserved_port_refuses_connections() {
        let network = Network { address: [127, 9, 9, 9].into(), ports: vec![0], join: None };
        let HostPorts(ports) = HostPorts::bind(&network).unwrap();
        let taken = ports[0].1.local_addr().unwrap();
        assert!(TcpStream::connect(taken).await.is_err());
    }
}
