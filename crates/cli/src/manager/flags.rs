//! Flags of `polis manager`. Each can also be given by an environment variable, so that a deployment is patched by
//! values alone.

use std::{path::PathBuf, time::Duration};

use crate::view::age;

/// How far `--check-config` goes.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckConfig {
    /// Flags, configuration and the files that they name.
    Files,
    /// These, and the planes.
    Planes,
}

/// Run the controllers of a management plane, of a cell, or of both.
///
/// Nothing runs unless a role is switched on. The process ends with an error when a role lacks what it needs: the
/// hub for both roles, a configuration file for all but the defaults.
///
/// Example: polis manager --server-config manager.yaml --enable-management-controllers
///   --federation-kubeconfig hub.kubeconfig
///
/// What can be wrong is found out beforehand with --check-config: every fault with where it is, why, and what to do. It
/// ends with code 2 when flags or files are wrong, with 7 when a plane is, with 0 when nothing is.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Flags {
    /// Check instead of running: `files` reads flags, configuration and what they name, and sends nothing; `planes`
    /// also asks each plane whether it answers, serves the kinds and grants the rights.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "files", require_equals = true,
          value_name = "WHAT")]
    pub check_config: Option<CheckConfig>,

    /// Configuration file (`kind: WorkloadOperator`); without it the defaults hold.
    #[arg(long, env = "SERVER_CONFIG", value_name = "FILE")]
    pub server_config: Option<PathBuf>,

    /// Kubeconfig of the federation hub.
    #[arg(long, env = "FEDERATION_KUBECONFIG", alias = "upstream-kubeconfig", value_name = "FILE")]
    pub federation_kubeconfig: Option<PathBuf>,

    /// Context in the hub's kubeconfig; its current one when absent.
    #[arg(long, env = "FEDERATION_CONTEXT", alias = "upstream-context", value_name = "NAME")]
    pub federation_context: Option<String>,

    /// Run the management role: workload, federator, projector.
    #[arg(long, env = "ENABLE_MANAGEMENT_CONTROLLERS", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    pub enable_management_controllers: bool,

    /// Run the cell role: deployment, instance.
    #[arg(long, env = "ENABLE_CELL_CONTROLLERS", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    pub enable_cell_controllers: bool,

    /// Elect a leader among the replicas by a Lease; without it this process always acts.
    #[arg(long, env = "LEADER_ELECT", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// Namespace of the Lease.
    #[arg(long, env = "LEADER_ELECT_NAMESPACE", default_value = "compute-system", value_name = "NAME")]
    pub leader_elect_namespace: String,

    /// How long the Lease holds without being renewed: another replica takes over after it. Whole seconds.
    #[arg(long, env = "LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_name = "DURATION",
          value_parser = age::parse)]
    pub leader_elect_lease_duration: Duration,

    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081", value_name = "ADDRESS")]
    pub health_probe_bind_address: String,
}
