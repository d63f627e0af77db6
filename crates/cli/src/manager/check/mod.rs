//! `polis manager --check-config`: what is wrong with a manager before it runs, every fault at once.
//!
//! | module | holds |
//! |---|---|
//! | `fields` | fields of the configuration file that nobody knows |
//! | `files` | flags, configuration and the files that they name; nothing is sent |
//! | `credentials` | when a token or a certificate ends |
//! | `rights` | what each role does on each plane, as the files of `deploy/` grant it |
//! | `kinds` | whether a plane serves what a role needs, as new as this program knows it |
//! | `planes` | asking the planes, where `--check-config=planes` says so |
//!
//! A fault is what is wrong, why, and what to do. What cannot be found out is a note, and no fault.
//!
//! A start goes through the same: what is wrong with flags and files keeps it from starting, except credentials that have
//! ended, which somebody may renew; those, and what the planes lack, it says in its log and goes on.

mod credentials;
mod fields;
mod files;
mod kinds;
mod planes;
mod rights;

use crate::exit::{Exit, Fault};
use crate::terminal;

use super::config::Config;
use super::flags::{CheckConfig, Flags};

pub(super) use credentials::certificate_ends;
#[cfg(test)]
pub(super) use files::at_once;
pub(super) use files::certificates;

/// What was found out.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What is right, one line each.
    pub(super) good: Vec<String>,
    /// What could not be found out.
    pub(super) notes: Vec<String>,
    /// What is wrong.
    pub(super) faults: Vec<Fault>,
    /// What has ended, and may be renewed at any time.
    pub(super) ended: Vec<Fault>,
}

impl Findings {
    fn good(&mut self, says: impl Into<String>) {
        self.good.push(says.into());
    }

    /// How much is wrong, ended or not.
    fn wrong(&self) -> usize {
        self.faults.len() + self.ended.len()
    }

    fn note(&mut self, says: impl Into<String>) {
        self.notes.push(says.into());
    }

    fn fault(&mut self, what: impl Into<String>, why: impl Into<String>, next: impl Into<String>) {
        self.faults.push(Fault::usage(what, why, next));
    }
}

/// Checks, says what it found, and ends as it should.
pub(super) async fn run(flags: &Flags, depth: CheckConfig) -> Exit {
    let (config, mut findings) = files::examine(flags, jiff::Timestamp::now()).await;
    findings.faults.append(&mut findings.ended);
    if !findings.faults.is_empty() {
        return tell(&findings, Exit::Usage);
    }
    if depth == CheckConfig::Planes {
        planes::examine(flags, &config, &mut findings).await;
    }
    tell(&findings, Exit::Unwell)
}

/// What a start refuses, all of it; the configuration where there is nothing to refuse.
pub(super) async fn before_start(flags: &Flags) -> anyhow::Result<Config> {
    let (config, findings) = files::examine(flags, jiff::Timestamp::now()).await;
    for fault in &findings.ended {
        tracing::error!("{fault}");
    }
    if findings.faults.is_empty() {
        return Ok(config);
    }
    let said: Vec<String> = findings.faults.iter().map(ToString::to_string).collect();
    anyhow::bail!("{}", said.join("\n"))
}

/// Says what the planes lack, once. The manager goes on meanwhile: it waits for what is not there.
pub(super) async fn after_start(flags: Flags, config: Config) {
    let mut findings = Findings::default();
    planes::examine(&flags, &config, &mut findings).await;
    for fault in &findings.faults {
        tracing::error!("{fault}");
    }
}

fn tell(findings: &Findings, bad: Exit) -> Exit {
    findings.good.iter().for_each(|says| terminal::say(format!("ok     {says}")));
    findings.notes.iter().for_each(|says| terminal::say(format!("note   {says}")));
    findings.faults.iter().for_each(|fault| terminal::say(format!("wrong  {fault}")));
    match findings.faults.len() {
        0 => Exit::Done,
        1 => {
            terminal::say("1 fault");
            bad
        }
        count => {
            terminal::say(format!("{count} faults"));
            bad
        }
    }
}

/// The configuration as far as it can be read, and what is wrong with the file.
fn read(flags: &Flags, findings: &mut Findings) -> Config {
    let Some(path) = flags.server_config.as_deref() else {
        findings.note("no configuration file is given (--server-config): the defaults hold");
        return Config::default();
    };
    let what = format!("configuration {}", path.display());
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            findings.fault(what, error.to_string(), "name a file that is there with --server-config");
            return Config::default();
        }
    };
    match Config::parse(&text) {
        Ok(config) => {
            findings.good(what);
            config
        }
        Err(error) => {
            // The strict reader stops at the first fault: look for all of them.
            let (config, unknown) = fields::unknown(&text);
            if unknown.is_empty() {
                findings.fault(
                    what.clone(),
                    format!("{error:#}"),
                    "docs/operations/install.md lists the fields",
                );
            }
            for (field, next) in unknown {
                findings.fault(format!("{what}, field {field}"), "there is no such field", next);
            }
            config.unwrap_or_default()
        }
    }
}
