//! How a verb ends: the exit code for scripts, and the fault for people.
//!
//! A fault is three things: what failed, why, and what to do. The codes are part of the interface: they are listed in
//! `polis --help` and in the reference, and a code never changes its meaning.

use std::fmt;
use std::process::ExitCode;

use polis_api::kube;

/// Every exit code, with its meaning for the help text.
pub const CODES: &[(Exit, &str)] = &[
    (Exit::Done, "done"),
    (Exit::Failed, "failed, for a reason that no other code names"),
    (Exit::Usage, "the command line or a file is wrong; nothing was sent"),
    (Exit::NotFound, "what was named does not exist"),
    (Exit::Refused, "the server refused: no permission, not valid, a conflict, or not offered"),
    (Exit::TimedOut, "the change was made, and what was waited for did not come in time"),
    (Exit::Unreachable, "no usable kubeconfig, or the server does not answer"),
    (Exit::Unwell, "the answer to the question is that something is wrong (why, doctor)"),
    (Exit::Declined, "a person answered no; nothing was changed"),
];

/// How a verb ended.
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
    Unwell = 7,
    /// 8
    Declined = 8,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// The list of exit codes, as the help shows it.
pub fn codes_in_words() -> String {
    let lines: Vec<String> =
        CODES.iter().map(|(exit, meaning)| format!("  {}  {meaning}", *exit as u8)).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// What went wrong, for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The exit code.
    pub exit: Exit,
    /// What failed.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do next.
    pub next: String,
}

impl Fault {
    /// A fault.
    pub fn new(exit: Exit, what: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Self {
        Fault { exit, what: what.into(), why: why.into(), next: next.into() }
    }

    /// The command line or a file is wrong.
    pub fn usage(what: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what, why, next)
    }

    /// A request failed. `what` is what was tried, such as "failed to read workload web".
    pub fn request(what: impl Into<String>, error: &kube::Error) -> Self {
        let what = what.into();
        match error {
            kube::Error::Api(status) => Self::answered(what, status.code, &status.reason, &status.message),
            other => Self::new(
                Exit::Unreachable,
                what,
                root_cause(other),
                "is the server running? `polis doctor` checks the way to it",
            ),
        }
    }

    fn answered(what: String, code: u16, reason: &str, message: &str) -> Self {
        let message = if message.is_empty() { reason } else { judged(message) };
        let (exit, next) = match code {
            401 => {
                (Exit::Refused, "the server does not know you: check the user of the context, `polis doctor`")
            }
            403 => {
                (Exit::Refused, "you may not do this here: another --project or --context, or ask its owner")
            }
            404 => (
                Exit::NotFound,
                "check the name, --namespace and --project; `polis workloads` lists what is there",
            ),
            409 => (Exit::Refused, "somebody changed it meanwhile: look again and repeat"),
            400 | 422 => (Exit::Refused, "change what the message names and repeat"),
            405 | 501 => (Exit::Refused, "this server does not offer it"),
            429 | 503 => (Exit::Failed, "the server is busy: wait a little and repeat"),
            _ => (Exit::Failed, "the server's own log says more"),
        };
        Self::new(exit, what, message, next)
    }
}

/// What was judged to be wrong, without the name of the webhook that judged: nobody but the operator knows it.
fn judged(message: &str) -> &str {
    let words = message.strip_prefix("admission webhook ");
    words.and_then(|words| words.split_once(" denied the request: ")).map_or(message, |(_, judged)| judged)
}

/// The innermost cause: the layers above it only say that something below failed.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "\n  → {}", self.next) }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::kube::core::Status;

    fn answer(code: u16) -> Fault {
        let mut status = Status::failure("the words of the server", "Reason");
        status.code = code;
        Fault::request("failed to read workload web", &kube::Error::Api(status.boxed()))
    }

    #[test]
    fn the_answer_of_the_server_decides_the_code() {
        let table =
            [(401, 4), (403, 4), (404, 3), (409, 4), (422, 4), (405, 4), (429, 1), (500, 1), (503, 1)];
        for (http, exit) in table {
            assert_eq!(answer(http).exit as u8, exit, "{http}");
        }
    }

    #[test]
    fn a_fault_says_what_failed_why_and_what_to_do() {
        assert_eq!(
            answer(409).to_string(),
            "failed to read workload web: the words of the server\n  → somebody changed it meanwhile: look again and repeat"
        );
    }

    #[test]
    fn a_refusal_is_told_without_the_webhook_that_it_comes_from() {
        let told = r#"admission webhook "vworkload.kb.io" denied the request: Workload "web" is invalid: no such city"#;
        assert_eq!(judged(told), r#"Workload "web" is invalid: no such city"#);
        assert_eq!(judged("admission webhook is away"), "admission webhook is away");
    }

    #[test]
    fn no_two_codes_share_a_number_and_all_are_listed() {
        let numbers: Vec<u8> = CODES.iter().map(|(exit, _)| *exit as u8).collect();
        assert_eq!(numbers, (0..=8).collect::<Vec<u8>>());
    }
}
