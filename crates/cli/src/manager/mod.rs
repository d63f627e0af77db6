//! `polis manager`: runs the controllers of the management role, the cell role, or both.
//!
//! It reads its configuration, connects to the planes of its roles, declares the controllers on an engine,
//! and runs until SIGINT or SIGTERM. A missing requirement of a role is an error before the start; no part is
//! disabled silently.

pub(crate) mod address;
mod certificates;
mod check;
mod config;
mod flags;
mod metrics_server;
mod planes;
mod webhooks;

pub use flags::{CheckConfig, Flags};

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polis_engine::{CertificateSecret, Clock, Engine, LeaderElection, Metrics, Random};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use config::Config;
use metrics_server::SecureMetricsServer;
use webhooks::Webhooks;

/// Name of the Lease that the replicas use for leader election.
const LEASE: &str = "e98b06c6.datumapis.com";

/// Longest time until the metrics show a renewed certificate.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Runs until SIGINT or SIGTERM.
pub fn run(flags: Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = check::check_before_start(&flags).await?;
        serve(flags, config).await
    })
}

/// All errors in flags and configuration, as one error.
#[cfg(test)]
fn check(flags: &Flags, config: &Config) -> Result<()> {
    let errors = check::check_flags_and_config(flags, config);
    if errors.is_empty() {
        return Ok(());
    }
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    bail!("{}", messages.join("\n"))
}

/// Runs `--check-config`: prints the errors instead of running the controllers.
pub fn check_config(flags: &Flags, depth: CheckConfig) -> Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(check::run(flags, depth)))
}

async fn serve(flags: Flags, config: Config) -> Result<()> {
    let planes = planes::Planes::connect(&flags, &config).await?;
    let clock = Clock::system();
    let mut engine = Engine::new();
    engine.admin(address::parse(&flags.health_probe_bind_address)?);
    let mut metrics_server = None;
    if config.metrics_server.is_enabled() {
        let address = address::parse(&config.metrics_server.bind_address)?;
        match config.metrics_server.secure_serving {
            true => {
                metrics_server =
                    Some(metrics_server::open(address, &config.metrics_server, &mut engine, &planes).await?)
            }
            false => _ = engine.metrics(address),
        }
    }
    if flags.leader_elect {
        let election =
            LeaderElection::new(planes.own.clone(), &flags.leader_elect_namespace, LEASE, candidate());
        engine.leader_election(election.lease(flags.leader_elect_lease_duration));
    }
    let projects = flags.enable_management_controllers.then(|| {
        let (projects, hub) = (planes.projects(), planes.hub.clone());
        polis_management::declare(&mut engine, clock.clone(), projects, planes.tenancy_mode(), hub)
    });
    let webhooks = match &config.webhook_server {
        Some(server) => Some(webhooks::open(server, &mut engine, &planes, projects).await?),
        None => None,
    };
    if flags.enable_cell_controllers {
        polis_cell::declare(&mut engine, clock.clone(), planes.cell(&config))?;
        if let Some(pods) = planes.pods(&config) {
            polis_runtime::declare_pods(&mut engine, clock, pods);
        }
    }
    tokio::spawn(check::check_after_start(flags.clone(), config.clone()));
    let secrets = [
        ("webhooks", webhooks.as_ref().and_then(Webhooks::secret)),
        ("metrics", metrics_server.as_ref().and_then(SecureMetricsServer::secret)),
    ];
    let secrets = secrets.into_iter().filter_map(|(of, secret)| Some((of, secret?))).collect();
    tokio::spawn(expiry(engine.handle().registry(), flags, config, secrets));
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown_signal = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::select! {
        ended = engine.run(shutdown_signal) => ended.context("the manager stopped"),
        () = webhooks::serve(webhooks) => bail!("the webhook server stopped"),
        () = metrics_server::serve(metrics_server) => bail!("the metrics server stopped"),
    }
}

