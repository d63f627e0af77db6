//! Exit codes and error messages of the user's commands.
//!
//! An error message has three parts: what failed, why, and what to do. The exit codes are part of the
//! interface: `polis --help` and the reference list them, and a code never changes its meaning.

use std::fmt;
use std::process::ExitCode;

use polis_api::kube;

/// Every exit code with its meaning, for the help text.
pub const CODES: &[(Exit, &str)] = &[
    (Exit::Done, "success"),
    (Exit::Failed, "failed for a reason that has no code of its own"),
    (Exit::Usage, "invalid command line or file; nothing was sent to the server"),
    (Exit::NotFound, "the named object does not exist"),
    (Exit::Refused, "the server refused: forbidden, invalid, conflict or not supported"),
    (
        Exit::TimedOut,
        "the change was made, but is not complete: --timeout passed, or a cause needs an action",
    ),
    (Exit::Unreachable, "no usable kubeconfig, or no answer from the server"),
    (Exit::Unhealthy, "a problem was found (why, doctor, manager --check-config)"),
    (Exit::Declined, "the confirmation prompt was answered with no; nothing was changed"),
    (Exit::Interrupted, "interrupted while waiting; the change continues"),
];

/// Exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0
    Done = 0,
    /// 1
    Failed = 1,
    /// 2, which clap uses as well
    Usage = 2,
    /// 3
    NotFound = 3,
    /// 4
    Refused = 4,
    /// 5
    TimedOut = 5,
    /// 6
    Unreachable = 6,
    /// 7
    Unhealthy = 7,
    /// 8
    Declined = 8,
    /// 130, as of a shell whose command ends by SIGINT
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// The list of exit codes, as the help shows it.
pub fn exit_codes_help() -> String {
    let lines: Vec<String> =
        CODES.iter().map(|(exit, meaning)| format!("  {}  {meaning}", *exit as u8)).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// An error of a command, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// What failed, with the name of the object.
    pub what: String,
    /// Why it failed.
    pub why: String,
    /// What to do; may be empty.
    pub next: String,
}

impl CliError {
    /// Builds an error.
    pub fn new(exit: Exit, what: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Self {
        CliError { exit, what: what.into(), why: why.into(), next: next.into() }
    }

    /// An invalid command line or file.
    pub fn usage(what: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what, why, next)
    }

    /// A failed request. `what` is such as "failed to read workload web".
    pub fn request(what: impl Into<String>, error: &kube::Error) -> Self {
        let what = what.into();
        match error {
            kube::Error::Api(status) => Self::from_status(what, status.code, &status.reason, &status.message),
            other => Self::new(
                Exit::Unreachable,
                what,
                root_cause(other),
                "check that the server is running; `polis doctor` checks the connection",
            ),
        }
    }

    fn from_status(what: String, code: u16, reason: &str, message: &str) -> Self {
        let message = if message.is_empty() { reason } else { strip_webhook_name(message) };
        let (exit, next) = match code {
            401 => {
                (Exit::Refused, "the server does not accept the credentials: check the user of the context")
            }
            403 => (
                Exit::Refused,
                "you have no permission: use another --project or --context, or ask its owner",
            ),
            404 => (
                Exit::NotFound,
                "check the name, --namespace and --project; `polis workloads` lists the workloads",
            ),
            409 => (Exit::Refused, "another client changed the object: check it and repeat the command"),
            400 | 422 => (Exit::Refused, "correct the field that the message names and repeat the command"),
            405 | 501 => (Exit::Refused, "the server does not support this request"),
            429 | 503 => (Exit::Failed, "the server is busy: repeat the command later"),
            _ => (Exit::Failed, "see the log of the server"),
        };
        Self::new(exit, what, message, next)
    }
}

/// The message of a denied request without the name of the webhook, which means nothing to users.
fn strip_webhook_name(message: &str) -> &str {
    let words = message.strip_prefix("admission webhook ");
    words.and_then(|words| words.split_once(" denied the request: ")).map_or(message, |(_, denial)| denial)
}

/// The message of the innermost error. The outer ones only say that an inner one occurred.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "\n  → {}", self.next) }
    }
}

impl std::error::Error for CliError {}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::kube::core::Status;

    fn answer(code: u16) -> CliError {
        let mut status = Status::failure("the words of the server", "Reason");
        status.code = code;
        CliError::request("failed to read workload web", &kube::Error::Api(status.boxed()))
    }

    #[test]
    fn the_http_status_selects_the_exit_code() {
        let table =
            [(401, 4), (403, 4), (404, 3), (409, 4), (422, 4), (405, 4), (429, 1), (500, 1), (503, 1)];
        for (http, exit) in table {
            assert_eq!(answer(http).exit as u8, exit, "{http}");
        }
    }

    #[test]
    fn an_error_says_what_failed_why_and_what_to_do() {
        assert_eq!(
            answer(409).to_string(),
            "failed to read workload web: the words of the server\n  → another client changed the object: check it and repeat the command"
        );
    }

    #[test]
    fn the_message_of_a_denied_request_does_not_name_the_webhook() {
        let denied = r#"admission webhook "vworkload.kb.io" denied the request: Workload "web" is invalid: no such city"#;
        assert_eq!(strip_webhook_name(denied), r#"Workload "web" is invalid: no such city"#);
        assert_eq!(strip_webhook_name("admission webhook is away"), "admission webhook is away");
    }

    #[test]
    fn every_code_is_listed_once() {
        let numbers: Vec<u8> = CODES.iter().map(|(exit, _)| *exit as u8).collect();
        assert_eq!(numbers, (0..=8).chain([130]).collect::<Vec<u8>>());
    }
}
