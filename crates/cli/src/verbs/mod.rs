//! The user's commands, one file each. A command reads objects, `view` decides and renders, the command
//! writes.

mod cities;
mod complete;
mod completion;
mod credentials;
mod data;
mod deploy;
mod destroy;
mod doctor;
mod instances;
mod logs;
mod projects;
mod quota;
mod restart;
mod rollout;
mod scale;
mod status;
mod version;
mod why;
mod workloads;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::exit::{CliError, Exit};
use crate::output::OutputFlag;
use crate::session::ConnectionFlags;
use crate::terminal;

/// Flags of every command that prints objects.
#[derive(Args)]
pub struct ListFlags {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// The user's commands.
#[derive(Subcommand)]
pub enum Verb {
    Deploy(deploy::Flags),
    Workloads(workloads::Flags),
    Status(status::Flags),
    Instances(instances::Flags),
    Logs(logs::Flags),
    Scale(scale::Flags),
    Restart(restart::Flags),
    Rollout(rollout::Flags),
    Destroy(destroy::Flags),
    Why(why::Flags),
    Cities(cities::Flags),
    Secrets(data::SecretFlags),
    Config(data::ConfigFlags),
    Quota(quota::Flags),
    Projects(projects::Flags),
    Credentials(credentials::Flags),
    Doctor(doctor::Flags),
    Version(version::Flags),
    Completion(completion::Flags),
    Complete(complete::Flags),
}

/// Runs a command and prints its error.
pub fn run(verb: Verb) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::print_error(&CliError::new(Exit::Failed, "failed to start", error.to_string(), ""));
            return Exit::Failed.into();
        }
    };
    match runtime.block_on(Box::pin(perform(verb))) {
        Ok(exit) => exit.into(),
        Err(error) => {
            terminal::print_error(&error);
            error.exit.into()
        }
    }
}

async fn perform(verb: Verb) -> Result<Exit, CliError> {
    match verb {
        Verb::Deploy(flags) => deploy::run(flags).await,
        Verb::Workloads(flags) => workloads::run(flags).await,
        Verb::Status(flags) => status::run(flags).await,
        Verb::Instances(flags) => instances::run(flags).await,
        Verb::Logs(flags) => logs::run(flags).await,
        Verb::Scale(flags) => scale::run(flags).await,
        Verb::Restart(flags) => restart::run(flags).await,
        Verb::Rollout(flags) => rollout::run(flags).await,
        Verb::Destroy(flags) => destroy::run(flags).await,
        Verb::Why(flags) => why::run(flags).await,
        Verb::Cities(flags) => cities::run(flags).await,
        Verb::Secrets(flags) => data::run_secrets(flags).await,
        Verb::Config(flags) => data::run_config(flags).await,
        Verb::Quota(flags) => quota::run(flags).await,
        Verb::Projects(flags) => projects::run(flags).await,
        Verb::Credentials(flags) => credentials::run(flags).await,
        Verb::Doctor(flags) => doctor::run(flags).await,
        Verb::Version(flags) => version::run(flags).await,
        Verb::Completion(flags) => completion::run(flags),
        Verb::Complete(flags) => complete::run(flags).await,
    }
}
