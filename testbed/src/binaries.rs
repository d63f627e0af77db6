//! The cache of built programs: `<cache>/polis/testbed/<key of the pins>/`.
//!
//! Programs are built one after the other, each under a temporary name and then renamed: an interrupted build
//! keeps the finished programs, and the next build continues from there. `built.json` records the finished
//! files and their sizes; a file of another size is built again. A lock serialises builds. The Karmada
//! manifests that the hub needs are stored beside the programs, so that starting a test cluster needs no Go.

use std::{
    collections::BTreeMap,
    fs,
    fs::{File, TryLockError},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::{
    Error, ProgressFn, disk,
    go::{self, Go},
    pins::{self, BUILD_ENV, Module, PROGRAMS, Program},
    state_dir::{cache, write_atomically},
};

/// 630 MB of programs, and the same again while the last one is linked.
const PROGRAMS_MIB: u64 = 1_300;
/// Go's build and module caches: 4.9 GB after a first build; less when an interrupted build is continued.
const FIRST_BUILD_MIB: u64 = 6_000;
const NEXT_BUILD_MIB: u64 = 1_500;

const BUILT: &str = "built.json";
const KARMADA_CRDS: &str = "karmada-crds.json";
const KARMADA_WEBHOOKS: &str = "karmada-webhooks.json";
/// Placeholder for the CA bundle in `karmada-webhooks.json`.
pub(crate) const CA_BUNDLE: &str = "@ca-bundle@";

/// The built programs of the test bed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// The programs in the cache; `None` if a file is missing or has another size than was built.
    pub fn find() -> Result<Option<Binaries>, Error> {
        let binaries = Binaries { dir: cache()?.join(pins::key()) };
        Ok(binaries.missing().is_empty().then_some(binaries))
    }

    /// The programs in the cache; missing ones are built first.
    pub fn ensure(progress: &ProgressFn) -> Result<Binaries, Error> {
        match Binaries::find()? {
            Some(binaries) => Ok(binaries),
            None => Binaries::build(progress),
        }
    }

    /// The programs in a known directory.
    pub(crate) fn at(dir: &Path) -> Binaries {
        Binaries { dir: dir.to_owned() }
    }

    /// Their directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of a program.
    pub fn path(&self, program: Program) -> PathBuf {
        self.dir.join(program.name)
    }

    /// Karmada's own CRDs.
    pub fn karmada_crds(&self) -> Result<Vec<Value>, Error> {
        self.manifests(KARMADA_CRDS, |text| text)
    }

    /// Karmada's webhook configurations, with the address of its webhook and the CA bundle filled in.
    pub fn karmada_webhooks(&self, address: &str, ca_bundle: &str) -> Result<Vec<Value>, Error> {
        self.manifests(KARMADA_WEBHOOKS, |text| {
            text.replace(CA_BUNDLE, ca_bundle).replace("karmada-webhook.karmada-system.svc:443", address)
        })
    }

    fn manifests(&self, name: &str, fill: impl FnOnce(String) -> String) -> Result<Vec<Value>, Error> {
        let path = self.dir.join(name);
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        serde_json::from_str(&fill(text)).map_err(|err| Error::KarmadaManifest { path, why: err.to_string() })
    }

    fn build(progress: &ProgressFn) -> Result<Binaries, Error> {
        let go = go::find()?;
        let binaries = Binaries { dir: cache()?.join(pins::key()) };
        // Checked before any file is created: a build that cannot succeed leaves no files behind.
        let first = binaries.missing().len() > PROGRAMS.len();
        disk::check(&binaries.dir, PROGRAMS_MIB, "XDG_CACHE_HOME")?;
        disk::check(&go.build_cache, if first { FIRST_BUILD_MIB } else { NEXT_BUILD_MIB }, "GOCACHE")?;
        fs::create_dir_all(&binaries.dir).map_err(Error::file("create", &binaries.dir))?;
        let _lock = binaries.lock_build(progress)?;
        binaries.clear_unfinished()?;
        let missing = binaries.missing();
        if missing.is_empty() {
            return Ok(binaries); // another process built them while this one waited for the lock
        }
        progress(&format!(
            "building {} files into {} with Go {} (about 8 minutes in all on two cores, once)",
            missing.len(),
            binaries.dir.display(),
            go.version
        ));
        for (done, name) in missing.iter().enumerate() {
            let start = Instant::now();
            let label = format!("{name} ({} of {})", done + 1, missing.len());
            let file = match PROGRAMS.iter().find(|program| program.name == *name) {
                Some(program) => compile(&go, *program, &binaries.dir, &label, progress)?,
                None => karmada_manifest(&go, name, &binaries.dir)?,
            };
            let path = binaries.dir.join(name);
            // By path: Go has replaced the file that was opened.
            let size = fs::metadata(file.path()).map_err(Error::file("read", file.path()))?.len();
            file.persist(&path).map_err(|err| Error::file("write", &path)(err.error))?;
            binaries.record_built(name, size)?;
            progress(&format!(
                "  {label}: {:.0} s, {} MiB",
                start.elapsed().as_secs_f64(),
                size / 1024 / 1024
            ));
        }
        Ok(binaries)
    }

    /// Serialises builds of one cache key.
    fn lock_build(&self, progress: &ProgressFn) -> Result<File, Error> {
        let path = self.dir.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(Error::file("open", &path))?;
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {
                progress("another process is building the programs: waiting for it")
            }
            Err(TryLockError::Error(err)) => return Err(Error::file("lock", path)(err)),
        }
        lock.lock().map_err(Error::file("lock", path))?;
        Ok(lock)
    }

    /// Removes the temporary files of a killed build. The lock is held, so no other build writes them.
    fn clear_unfinished(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.dir).map_err(Error::file("list", &self.dir))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with('.') {
                fs::remove_file(entry.path()).map_err(Error::file("remove", entry.path()))?;
            }
        }
        Ok(())
    }

    /// Names of the files that are missing or have another size than was built.
    fn missing(&self) -> Vec<&'static str> {
        let built = self.built();
        let intact = |name: &str| {
            let size = fs::metadata(self.dir.join(name)).map(|meta| meta.len()).ok();
            size.is_some() && size == built.get(name).copied()
        };
        let names = PROGRAMS.iter().map(|program| program.name).chain([KARMADA_CRDS, KARMADA_WEBHOOKS]);
        names.filter(|name| !intact(name)).collect()
    }

    fn built(&self) -> BTreeMap<String, u64> {
        let text = fs::read(self.dir.join(BUILT)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn record_built(&self, name: &str, size: u64) -> Result<(), Error> {
        let mut built = self.built();
        built.insert(name.to_owned(), size);
        write_atomically(
            &self.dir.join(BUILT),
            &serde_json::to_vec_pretty(&built).expect("names and sizes serialise"),
        )
    }
}

/// A temporary file in the cache; its name has a leading dot until it is complete.
fn unfinished(dir: &Path, name: &str) -> Result<tempfile::NamedTempFile, Error> {
    let prefix = format!(".{name}-");
    tempfile::Builder::new().prefix(&prefix).tempfile_in(dir).map_err(Error::file("create a file in", dir))
}

fn compile(
    go: &Go,
    program: Program,
    dir: &Path,
    label: &str,
    progress: &ProgressFn,
) -> Result<tempfile::NamedTempFile, Error> {
    let file = unfinished(dir, program.name)?;
    let failed = |why: String| Error::Build { program: program.name.to_owned(), why };
    let mut build = Command::new(&go.path)
        .arg("build")
        .args(program.module.build_flags())
        // Prints each package as it is compiled, for the progress bar.
        .args(["-v", "-o"])
        .args([file.path().as_os_str(), program.package.as_ref()])
        .envs(BUILD_ENV)
        .current_dir(program.module.folder())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| failed(err.to_string()))?;

    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("  {spinner} {prefix}: {pos} packages, {elapsed} {wide_msg:.dim}")
            .expect("the template is well-formed"),
    );
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    if bar.is_hidden() {
        progress(&format!("  {label}: building"));
    }
    let mut output = Vec::new();
    for line in BufReader::new(build.stderr.take().expect("piped")).lines().map_while(Result::ok) {
        bar.inc(1);
        bar.set_message(line.clone());
        output.push(line);
    }
    let status = build.wait();
    bar.finish_and_clear();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(failed(error_output(&output, &status.to_string()))),
        Err(err) => return Err(failed(err.to_string())),
    }
    // A temporary file is private and not executable.
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(file.path(), executable).map_err(Error::file("make executable", file.path()))?;
    Ok(file)
}

