//! Flags of `polis manager`. Each has an environment variable, so that patches of a Deployment set only
//! values.

use std::{path::PathBuf, time::Duration};

use crate::view::age;

/// Scope of `--check-config`.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckConfig {
    /// Check flags, configuration and the files that they name
    Files,
    /// Check these and the planes
    Planes,
}

/// Run the controllers of a management plane, of a cell, or of both
///
/// At least one role must be enabled, and both roles need the kubeconfig of the hub. --check-config checks
/// the configuration without running: it prints every error with its cause and what to do. Exit code 0: no
/// errors; 2: errors in flags or files; 7: errors on planes.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(after_help = "Examples:
  polis manager --server-config manager.yaml --enable-management-controllers \\
    --federation-kubeconfig hub.kubeconfig
  polis manager --server-config cell.yaml --enable-cell-controllers \\
    --federation-kubeconfig hub.kubeconfig --check-config=planes")]
pub struct Flags {
    /// Check the configuration instead of running: `files` checks flags, configuration and the files that
    /// they name, without requests; `planes` also checks that each plane responds, serves the kinds and
    /// grants the permissions
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "files", require_equals = true,
          value_name = "WHAT")]
    pub check_config: Option<CheckConfig>,

    /// Configuration file (kind: WorkloadOperator) [default: the default of every field]
    #[arg(long, env = "SERVER_CONFIG", value_name = "FILE")]
    pub server_config: Option<PathBuf>,

    /// Kubeconfig of the federation hub
    #[arg(long, env = "FEDERATION_KUBECONFIG", alias = "upstream-kubeconfig", value_name = "FILE")]
    pub federation_kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig of the hub [default: the current-context]
    #[arg(long, env = "FEDERATION_CONTEXT", alias = "upstream-context", value_name = "NAME")]
    pub federation_context: Option<String>,

    /// Kubeconfig of the cluster that runs the Pods of a cell with `runtime: pods` [default: the cell itself]
    #[arg(long, env = "CLUSTER_KUBECONFIG", value_name = "FILE")]
    pub cluster_kubeconfig: Option<PathBuf>,

    /// Run the management role: the workload, federator and projector controllers
    #[arg(long, env = "ENABLE_MANAGEMENT_CONTROLLERS", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    pub enable_management_controllers: bool,

    /// Run the cell role: the deployment and instance controllers
    #[arg(long, env = "ENABLE_CELL_CONTROLLERS", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    pub enable_cell_controllers: bool,

    /// Run the controllers only while this replica holds the Lease; without it they always run
    #[arg(long, env = "LEADER_ELECT", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, require_equals = true, action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// Namespace of the leader election Lease
    #[arg(long, env = "LEADER_ELECT_NAMESPACE", default_value = "compute-system", value_name = "NAME")]
    pub leader_elect_namespace: String,

    /// Duration of the Lease in whole seconds; another replica takes over if it is not renewed for this time
    #[arg(long, env = "LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_name = "DURATION",
          value_parser = age::parse)]
    pub leader_elect_lease_duration: Duration,

    /// Listen address of /healthz, /readyz and /metrics
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081", value_name = "ADDRESS")]
    pub health_probe_bind_address: String,
}