/// Updates the metrics of certificate expiry. Files and Secrets are renewed while the process runs.
async fn expiry(
    metrics: Arc<Metrics>,
    flags: Flags,
    config: Config,
    secrets: Vec<(&'static str, CertificateSecret)>,
) {
    loop {
        for (certificate, end) in check::certificates(&flags, &config) {
            metrics.set_certificate_expiry(certificate, end.as_second());
        }
        // The watch of a Secret delivers it shortly after the start.
        let mut awaited = false;
        for (of, secret) in &secrets {
            let seen = secret.certificate();
            awaited |= seen.is_none();
            if let Some(end) = seen.as_deref().and_then(check::certificate_ends) {
                metrics.set_certificate_expiry(of, end.as_second());
            }
        }
        let interval = if awaited { Duration::from_secs(1) } else { CERTIFICATE_POLL_INTERVAL };
        tokio::time::sleep(interval).await;
    }
}

/// Identity of this process in the leader election, unique for every start. Host name and process id are not
/// enough: a restarted container has the same ones, and would take the Lease of its predecessor for its own.
pub(crate) fn candidate() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "polis".into(), |name| name.trim().to_owned());
    format!("{host}_{}_{:016x}", std::process::id(), Random::from_entropy().next())
}

#[cfg(test)]
mod tests {
    use super::config::Mode;
    use super::*;

    fn mk_flags() -> Flags {
        Flags {
            federation_kubeconfig: Some("hub".into()),
            enable_cell_controllers: true,
            health_probe_bind_address: ":8081".into(),
            ..Flags::default()
        }
    }

    #[test]
    fn every_candidate_is_unique_and_contains_the_process_id() {
        let (one, other) = (candidate(), candidate());
        assert_ne!(one, other);
        let process = std::process::id().to_string();
        assert!(one.split('_').any(|part| part == process), "{one} has no process id");
    }

    #[test]
    fn a_role_and_the_hub_are_enough() {
        assert!(check(&mk_flags(), &Config::default()).is_ok());
    }

    #[test]
    fn both_roles_together_need_mode_milo() {
        let flags = Flags { enable_management_controllers: true, ..mk_flags() };
        let mut config = Config::default();
        let refusal = check(&flags, &config).unwrap_err().to_string();
        assert!(refusal.contains("discovery.mode: milo"), "{refusal}");
        config.discovery.mode = Mode::Milo;
        assert!(check(&flags, &config).is_ok());
    }

    #[test]
    fn a_manager_without_a_role_is_an_error() {
        let flags = Flags { enable_cell_controllers: false, ..mk_flags() };
        assert!(
            check(&flags, &Config::default())
                .unwrap_err()
                .to_string()
                .contains("--enable-management-controllers")
        );
    }

    #[test]
    fn management_without_the_hub_is_an_error() {
        let flags = Flags { enable_management_controllers: true, federation_kubeconfig: None, ..mk_flags() };
        assert!(
            check(&flags, &Config::default()).unwrap_err().to_string().contains("--federation-kubeconfig")
        );
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let flags =
            Flags { federation_kubeconfig: None, health_probe_bind_address: "8081".into(), ..mk_flags() };
        let mut config = Config::default();
        config.discovery.quota_kubeconfig_path = Some("quota".into());
        config.discovery.internal_service_discovery = true;
        config.metrics_server.bind_address = "8443".into();
        config.metrics_server.tls.secret_ref = Some(config::SecretRef::default());
        let refusal = check(&flags, &config).unwrap_err().to_string();
        for named in [
            "--federation-kubeconfig",
            "--health-probe-bind-address",
            "discovery.clusterName",
            "discovery.internalServiceDiscovery",
            "metricsServer.bindAddress",
            "metricsServer.tls.secretRef",
        ] {
            assert!(refusal.contains(named), "{named} is not in {refusal}");
        }
        assert_eq!(refusal.matches("→").count(), 6, "each error has what to do: {refusal}");
    }

    #[test]
    fn the_metrics_server_is_disabled_by_default_and_works_with_and_without_tls() {
        let mut config = Config::default();
        assert!(!config.metrics_server.is_enabled());
        config.metrics_server.bind_address = ":8080".into();
        for secure in [true, false] {
            config.metrics_server.secure_serving = secure;
            assert!(check(&mk_flags(), &config).is_ok());
        }
    }
}
