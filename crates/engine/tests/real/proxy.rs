//! A TCP proxy between the engine and the server that can break or slow down connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Open,
    /// Closes every connection, also new ones.
    Closed,
    /// Forwards 256 bytes every 2 ms.
    Slow,
}

pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to the server with this URL.
    pub async fn start(url: &str) -> Self {
        let target = url.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(Mode::Open);
        let accepted = Arc::<AtomicUsize>::default();
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (target, mut modes) = (target.clone(), modes.clone());
                tokio::spawn(async move {
                    if *modes.borrow() == Mode::Closed {
                        return;
                    }
                    let Ok(server) = TcpStream::connect(target).await else { return };
                    let (client_in, client_out) = client.into_split();
                    let (server_in, server_out) = server.into_split();
                    tokio::select! {
                        () = forward(client_in, server_out, modes.clone()) => {}
                        () = forward(server_in, client_out, modes.clone()) => {}
                        _ = modes.wait_for(|mode| *mode == Mode::Closed) => {}
                    }
                });
            }
        });
        Self { address, mode, accepted, task }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Connections accepted so server.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.mode.send_replace(Mode::Closed);
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    modes: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let slow = *modes.borrow() == Mode::Slow;
        let limit = if slow { 256 } else { buffer.len() };
        match from.read(&mut buffer[..limit]).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                if to.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        }
        if slow {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
