//! A registry in this process, and images made of programs of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

/// A registry on a free port of 127.0.0.1, without TLS. It ends with the runtime of its test.
pub struct TestRegistry {
    pub address: SocketAddr,
    content: Arc<Mutex<Content>>,
}

#[derive(Default)]
struct Content {
    documents: BTreeMap<String, Vec<u8>>,
    /// `Authorization` header that the registry asks for.
    required: Option<String>,
    /// All requests fail with this status.
    broken: Option<u16>,
    requests: u32,
}

impl TestRegistry {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let content = Arc::new(Mutex::new(Content::default()));
        let served = content.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let content = served.clone();
                let answer = service_fn(move |request: Request<Incoming>| {
                    let content = content.clone();
                    async move { Ok::<_, Infallible>(content.lock().answer(&request)) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        TestRegistry { address, content }
    }

    /// Adds an image for this machine; returns its name.
    pub fn push(&self, name: &str, layers: &[Vec<u8>], config: &Value) -> String {
        self.push_for("linux", architecture(), name, layers, config)
    }

    /// Adds an index with one image.
    pub fn push_for(
        &self,
        os: &str,
        architecture: &str,
        name: &str,
        layers: &[Vec<u8>],
        config: &Value,
    ) -> String {
        let mut content = self.content.lock();
        let mut put = |kind: &str, bytes: Vec<u8>| {
            let digest = digest(&bytes);
            let described = json!({"digest": digest, "size": bytes.len()});
            content.documents.insert(format!("/v2/{name}/{kind}/{digest}"), bytes);
            described
        };
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let layers: Vec<Value> = layers.iter().map(|layer| put("blobs", gzip(layer))).collect();
        let file = json!({
            "os": os, "architecture": architecture, "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = put("blobs", file.to_string().into_bytes());
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        let mut manifest = put("manifests", manifest.to_string().into_bytes());
        manifest["platform"] = json!({"os": os, "architecture": architecture});
        let index = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string().into_bytes();
        content.documents.insert(format!("/v2/{name}/manifests/v1"), index);
        format!("{}/{name}:v1", self.address)
    }

    /// Requires this user and password.
    pub fn require(&self, basic: &str) {
        self.content.lock().required = Some(format!("Basic {basic}"));
    }

    /// Makes all requests fail, or none.
    pub fn break_with(&self, status: Option<u16>) {
        self.content.lock().broken = status;
    }

    /// Replaces the content of all layers by something else.
    pub fn lie(&self) {
        let mut content = self.content.lock();
        for (path, bytes) in &mut content.documents {
            if path.contains("/blobs/") && bytes.starts_with(&[0x1f, 0x8b]) {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            }
        }
    }

    pub fn requests(&self) -> u32 {
        self.content.lock().requests
    }
}

impl Content {
    fn answer(&mut self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        self.requests += 1;
        let respond = |status: u16, body: Vec<u8>| {
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            response
        };
        if let Some(status) = self.broken {
            return respond(status, Vec::new());
        }
        let given = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if self.required.is_some() && given != self.required.as_deref() {
            let mut response = respond(401, Vec::new());
            let challenge = http::HeaderValue::from_static("Basic realm=\"test\"");
            response.headers_mut().insert(http::header::WWW_AUTHENTICATE, challenge);
            return response;
        }
        match self.documents.get(request.uri().path()) {
            Some(bytes) => respond(200, bytes.clone()),
            None => respond(404, Vec::new()),
        }
    }
}

pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A layer with these files.
pub fn mk_layer(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        add(&mut archive, path, content.as_bytes(), 0o644);
    }
    archive.into_inner().unwrap()
}

/// A layer with a shell, the programs of Polis as `/app`, and the libraries that both need.
pub fn base_layer() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libraries: BTreeSet<&str> = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
    for library in libraries.into_iter().filter(|path| path.contains(".so")) {
        let content = std::fs::read(library).unwrap();
        add(&mut archive, &library[1..], &content, 0o755);
        let name = PathBuf::from(library).file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("ld-linux") {
            let folder = if cfg!(target_arch = "aarch64") { "lib" } else { "lib64" };
            add(&mut archive, &format!("{folder}/{name}"), &content, 0o755);
        }
    }
    add(&mut archive, "bin/sh", &std::fs::read("/bin/sh").unwrap(), 0o755);
    add(&mut archive, "app", &std::fs::read(env!("CARGO_BIN_EXE_polis-shim")).unwrap(), 0o755);
    add(&mut archive, "etc/passwd", b"root:x:0:0::/root:/bin/sh\nweb:x:101:102::/srv:/bin/sh\n", 0o644);
    add(&mut archive, "etc/group", b"root:x:0:\nweb:x:102:\n", 0o644);
    add(&mut archive, "etc/deleted", b"still here", 0o644);
    archive.into_inner().unwrap()
}

fn add(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    archive.append_data(&mut header, Path::new(path), content).unwrap();
}