/// The last errors of `go build`, without the names of compiled packages.
fn error_output(output: &[String], status: &str) -> String {
    if output.iter().any(|line| line.contains("no space left on device")) {
        return "no space left on the disk: free disk space, or set GOCACHE, TMPDIR or XDG_CACHE_HOME to another directory"
            .to_owned();
    }
    let errors: Vec<&str> = output.iter().map(String::as_str).filter(|line| line.contains(' ')).collect();
    match errors.is_empty() {
        true => format!("go build ended with {status}"),
        false => errors[errors.len().saturating_sub(6)..].join("\n"),
    }
}

/// The Karmada manifests that the hub applies, as JSON.
fn karmada_manifest(go: &Go, name: &str, dir: &Path) -> Result<tempfile::NamedTempFile, Error> {
    let listed = Command::new(&go.path)
        .args(["list", "-m", "-f", "{{.Dir}}", "github.com/karmada-io/karmada"])
        .envs(BUILD_ENV)
        .current_dir(Module::Karmada.folder())
        .output()
        .map_err(|err| Error::Build { program: name.to_owned(), why: err.to_string() })?;
    if !listed.status.success() {
        let why = String::from_utf8_lossy(&listed.stderr).trim().to_owned();
        return Err(Error::Build { program: name.to_owned(), why });
    }
    let source = PathBuf::from(String::from_utf8_lossy(&listed.stdout).trim());
    let mut objects = Vec::new();
    if name == KARMADA_CRDS {
        let mut files = Vec::new();
        yaml_files(&source.join("charts/karmada/_crds/bases"), &mut files)?;
        files.sort();
        for file in files {
            objects.extend(read_objects(&file)?);
        }
    } else {
        objects.extend(read_objects(&source.join("artifacts/deploy/webhook-configuration.yaml"))?);
    }
    if objects.is_empty() {
        return Err(Error::KarmadaManifest { path: source, why: format!("no objects found for {name}") });
    }
    let file = unfinished(dir, name)?;
    fs::write(file.path(), serde_json::to_vec(&objects).expect("JSON values serialise"))
        .map_err(Error::file("write", file.path()))?;
    Ok(file)
}

