//! Runs a standalone API server, to try it with kubectl.
//!
//! ```text
//! cargo run -p polis-apiserver -- [--store FILE] [--encryption-key-file FILE] [--audit-log-path FILE]
//!     [--port PORT] [--kubeconfig FILE]
//! kubectl --kubeconfig target/polis.kubeconfig get namespaces
//! ```
//!
//! Without `--store` objects are in memory. A key file encrypts the Secrets of the store. An audit log has
//! writes, refusals and reads of Secrets. The kubeconfig is for the root plane, and valid for a day; the
//! server also serves `/planes/hub` and `/projects/demo/control-plane`.

use std::{error::Error, path::PathBuf, sync::Arc};

use polis_apimachinery::audit::{AuditLevel, AuditPolicy};
use polis_apiserver::{
    Access, Audit, AuditFile, CONTROLLERS, EncryptionKeys, PlaneSpec, Server, Storage, kubeconfig,
};
use polis_tls::{Authority, ServerTls};

/// Size and number of the files of the audit log.
const AUDIT_LOG: (u64, usize) = (32 << 20, 7);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut storage = Storage::Memory;
    let (mut keys, mut audit_log) = (None, None);
    let mut port = 0;
    let mut config = PathBuf::from("target/polis.kubeconfig");
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--store" => storage = Storage::Redb(value.into()),
            "--encryption-key-file" => keys = Some(EncryptionKeys::load_or_create(value.as_ref())?),
            "--audit-log-path" => audit_log = Some(PathBuf::from(value)),
            "--port" => port = value.parse()?,
            "--kubeconfig" => config = value.into(),
            other => {
                return Err(format!("unknown flag {other}; see the head of {}", file!()).into());
            }
        }
    }
    let authority = Arc::new(Authority::new()?);
    let mut access = Access::default().authority(authority.pem());
    if let Some(path) = audit_log {
        let policy = AuditPolicy::standard(AuditLevel::Metadata, CONTROLLERS);
        let (max_bytes, max_backups) = AUDIT_LOG;
        access = access.audit(Audit::to_file(policy, AuditFile { path, max_bytes, max_backups })?);
    }
    let mut builder = Server::builder().storage(storage).access(access);
    if let Some(keys) = keys {
        builder = builder.encryption(keys);
    }
    let server = builder.build().await?;
    for spec in [PlaneSpec::standalone("hub"), PlaneSpec::project("demo", "projects")] {
        if !server.has_plane(&spec.name) {
            server.create_plane(spec).await?;
        }
    }
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let url = format!("https://{}", listener.local_addr()?);
    let tls = ServerTls::renewing(authority.clone(), ["127.0.0.1", "localhost"].map(str::to_owned))?;
    std::fs::write(
        &config,
        kubeconfig(&url, "", authority.pem(), &authority.client("admin", &["system:masters"])?),
    )?;
    println!("serving on {url}; kubectl --kubeconfig {} get namespaces", config.display());
    tokio::select! {
        () = server.serve(listener, tls) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
