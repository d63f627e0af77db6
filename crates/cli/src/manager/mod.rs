//! `polis manager`: the process that runs controllers.
//!
//! It reads its configuration, reaches the planes that its roles need, declares the controllers on an engine and runs
//! until it is told to stop. What a role lacks is an error before anything runs: nothing is switched off silently.

pub(crate) mod address;
mod certificates;
mod check;
mod config;
mod flags;
mod planes;
mod scrapes;
mod webhooks;

pub use flags::{CheckConfig, Flags};

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polis_engine::{CertificateSecret, Clock, Election, Engine, Metrics, Random};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use config::Config;
use scrapes::Scrapes;
use webhooks::Webhooks;

/// Name of the Lease by which replicas of one role elect a leader.
const LEASE: &str = "e98b06c6.datumapis.com";

/// What a renewed certificate may take to show in the metrics.
const LOOK_AT_CERTIFICATES_AFTER: Duration = Duration::from_secs(60);

/// Runs until it is told to stop.
pub fn run(flags: Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = check::before_start(&flags).await?;
        serve(flags, config).await
    })
}

/// What can be known to be wrong before anything is reached, all of it.
#[cfg(test)]
fn check(flags: &Flags, config: &Config) -> Result<()> {
    let faults = check::at_once(flags, config);
    if faults.is_empty() {
        return Ok(());
    }
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    bail!("{}", said.join("\n"))
}

/// Says what is wrong instead of running: `--check-config`.
pub fn check_config(flags: &Flags, depth: CheckConfig) -> Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(check::run(flags, depth)))
}

async fn serve(flags: Flags, config: Config) -> Result<()> {
    let planes = planes::Planes::reach(&flags, &config).await?;
    let clock = Clock::system();
    let mut engine = Engine::new();
    engine.admin(address::parse(&flags.health_probe_bind_address)?);
    let mut scrapes = None;
    if config.metrics_server.is_on() {
        let address = address::parse(&config.metrics_server.bind_address)?;
        match config.metrics_server.secure_serving {
            true => {
                scrapes = Some(scrapes::open(address, &config.metrics_server, &mut engine, &planes).await?)
            }
            false => _ = engine.metrics(address),
        }
    }
    if flags.leader_elect {
        let election = Election::new(planes.own.clone(), &flags.leader_elect_namespace, LEASE, candidate());
        engine.lead(election.lease(flags.leader_elect_lease_duration));
    }
    let projects = flags.enable_management_controllers.then(|| {
        let (projects, hub) = (planes.projects(), planes.hub.clone());
        polis_management::declare(&mut engine, clock.clone(), projects, planes.ground(), hub)
    });
    let webhooks = match &config.webhook_server {
        Some(server) => Some(webhooks::open(server, &mut engine, &planes, projects).await?),
        None => None,
    };
    if flags.enable_cell_controllers {
        polis_cell::declare(&mut engine, clock, planes.cell(&config))?;
    }
    tokio::spawn(check::after_start(flags.clone(), config.clone()));
    let secrets = [
        ("webhooks", webhooks.as_ref().and_then(Webhooks::secret)),
        ("metrics", scrapes.as_ref().and_then(Scrapes::secret)),
    ];
    let secrets = secrets.into_iter().filter_map(|(of, secret)| Some((of, secret?))).collect();
    tokio::spawn(expiry(engine.handle().registry(), flags, config, secrets));
    let mut terminate = signal(SignalKind::terminate())?;
    let told_to_stop = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::select! {
        ended = engine.run(told_to_stop) => ended.context("the manager stopped"),
        () = webhooks::serve(webhooks) => bail!("the webhook server stopped"),
        () = scrapes::serve(scrapes) => bail!("the server of metrics stopped"),
    }
}

/// Keeps the metrics of when certificates end: files and Secrets are renewed under a process.
async fn expiry(
    metrics: Arc<Metrics>,
    flags: Flags,
    config: Config,
    secrets: Vec<(&'static str, CertificateSecret)>,
) {
    loop {
        for (certificate, end) in check::certificates(&flags, &config) {
            metrics.certificate_ends(certificate, end.as_second());
        }
        // A watch sees its Secret moments after the start.
        let mut awaited = false;
        for (of, secret) in &secrets {
            let seen = secret.certificate();
            awaited |= seen.is_none();
            if let Some(end) = seen.as_deref().and_then(check::certificate_ends) {
                metrics.certificate_ends(of, end.as_second());
            }
        }
        let rest = if awaited { Duration::from_secs(1) } else { LOOK_AT_CERTIFICATES_AFTER };
        tokio::time::sleep(rest).await;
    }
}

/// Who stands for election: another one at every start. Machine and process alone would not do: in a container that
/// restarts both are what they were, and the new process would take the lease of the dead one for its own.
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
    fn no_two_candidates_are_the_same_not_even_of_one_process() {
        let (one, other) = (candidate(), candidate());
        assert_ne!(one, other);
        let process = std::process::id().to_string();
        assert!(one.split('_').any(|part| part == process), "{one} tells whom to look for");
    }

    #[test]
    fn a_role_and_the_hub_are_enough() {
        assert!(check(&mk_flags(), &Config::default()).is_ok());
    }

    #[test]
    fn both_roles_need_projects_that_are_not_the_cell() {
        let flags = Flags { enable_management_controllers: true, ..mk_flags() };
        let mut config = Config::default();
        let refusal = check(&flags, &config).unwrap_err().to_string();
        assert!(refusal.contains("discovery.mode: milo"), "{refusal}");
        config.discovery.mode = Mode::Milo;
        assert!(check(&flags, &config).is_ok());
    }

    #[test]
    fn a_manager_without_a_role_does_not_start() {
        let flags = Flags { enable_cell_controllers: false, ..mk_flags() };
        assert!(
            check(&flags, &Config::default())
                .unwrap_err()
                .to_string()
                .contains("--enable-management-controllers")
        );
    }

    #[test]
    fn management_without_the_hub_does_not_start() {
        let flags = Flags { enable_management_controllers: true, federation_kubeconfig: None, ..mk_flags() };
        assert!(
            check(&flags, &Config::default()).unwrap_err().to_string().contains("--federation-kubeconfig")
        );
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
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
        assert_eq!(refusal.matches("→").count(), 6, "each with what to do: {refusal}");
    }

    #[test]
    fn metrics_of_their_own_are_taken_with_tls_and_without_and_the_default_is_none() {
        let mut config = Config::default();
        assert!(!config.metrics_server.is_on());
        config.metrics_server.bind_address = ":8080".into();
        for secure in [true, false] {
            config.metrics_server.secure_serving = secure;
            assert!(check(&mk_flags(), &config).is_ok());
        }
    }
}
