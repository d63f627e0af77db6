//! Client session of the user's commands: kubeconfig, context and project, and the requests that commands
//! make.
//!
//! Commands use only the public Kubernetes API, so they work with `polis up`, with Milo, and with any API
//! server that serves the kinds.

mod downstream;
mod kubeconfig;
mod planes;
mod workloads;

pub use downstream::DownstreamSnapshot;
pub use kubeconfig::find;
pub use planes::{Session, optional};

use std::path::PathBuf;

use clap::Args;

/// Reason in the Status of the `log` subresource when the instance exists but none of its containers has
/// started.
pub const NOT_STARTED: &str = "NotStarted";
/// Reason in the Status of the `log` subresource when a request asks for the previous run of a container and
/// no run of it has ended.
pub const NO_PREVIOUS_RUN: &str = "NoPreviousRun";

/// Flags that select the server, project and namespace of a command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionFlags {
    /// Project to use [default: the project of the context]
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Namespace in the project [default: the namespace of the context, or `default`]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Context in the kubeconfig [default: the current-context]
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Path of the kubeconfig [default: $KUBECONFIG, the file of `polis up`, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}
