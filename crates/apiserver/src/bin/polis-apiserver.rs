//! Runs a standalone API server, to try it with kubectl.
//!
//! ```text
//! cargo run -p polis-apiserver -- [--store FILE] [--port PORT] [--kubeconfig FILE]
//! kubectl --kubeconfig target/polis.kubeconfig get namespaces
//! ```
//!
//! Without `--store` objects are in memory. The kubeconfig is for the root plane, and valid for a day; the
//! server also serves `/planes/hub` and `/projects/demo/control-plane`.

use std::{error::Error, path::PathBuf, sync::Arc};

use polis_apiserver::{Access, Authority, PlaneSpec, Server, ServerTls, Storage, kubeconfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut storage = Storage::Memory;
    let mut port = 0;
    let mut config = PathBuf::from("target/polis.kubeconfig");
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--store" => storage = Storage::Redb(value.into()),
            "--port" => port = value.parse()?,
            "--kubeconfig" => config = value.into(),
            other => {
                return Err(format!("unknown flag {other}; use --store, --port or --kubeconfig").into());
            }
        }
    }
    let authority = Arc::new(Authority::new()?);
    let server = Server::builder()
        .storage(storage)
        .access(Access::default().authority(authority.pem()))
        .build()
        .await?;
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
