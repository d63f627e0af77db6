//! `polis federation`: the embedded federation as a process of its own, over a hub that is given by its kubeconfig.
//!
//! The hub is any Kubernetes API server that serves Karmada's kinds and collects garbage; members are joined as Karmada
//! joins them, by a Cluster and its Secret. What the hub lacks is an error before anything runs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polis_engine::{Clock, Election, Engine, Plane, Random};
use polis_federation::Federation;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::manager::{address, candidate};
use crate::view::age;

/// Name of the Lease by which replicas elect a leader.
const LEASE: &str = "polis-federation";

/// Run a federation that honours Karmada's API, over a hub without Karmada.
///
/// The hub is a Kubernetes API server with Karmada's CustomResourceDefinitions (and Cluster as one of them), the
/// garbage collector and the namespace controller. Members are joined by a Cluster with an endpoint and a Secret that
/// holds token and caBundle. Never beside a real Karmada on the same hub: two would do the same work against each other.
///
/// Example: polis federation --kubeconfig hub.kubeconfig
#[derive(clap::Args, Debug, Clone)]
pub struct Flags {
    /// Kubeconfig of the hub.
    #[arg(long, env = "FEDERATION_KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,

    /// Context in the kubeconfig; its current one when absent.
    #[arg(long, env = "FEDERATION_CONTEXT", value_name = "NAME")]
    context: Option<String>,

    /// How often each member is asked whether it is well.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = age::parse)]
    probe_every: Duration,

    /// How long a member must fail before it counts as not ready. Nothing is moved away from it then.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = age::parse)]
    failure_threshold: Duration,

    /// Elect a leader among the replicas by a Lease on the hub; without it this process always acts.
    #[arg(long, env = "LEADER_ELECT", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    leader_elect: bool,

    /// Namespace of the Lease on the hub.
    #[arg(long, env = "LEADER_ELECT_NAMESPACE", default_value = "karmada-system", value_name = "NAME")]
    leader_elect_namespace: String,

    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8082", value_name = "ADDRESS")]
    health_probe_bind_address: String,
}

/// Runs until it is told to stop.
pub fn run(flags: Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: Flags) -> Result<()> {
    let hub = Plane::from_kubeconfig("hub", &flags.kubeconfig, flags.context.as_deref()).await?;
    let mut probes = Engine::new();
    probes.admin(address::parse(&flags.health_probe_bind_address)?);
    let missing = flags.mk_federation(&hub).missing().await.context("the hub does not say what it serves")?;
    if !missing.is_empty() {
        bail!(
            "the hub does not serve {}: apply Karmada's CustomResourceDefinitions, and one for Cluster",
            missing.join(", ")
        );
    }
    let stop = told_to_stop()?;
    tokio::try_join!(
        async { probes.run(stop.cancelled()).await.context("the federation stopped") },
        async { act(&flags, &hub, &stop).await },
    )?;
    Ok(())
}

/// Runs the federation: always, or while this process leads.
async fn act(flags: &Flags, hub: &Plane, stop: &CancellationToken) -> Result<()> {
    if !flags.leader_elect {
        flags.mk_federation(hub).run(stop.cancelled()).await;
        return Ok(());
    }
    let election = Election::new(hub.clone(), &flags.leader_elect_namespace, LEASE, candidate());
    let (elector, mut leadership) = election.stand(Clock::system(), &Random::from_entropy());
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = leadership.gained() => {}
        }
        let mut term = leadership.clone();
        let over = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = term.lost() => {}
            }
        };
        flags.mk_federation(hub).run(over).await;
    }
    elector.resign().await;
    Ok(())
}

impl Flags {
    fn mk_federation(&self, hub: &Plane) -> Federation {
        Federation::builder(hub.kube_client())
            .probe_every(self.probe_every)
            .failure_threshold(self.failure_threshold)
            .build()
    }
}

/// Cancelled when a person or the system asks the process to end.
fn told_to_stop() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}
