//! `polis federation`: runs the embedded federation in its own process, on the hub of a kubeconfig.
//!
//! The hub is any Kubernetes API server that serves Karmada's kinds and runs the garbage collector. Members
//! join as in Karmada, with a Cluster and its Secret. A kind that the hub does not serve is an error before
//! the start.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polis_engine::{Clock, Engine, LeaderElection, Plane};
use polis_federation::FederationConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::manager::{address, candidate};
use crate::view::age;

/// Name of the Lease that the replicas use for leader election.
const LEASE: &str = "polis-federation";

/// Run the embedded federation on a hub without Karmada
///
/// It implements the part of Karmada's API that Polis uses. The hub is a Kubernetes API server with Karmada's
/// CustomResourceDefinitions (including one for Cluster), the garbage collector and the namespace controller.
/// A member joins with a Cluster that has an apiEndpoint and a Secret with token and caBundle. Do not run it
/// on the hub of a real Karmada: both would reconcile the same objects.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "Examples:
  polis federation --kubeconfig hub.kubeconfig
  polis federation --kubeconfig hub.kubeconfig --leader-elect")]
pub struct Flags {
    /// Kubeconfig of the hub
    #[arg(long, env = "FEDERATION_KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,

    /// Context in the kubeconfig [default: the current-context]
    #[arg(long, env = "FEDERATION_CONTEXT", value_name = "NAME")]
    context: Option<String>,

    /// Interval of the health probe of each member
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = age::parse)]
    probe_every: Duration,

    /// How long probes of a member must fail until its Cluster is not Ready. Workloads are not moved to other
    /// members
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = age::parse)]
    failure_threshold: Duration,

    /// Run the controllers only while this replica holds the Lease on the hub; without it they always run
    #[arg(long, env = "LEADER_ELECT", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    leader_elect: bool,

    /// Namespace of the leader election Lease on the hub
    #[arg(long, env = "LEADER_ELECT_NAMESPACE", default_value = "karmada-system", value_name = "NAME")]
    leader_elect_namespace: String,

    /// Listen address of /healthz, /readyz and /metrics
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8082", value_name = "ADDRESS")]
    health_probe_bind_address: String,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(flags: Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: Flags) -> Result<()> {
    let hub = Plane::from_kubeconfig("hub", &flags.kubeconfig, flags.context.as_deref()).await?;
    let missing =
        polis_federation::missing(&hub).await.context("failed to discover the kinds that the hub serves")?;
    if !missing.is_empty() {
        bail!(
            "the hub does not serve {}: apply Karmada's CustomResourceDefinitions and one for Cluster",
            missing.join(", ")
        );
    }
    let mut engine = Engine::new();
    engine.admin(address::parse(&flags.health_probe_bind_address)?);
    if flags.leader_elect {
        let namespace = &flags.leader_elect_namespace;
        engine.leader_election(LeaderElection::new(hub.clone(), namespace, LEASE, candidate()));
    }
    let mut config = FederationConfig::new(hub);
    config.probe_every = flags.probe_every;
    config.failure_threshold = flags.failure_threshold;
    polis_federation::declare(&mut engine, Clock::system(), config);
    let stop = shutdown_signal()?;
    engine.run(stop.cancelled()).await.context("the federation stopped")
}

/// A token that SIGINT and SIGTERM cancel.
fn shutdown_signal() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        cancel.cancel();
    });
    Ok(stop)
}
