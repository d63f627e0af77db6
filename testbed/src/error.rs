//! What can go wrong with a bed, each as one sentence that says what to do.

use std::{io, path::PathBuf};

use crate::go::Missing;

/// Why a bed cannot be built, started or used. Each message is whole: it holds its cause and is shown without it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("failed to {action} {path}: {cause}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// There is no place for caches.
    #[error("there is no place for the cache: set XDG_CACHE_HOME or HOME")]
    NoCacheDir,
    /// There is no usable Go.
    #[error(transparent)]
    Go(#[from] Missing),
    /// Go could not build a program.
    #[error("failed to build {program}: {why}")]
    Build {
        /// Which program.
        program: String,
        /// Go's last words.
        why: String,
    },
    /// Too little room on a disk.
    #[error(
        "{path} has {free_mib} MiB left and {wanted_mib} MiB are needed: make room, or point {variable} elsewhere"
    )]
    DiskFull {
        /// Where.
        path: PathBuf,
        /// What is left there.
        free_mib: u64,
        /// What is needed there.
        wanted_mib: u64,
        /// What moves it elsewhere.
        variable: &'static str,
    },
    /// What Karmada ships is not what it was.
    #[error("failed to read {path} of Karmada: {why}")]
    KarmadaManifest {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A name that could be no plane.
    #[error(
        "{name:?} is no name for a plane: use a city code or a name of lower-case letters, digits and '-', at most 48"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// Two planes of one name.
    #[error(
        "{name:?} is wanted twice: each project and each city needs a name of its own, and \"hub\" is taken"
    )]
    NameTwice {
        /// The name.
        name: String,
    },
    /// A bed without any plane.
    #[error("a bed needs at least one project, cell or hub")]
    NothingWanted,
    /// The directory holds something else.
    #[error("{0} is not empty and holds no bed: choose another directory")]
    NotABed(PathBuf),
    /// No bed in this directory.
    #[error("there is no bed in {0}: start one with `cargo xtask testbed up --dir {0}`")]
    NoBed(PathBuf),
    /// A bed is running in this directory.
    #[error(
        "a bed is already up in {0}: use it, end it with `cargo xtask testbed down --dir {0}`, or choose another --dir"
    )]
    AlreadyUp(PathBuf),
    /// Another process is starting or ending a bed in this directory.
    #[error(
        "another process is at work on the bed in {0}: wait for it, end it with `cargo xtask testbed down --dir {0}`, or choose another --dir"
    )]
    Busy(PathBuf),
    /// A bed that was never up, and whose starter is gone.
    #[error(
        "the bed in {0} was cut off while it started: start it again with `cargo xtask testbed up --dir {0}`"
    )]
    CutOff(PathBuf),
    /// The bed is not the one the test asked for.
    #[error("the bed in {dir} has no {what}: start one that has, or unset POLIS_TESTBED_DIR")]
    NotTheWantedBed {
        /// Where the bed is.
        dir: PathBuf,
        /// What it lacks.
        what: String,
    },
    /// A plane that the bed does not have.
    #[error("there is no plane {name:?} in this bed; it has {known}")]
    UnknownPlane {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A component that the bed does not have.
    #[error("there is no component {name:?} in this bed; it has {known}")]
    UnknownComponent {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A component did not start.
    #[error("failed to start {name} ({program}): {cause}")]
    Spawn {
        /// Its name.
        name: String,
        /// Its program.
        program: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A component died.
    #[error("{name} died; the last lines of {log}:\n{tail}")]
    Died {
        /// Its name.
        name: String,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// A component does not become ready.
    #[error("{name} was not ready after {seconds} s ({why}); the last lines of {log}:\n{tail}")]
    NotReady {
        /// Its name.
        name: String,
        /// How long it was given.
        seconds: u64,
        /// What it last answered.
        why: String,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// Another process took a port between its choice and its use. Retried with another port.
    #[error("the port of {name} was taken by another process ({ports:?})")]
    PortTaken {
        /// The component.
        name: String,
        /// The ports it was given.
        ports: Vec<u16>,
    },
    /// No port is free.
    #[error("no free port found on 127.0.0.1 after {tries} tries: too much is running on this machine")]
    NoPort {
        /// How many were tried.
        tries: usize,
    },
    /// A signal could not be sent.
    #[error("failed to signal {name}: {cause}")]
    Signal {
        /// The component.
        name: String,
        /// Why not.
        cause: io::Error,
    },
    /// A process does not go away, even when killed.
    #[error("{name} (process {pid}) is still there {seconds} s after it was killed")]
    Unkillable {
        /// The component.
        name: String,
        /// Its process.
        pid: u32,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A certificate could not be made.
    #[error("failed to issue a certificate for {name}: {cause}")]
    Certificate {
        /// For whom.
        name: String,
        /// Why not.
        cause: rcgen::Error,
    },
    /// More groups than a certificate of ours can hold.
    #[error("failed to issue a certificate for {user}: it can carry two groups, {count} were asked for")]
    TooManyGroups {
        /// For whom.
        user: String,
        /// How many groups.
        count: usize,
    },
    /// A client could not be made.
    #[error("failed to make a client for {server}: {why}")]
    Client {
        /// Of which server.
        server: String,
        /// Why not.
        why: String,
    },
    /// A plane refused a request.
    #[error("failed to {action} on {plane}: {cause}")]
    Plane {
        /// What was tried.
        action: String,
        /// Where.
        plane: String,
        /// What it answered.
        cause: Box<kube::Error>,
    },
    /// A condition did not come true.
    #[error("waited {seconds} s for {what} on {plane} in vain: {last}")]
    Waited {
        /// How long.
        seconds: u64,
        /// For what.
        what: String,
        /// Where.
        plane: String,
        /// What was seen last.
        last: String,
    },
    /// A manifest of ours or of Karmada is not an object.
    #[error("failed to read manifest {name}: {why}")]
    Manifest {
        /// Which.
        name: String,
        /// Why not.
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
        move |cause| Error::Plane { action, plane, cause: Box::new(cause) }
    }
}
