//! The way to the server: which kubeconfig, which context, which project, and the requests that verbs make.
//!
//! Verbs use the public Kubernetes API and nothing else, so they work on `polis up`, on Milo, and on any API server that
//! serves the kinds.

mod beyond;
mod kubeconfig;
mod planes;
mod workloads;

pub use kubeconfig::find;
pub use planes::{Reach, optional};

use std::path::PathBuf;

use clap::Args;

/// The reason of a server that has an instance and nothing of its output, because nothing of it has started yet.
pub const NOT_STARTED: &str = "NotStarted";

/// Flags that say where a verb goes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Where")]
pub struct Place {
    /// Project; that of the context when absent
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Namespace of the project; that of the context, or `default`, when absent
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig; its current one when absent
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Kubeconfig; else $KUBECONFIG, that of `polis up`, ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}
