//! `polis manager --check-config`: reports all errors in the configuration of a manager at once.
//!
//! | module | content |
//! |---|---|
//! | `fields` | unknown fields of the configuration file |
//! | `files` | checks of flags, configuration and the files that they name, without requests |
//! | `credentials` | expiry of tokens and certificates |
//! | `permissions` | permissions of each role on each plane, from the RBAC files in `deploy/` |
//! | `kinds` | checks of the kinds that a plane serves |
//! | `planes` | checks of the planes, for `--check-config=planes` |
//!
//! An error has what is wrong, why, and what to do. A check that cannot be made is a note and not an error.
//!
//! A start runs the same checks. Errors in flags and files prevent it. Expired credentials, which may be
//! renewed at any time, and errors on planes are only logged.

mod credentials;
mod fields;
mod files;
mod kinds;
mod permissions;
mod planes;

use crate::exit::{CliError, Exit};
use crate::terminal;

use super::config::Config;
use super::flags::{CheckConfig, Flags};

pub(super) use credentials::certificate_ends;
pub(super) use files::certificates;
#[cfg(test)]
pub(super) use files::check_flags_and_config;

/// The results of the checks.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Passed checks, one line each.
    pub(super) ok: Vec<String>,
    /// Checks that could not be made.
    pub(super) notes: Vec<String>,
    /// Errors.
    pub(super) errors: Vec<CliError>,
    /// Expired credentials, which may be renewed at any time.
    pub(super) expired: Vec<CliError>,
}

impl Findings {
    fn ok(&mut self, message: impl Into<String>) {
        self.ok.push(message.into());
    }

    /// Number of errors, including expired credentials.
    fn error_count(&self) -> usize {
        self.errors.len() + self.expired.len()
    }

    fn note(&mut self, message: impl Into<String>) {
        self.notes.push(message.into());
    }

    fn error(&mut self, what: impl Into<String>, why: impl Into<String>, next: impl Into<String>) {
        self.errors.push(CliError::usage(what, why, next));
    }
}

/// Runs the checks, prints the results, and returns the exit code.
pub(super) async fn run(flags: &Flags, depth: CheckConfig) -> Exit {
    let (config, mut findings) = files::examine(flags, jiff::Timestamp::now()).await;
    findings.errors.append(&mut findings.expired);
    if !findings.errors.is_empty() {
        return print_findings(&findings, Exit::Usage);
    }
    if depth == CheckConfig::Planes {
        planes::examine(flags, &config, &mut findings).await;
    }
    print_findings(&findings, Exit::Unhealthy)
}

/// Checks flags and files before a start. Returns the configuration, or all errors.
pub(super) async fn check_before_start(flags: &Flags) -> anyhow::Result<Config> {
    let (config, findings) = files::examine(flags, jiff::Timestamp::now()).await;
    for error in &findings.expired {
        tracing::error!("{error}");
    }
    if findings.errors.is_empty() {
        return Ok(config);
    }
    let messages: Vec<String> = findings.errors.iter().map(ToString::to_string).collect();
    anyhow::bail!("{}", messages.join("\n"))
}

/// Checks the planes once after a start and logs the errors. The manager runs meanwhile and retries.
pub(super) async fn check_after_start(flags: Flags, config: Config) {
    let mut findings = Findings::default();
    planes::examine(&flags, &config, &mut findings).await;
    for error in &findings.errors {
        tracing::error!("{error}");
    }
}

fn print_findings(findings: &Findings, bad: Exit) -> Exit {
    findings.ok.iter().for_each(|message| terminal::print(format!("ok     {message}")));
    findings.notes.iter().for_each(|message| terminal::print(format!("note   {message}")));
    findings.errors.iter().for_each(|error| terminal::print(format!("error  {error}")));
    match findings.errors.len() {
        0 => Exit::Done,
        1 => {
            terminal::print("1 error");
            bad
        }
        count => {
            terminal::print(format!("{count} errors"));
            bad
        }
    }
}

/// Reads the configuration file. Fields after an error have their defaults.
fn read(flags: &Flags, findings: &mut Findings) -> Config {
    let Some(path) = flags.server_config.as_deref() else {
        findings.note("--server-config is not set: all fields have their defaults");
        return Config::default();
    };
    let what = format!("configuration {}", path.display());
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            findings.error(what, error.to_string(), "set --server-config to an existing file");
            return Config::default();
        }
    };
    match Config::parse(&text) {
        Ok(config) => {
            findings.ok(what);
            config
        }
        Err(error) => {
            // The strict decoder stops at the first unknown field.
            let (config, unknown) = fields::unknown(&text);
            if unknown.is_empty() {
                findings.error(
                    what.clone(),
                    format!("{error:#}"),
                    "see the fields in docs/operations/install.md",
                );
            }
            for (field, next) in unknown {
                findings.error(format!("{what}, field {field}"), "unknown field", next);
            }
            config.unwrap_or_default()
        }
    }
}
