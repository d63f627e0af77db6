//! Errors of the test bed. Each message names the object, the cause and what to do.

use std::{io, path::PathBuf};

use crate::go::GoError;

/// Why a test cluster cannot be built, started or used. Each message includes its cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("failed to {action} {path}: {cause}")]
    File {
        /// The attempted action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// Neither XDG_CACHE_HOME nor HOME is set.
    #[error("failed to find the cache directory: set XDG_CACHE_HOME or HOME")]
    NoCacheDir,
    /// No usable Go toolchain was found.
    #[error(transparent)]
    Go(#[from] GoError),
    /// `go build` failed.
    #[error("failed to build {program}: {why}")]
    Build {
        /// The program.
        program: String,
        /// The errors of `go build`.
        why: String,
    },
    /// Too little free disk space.
    #[error(
        "{path} has {free_mib} MiB free and {wanted_mib} MiB are needed: free disk space, or set {variable} to another directory"
    )]
    DiskFull {
        /// The directory.
        path: PathBuf,
        /// Free space.
        free_mib: u64,
        /// Needed space.
        wanted_mib: u64,
        /// The variable or flag that selects another directory.
        variable: &'static str,
    },
    /// A manifest in Karmada's module is missing or malformed.
    #[error("failed to read {path} of Karmada: {why}")]
    KarmadaManifest {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// A plane name that is not a DNS label.
    #[error(
        "{name:?} is not a valid plane name: use a city code or a name of lower-case letters, digits and '-', at most 48 characters"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// Two planes have the same name.
    #[error(
        "plane name {name:?} is used more than once: give each project and each city its own name (\"hub\" is reserved)"
    )]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The options name no plane.
    #[error("a test cluster needs at least one project, cell or hub")]
    NoPlanes,
    /// The directory holds foreign files.
    #[error("{0} is not empty and holds no test cluster: choose another directory")]
    ForeignDirectory(PathBuf),
    /// The directory holds no test cluster.
    #[error("there is no test cluster in {0}: start one with `cargo xtask testbed up --dir {0}`")]
    NoTestCluster(PathBuf),
    /// A test cluster already runs in this directory.
    #[error(
        "a test cluster already runs in {0}: use it, stop it with `cargo xtask testbed down --dir {0}`, or choose another --dir"
    )]
    AlreadyUp(PathBuf),
    /// Another process holds the lock of this directory.
    #[error(
        "another process starts or stops the test cluster in {0}: wait for it, stop the cluster with `cargo xtask testbed down --dir {0}`, or choose another --dir"
    )]
    Busy(PathBuf),
    /// The process that started the test cluster exited before the start was complete.
    #[error(
        "the start of the test cluster in {0} was interrupted: start it again with `cargo xtask testbed up --dir {0}`"
    )]
    Incomplete(PathBuf),
    /// The shared test cluster lacks a plane that the test needs.
    #[error("the test cluster in {dir} has no {what}: start one with it, or unset POLIS_TESTBED_DIR")]
    MissingPlane {
        /// The state directory.
        dir: PathBuf,
        /// The missing plane.
        what: String,
    },
    /// The test cluster has no such plane.
    #[error("there is no plane {name:?} in this test cluster; it has {known}")]
    UnknownPlane {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The test cluster has no such component.
    #[error("there is no component {name:?} in this test cluster; it has {known}")]
    UnknownComponent {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// A component did not start.
    #[error("failed to start {name} ({program}): {cause}")]
    Spawn {
        /// Its name.
        name: String,
        /// The program file.
        program: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A component exited.
    #[error("{name} exited; the last lines of {log}:\n{tail}")]
    Exited {
        /// Its name.
        name: String,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// A component did not become ready in time.
    #[error("{name} was not ready after {seconds} s ({why}); the last lines of {log}:\n{tail}")]
    NotReady {
        /// Its name.
        name: String,
        /// The timeout.
        seconds: u64,
        /// The last result of the readiness check.
        why: String,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// Another process took a port before the component listened on it. The start is retried on other ports.
    #[error("a port of {name} was taken by another process ({ports:?})")]
    PortTaken {
        /// The component.
        name: String,
        /// The ports of the component.
        ports: Vec<u16>,
    },
    /// No port is free.
    #[error(
        "no free port found on 127.0.0.1 after {tries} attempts: too many processes listen on this machine"
    )]
    NoPort {
        /// The number of attempts.
        tries: usize,
    },
    /// A signal could not be sent.
    #[error("failed to signal {name}: {cause}")]
    Signal {
        /// The component.
        name: String,
        /// The cause.
        cause: io::Error,
    },
    /// A process did not exit in time after a signal.
    #[error("{name} (process {pid}) is still running {seconds} s after the signal to end it")]
    Unkillable {
        /// The component.
        name: String,
        /// Its process id.
        pid: u32,
        /// The timeout.
        seconds: u64,
    },
    /// A certificate could not be issued.
    #[error("failed to issue a certificate for {name}: {cause}")]
    Certificate {
        /// The subject.
        name: String,
        /// The cause.
        cause: rcgen::Error,
    },
    /// More groups than a certificate holds.
    #[error("failed to issue a certificate for {user}: it holds at most two groups, {count} were requested")]
    TooManyGroups {
        /// The user.
        user: String,
        /// The number of groups.
        count: usize,
    },
    /// A client could not be created.
    #[error("failed to create a client for {server}: {why}")]
    Client {
        /// The server.
        server: String,
        /// The cause.
        why: String,
    },
    /// A request to a plane failed.
    #[error("failed to {action} on {plane}: {cause}")]
    Request {
        /// The attempted action.
        action: String,
        /// The plane.
        plane: String,
        /// The error.
        cause: Box<kube::Error>,
    },
    /// A condition was not met in time.
    #[error("timed out after {seconds} s waiting for {what} on {plane}: {last}")]
    Timeout {
        /// The timeout.
        seconds: u64,
        /// The condition.
        what: String,
        /// The plane.
        plane: String,
        /// The last result of the check.
        last: String,
    },
    /// A manifest or state file could not be parsed.
    #[error("failed to read manifest {name}: {why}")]
    Manifest {
        /// Its name.
        name: String,
        /// The cause.
        why: String,
    },
}

impl Error {
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |cause| Error::File { action, path, cause }
    }

    pub(crate) fn plane(
        action: impl Into<String>,
        plane: impl Into<String>,
    ) -> impl FnOnce(kube::Error) -> Error {
        let (action, plane) = (action.into(), plane.into());
        move |cause| Error::Request { action, plane, cause: Box::new(cause) }
    }
}