fn yaml_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::file("list", dir))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            yaml_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    Ok(())
}

fn read_objects(path: &Path) -> Result<Vec<Value>, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let text = text.replace("{{caBundle}}", &format!("\"{CA_BUNDLE}\""));
    serde_saphyr::from_multiple(&text)
        .map_err(|err| Error::KarmadaManifest { path: path.to_owned(), why: err.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_binaries() -> (tempfile::TempDir, Binaries) {
        let dir = tempfile::tempdir().unwrap();
        let binaries = Binaries::at(dir.path());
        for name in binaries.missing() {
            fs::write(dir.path().join(name), name).unwrap();
            binaries.record_built(name, name.len() as u64).unwrap();
        }
        (dir, binaries)
    }

    #[test]
    fn a_complete_file_is_not_missing() {
        let (_dir, binaries) = mk_binaries();
        assert!(binaries.missing().is_empty());
    }

    #[test]
    fn a_removed_truncated_or_unrecorded_file_is_missing() {
        let (dir, binaries) = mk_binaries();
        fs::remove_file(dir.path().join("etcd")).unwrap();
        fs::write(dir.path().join("kubectl"), "").unwrap();
        assert_eq!(binaries.missing(), ["etcd", "kubectl"]);
        fs::write(dir.path().join(BUILT), "half of a fi").unwrap();
        assert_eq!(binaries.missing().len(), PROGRAMS.len() + 2);
    }

    #[test]
    fn only_temporary_files_of_a_killed_build_are_removed() {
        let (dir, binaries) = mk_binaries();
        fs::write(dir.path().join(".etcd-x7Yz"), "half").unwrap();
        binaries.clear_unfinished().unwrap();
        assert!(!dir.path().join(".etcd-x7Yz").exists());
        assert!(binaries.missing().is_empty());
    }

    #[test]
    fn the_build_errors_leave_out_compiled_packages() {
        let output = ["k8s.io/api/core/v1", "# k8s.io/x", "x.go:1:2: undefined: y"].map(str::to_owned);
        assert_eq!(error_output(&output, "exit status: 1"), "# k8s.io/x\nx.go:1:2: undefined: y");
        assert_eq!(error_output(&output[..1], "exit status: 1"), "go build ended with exit status: 1");
    }

    #[test]
    fn a_full_disk_has_an_error_of_its_own() {
        let output = ["link: write /tmp/x: no space left on device".to_owned()];
        assert!(
            error_output(&output, "exit status: 1").starts_with("no space left on the disk: free disk space")
        );
    }

    #[test]
    fn webhook_configurations_get_the_address_and_the_ca_bundle() {
        let (dir, binaries) = mk_binaries();
        let shipped = dir.path().join("webhook.yaml");
        fs::write(
            &shipped,
            "kind: A\nurl: https://karmada-webhook.karmada-system.svc:443/x\nca: {{caBundle}}\n---\nkind: B\n",
        )
        .unwrap();
        let objects = read_objects(&shipped).unwrap();
        fs::write(dir.path().join(KARMADA_WEBHOOKS), serde_json::to_vec(&objects).unwrap()).unwrap();
        let filled = binaries.karmada_webhooks("127.0.0.1:8443", "Q0E=").unwrap();
        assert_eq!(filled[0]["url"], "https://127.0.0.1:8443/x");
        assert_eq!(filled[0]["ca"], "Q0E=");
        assert_eq!(filled[1]["kind"], "B");
    }
}
