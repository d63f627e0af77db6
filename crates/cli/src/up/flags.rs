//! Flags of `polis up` and their validation.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use polis_api::names;
use polis_apimachinery::quantity::Quantity;
use polis_apiserver::{StorageQuota, project_plane};
use polis_platform::networks::MAX_LOOPBACK_CITIES as MAX_CITIES;
use polis_runtime::Isolation;

use super::audit::AuditFlags;
use super::encryption::EncryptionFlags;
use super::kubeconfig::user_kubeconfig;
use super::planes::HUB;

/// Cities of a new data directory without `--cities`.
const DEFAULT_CITIES: [&str; 3] = ["dfw", "ord", "lhr"];

/// Planes other than cells whose contexts `polis-<name>` a project must not have.
const OTHER_PLANES: [&str; 2] = [HUB, "platform"];

/// Most objects of a project without `--project-objects`. A workload with its deployments and instances is
/// about ten objects.
const PROJECT_OBJECTS: u64 = 100_000;
/// Most bytes of the objects of a project without `--project-storage`.
const PROJECT_STORAGE: &str = "256Mi";

/// Run a complete installation in one process: projects, hub, and a cell for each city
///
/// Instances run as processes of this machine. All state is in the data directory; the next start continues
/// with it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  polis up                              three cities, one project with the name default
  polis up --cities dfw,ord,lhr,syd     a cell in each of these cities
  polis up --ephemeral                  store nothing on disk")]
pub struct Flags {
    /// City codes; each city gets a cell [default: the cities of the data directory, or dfw,ord,lhr]
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub cities: Vec<String>,
    /// Projects to create. Create more later as Project objects on the platform plane
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "default")]
    pub projects: Vec<String>,
    /// Data directory [default: ~/.local/share/polis]
    #[arg(long, value_name = "FOLDER", env = "POLIS_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Store the planes in memory and the files in a temporary directory that is deleted at exit
    #[arg(long, conflicts_with = "data_dir")]
    pub ephemeral: bool,
    /// Listen address of the API server, which serves all planes with TLS. Port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// Also add the contexts to your kubeconfig ($KUBECONFIG, or ~/.kube/config)
    #[arg(long)]
    pub merge_kubeconfig: bool,
    /// Sign service account tokens with a new key from this start on. Tokens of the previous key stay valid
    /// until they expire, or until the next rotation
    #[arg(long)]
    pub rotate_token_key: bool,
    /// Keep instances running when `polis up` stops; the next `polis up` adopts them
    #[arg(long)]
    pub keep_instances: bool,
    /// A file or folder outside of the system directories that instances may read and execute; repeat the
    /// flag for each
    #[arg(long, value_name = "PATH")]
    pub allow_read: Vec<PathBuf>,
    /// Let workloads run programs of this machine (images `process:PROGRAM`), in the sandbox of their
    /// instance
    #[arg(long)]
    pub allow_host_processes: bool,
    /// Refuse to start if this machine lacks a layer of isolation of instances
    #[arg(long)]
    pub require_isolation: bool,
    #[command(flatten)]
    pub audit: AuditFlags,
    #[command(flatten)]
    pub encryption: EncryptionFlags,
    /// Switch off the admission policies and webhooks that a plane holds, to repair one that refuses every
    /// request: a project, `hub`, `cell-<CITY>` or `platform`; repeat the flag for each
    #[arg(long, value_name = "PLANE")]
    pub suspend_admission: Vec<String>,
    /// Most objects of a project
    #[arg(long, value_name = "COUNT", default_value_t = PROJECT_OBJECTS)]
    pub project_objects: u64,
    /// Most bytes that the objects of a project take, such as 64Mi or 1Gi
    #[arg(long, value_name = "BYTES", default_value = PROJECT_STORAGE, value_parser = parse_bytes)]
    pub project_storage: u64,
    /// Kubeconfig of an external Karmada to use as the hub, instead of the embedded one
    #[arg(long, value_name = "KUBECONFIG")]
    pub federation_kubeconfig: Option<PathBuf>,
    /// Use an external cluster as the cell of a city, instead of an embedded plane; repeat the flag for each
    /// city
    #[arg(long = "cell", value_name = "CITY=KUBECONFIG", value_parser = parse_external_cell)]
    pub cells: Vec<(String, PathBuf)>,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let parsed = Quantity::parse(text).ok().and_then(|size| u64::try_from(size.units()).ok());
    parsed.filter(|bytes| *bytes > 0).ok_or_else(|| "use a number of bytes, such as 64Mi or 1Gi".to_owned())
}

fn parse_external_cell(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((city, path)) if !city.is_empty() && !path.is_empty() => Ok((city.to_owned(), path.into())),
        _ => Err("use the form CITY=KUBECONFIG, such as dfw=/etc/polis/dfw.kubeconfig".to_owned()),
    }
}

impl Flags {
    /// The cities of the installation: those of the flags in their order, then the others of the data
    /// directory (`known`).
    pub fn all_cities(&self, known: &[String]) -> Result<Vec<String>> {
        let real = self.cells.iter().map(|(city, _)| city.clone());
        let named: Vec<String> = self.cities.iter().cloned().chain(real).collect();
        for (index, city) in named.iter().enumerate() {
            check_name("city", city)?;
            if named[..index].contains(city) {
                bail!("city {city} is named twice: name each city once in --cities and --cell");
            }
        }
        let mut all = named;
        all.extend(known.iter().filter(|city| !all.contains(city)).cloned().collect::<Vec<_>>());
        if all.is_empty() {
            all = DEFAULT_CITIES.map(str::to_owned).to_vec();
        }
        if all.len() > usize::from(MAX_CITIES) {
            bail!(
                "{} cities are too many: one machine has loopback addresses for {MAX_CITIES}. Use fewer in --cities, or another --data-dir",
                all.len()
            );
        }
        Ok(all)
    }

    /// Validates the flags, without access to the data directory.
    pub fn check(&self) -> Result<()> {
        self.all_cities(&[])?;
        for (index, project) in self.projects.iter().enumerate() {
            check_name("project", project)?;
            if self.projects[..index].contains(project) {
                bail!("project {project} is named twice: name each project once in --projects");
            }
            if OTHER_PLANES.contains(&project.as_str()) || project.starts_with("cell-") {
                bail!(
                    "project {project} is not allowed: the context polis-{project} belongs to another plane. Use another name"
                );
            }
        }
        if self.federation_kubeconfig.is_some() && self.cells.is_empty() {
            bail!(
                "an external hub cannot reach embedded cells: set its member clusters with --cell CITY=KUBECONFIG"
            );
        }
        Ok(())
    }

    /// Validates `--allow-read` against the data directory, which holds the keys of the installation, and
    /// against the key file of Secrets.
    pub fn check_readable(&self, data: &Path) -> Result<()> {
        for path in &self.allow_read {
            let resolved = path
                .canonicalize()
                .with_context(|| format!("failed to open {} of --allow-read to instances", path.display()))?;
            let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            if let Some(key) =
                self.encryption.encryption_key_file.as_deref().filter(|key| real(key).starts_with(&resolved))
            {
                bail!(
                    "--allow-read {} would open the key file {} to instances: put one of them elsewhere",
                    path.display(),
                    key.display()
                );
            }
            if resolved.starts_with(real(data)) {
                bail!(
                    "--allow-read {} would open the data directory {} to instances: put files for instances elsewhere",
                    path.display(),
                    data.display()
                );
            }
        }
        Ok(())
    }

    /// The warning about what this machine cannot isolate; with `--require-isolation`, an error.
    pub fn check_isolation(&self, isolation: &Isolation) -> Result<Option<String>> {
        match isolation.gap() {
            Some(gap) if self.require_isolation => bail!("--require-isolation is set, and {gap}"),
            gap => Ok(gap),
        }
    }

    /// The storage quota of each project.
    pub fn project_quota(&self) -> StorageQuota {
        StorageQuota { objects: self.project_objects, bytes: self.project_storage }
    }

    /// The names in the store of the planes of `--suspend-admission`.
    pub fn suspended_planes(&self) -> impl Iterator<Item = String> {
        self.suspend_admission.iter().map(|name| match name.as_str() {
            "platform" => String::new(),
            name if name == HUB || name.starts_with("cell-") => name.to_owned(),
            project => project_plane(project),
        })
    }

    /// The kubeconfigs, keys and logs of this process outside of the data directory: no instance may read
    /// them.
    pub fn private_files(&self) -> impl Iterator<Item = PathBuf> {
        let cells = self.cells.iter().map(|(_, path)| path);
        let files =
            [&self.federation_kubeconfig, &self.encryption.encryption_key_file, &self.audit.audit_log_path];
        cells.chain(files.into_iter().flatten()).cloned().chain(user_kubeconfig())
    }
}

/// Names of cities and projects are part of paths, labels and longer object names.
fn check_name(what: &str, name: &str) -> Result<()> {
    if names::is_dns_label(name) && name.len() <= 50 {
        return Ok(());
    }
    bail!("{name:?} is not a valid name of a {what}: use up to 50 lower-case letters, digits and dashes")
}

#[cfg(test)]
mod tests {
    use polis_apimachinery::audit::AuditLevel;

    use super::*;

    use polis_runtime::Landlock;

    fn mk_flags(cities: &[&str]) -> Flags {
        Flags {
            cities: cities.iter().map(|city| (*city).to_owned()).collect(),
            projects: vec!["default".to_owned()],
            data_dir: None,
            ephemeral: false,
            listen: "127.0.0.1:0".parse().unwrap(),
            merge_kubeconfig: false,
            rotate_token_key: false,
            keep_instances: false,
            allow_read: Vec::new(),
            allow_host_processes: false,
            require_isolation: false,
            audit: AuditFlags {
                audit_level: AuditLevel::Metadata,
                audit_policy_file: None,
                audit_log_path: None,
                audit_log_maxsize: 32,
                audit_log_maxbackup: 7,
            },
            encryption: EncryptionFlags { encryption_key_file: None, rotate_encryption_key: false },
            suspend_admission: Vec::new(),
            project_objects: PROJECT_OBJECTS,
            project_storage: 1 << 20,
            federation_kubeconfig: None,
            cells: Vec::new(),
        }
    }

    #[test]
    fn the_default_listen_address_is_loopback() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let flags = <Line as clap::Parser>::parse_from(["up"]).flags;
        assert_eq!(flags.listen.to_string(), "127.0.0.1:7443");
    }

    #[test]
    fn a_new_data_directory_has_three_cities() {
        assert_eq!(mk_flags(&[]).all_cities(&[]).unwrap(), ["dfw", "ord", "lhr"]);
    }

    #[test]
    fn known_cities_are_kept_and_new_ones_are_added() {
        let known = ["dfw".to_owned(), "ord".to_owned()];
        assert_eq!(mk_flags(&[]).all_cities(&known).unwrap(), ["dfw", "ord"]);
        assert_eq!(mk_flags(&["syd"]).all_cities(&known).unwrap(), ["syd", "dfw", "ord"]);
    }

    #[test]
    fn a_duplicate_or_invalid_city_is_an_error() {
        for (cities, message) in
            [(["dfw", "dfw"], "city dfw is named twice"), (["dfw", "D F W"], "not a valid name of a city")]
        {
            let error = mk_flags(&cities).check().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_duplicate_project_or_one_with_the_name_of_a_plane_is_an_error() {
        for (projects, message) in [
            (["shop", "shop"], "project shop is named twice"),
            (["shop", "hub"], "belongs to another plane"),
            (["shop", "platform"], "polis-platform"),
            (["shop", "cell-dfw"], "polis-cell-dfw"),
            (["shop", "Shop"], "not a valid name of a project"),
        ] {
            let flags = Flags { projects: projects.map(str::to_owned).to_vec(), ..mk_flags(&[]) };
            let error = flags.check().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn more_cities_than_loopback_addresses_are_an_error() {
        let cities: Vec<String> = (0..=MAX_CITIES).map(|number| format!("city-{number}")).collect();
        let names: Vec<&str> = cities.iter().map(String::as_str).collect();
        assert_eq!(mk_flags(&names[1..]).all_cities(&[]).unwrap().len(), usize::from(MAX_CITIES));
        assert!(mk_flags(&names).check().unwrap_err().to_string().contains("addresses for 1054"));
        let one_more = mk_flags(&["syd"]).all_cities(&cities[1..]).unwrap_err().to_string();
        assert!(one_more.contains("--data-dir"), "{one_more}");
    }

    #[test]
    fn the_data_directory_cannot_be_opened_to_instances() {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("cells")).unwrap();
        std::os::unix::fs::symlink(data.path(), data.path().join("link")).unwrap();
        let check =
            |path: PathBuf| Flags { allow_read: vec![path], ..mk_flags(&[]) }.check_readable(data.path());
        for path in ["", "cells", "cells/../cells", "link/cells"] {
            let error = check(data.path().join(path)).unwrap_err().to_string();
            assert!(error.contains("put files for instances elsewhere"), "{error}");
        }
        assert!(check(data.path().join("missing")).unwrap_err().to_string().contains("--allow-read"));
        check("/usr".into()).unwrap();
    }

    #[test]
    fn the_key_file_cannot_be_opened_to_instances() {
        let (data, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = keys.path().join("secrets.key");
        std::fs::write(&key, "").unwrap();
        let encryption =
            EncryptionFlags { encryption_key_file: Some(key.clone()), rotate_encryption_key: false };
        let flags = Flags { allow_read: vec![keys.path().to_owned()], encryption, ..mk_flags(&[]) };
        let error = flags.check_readable(data.path()).unwrap_err().to_string();
        assert!(error.contains("secrets.key"), "{error}");
        assert!(flags.private_files().any(|path| path == key));
    }

    #[test]
    fn a_machine_without_a_layer_of_isolation_is_a_warning_or_with_the_flag_an_error() {
        let strict = Flags { require_isolation: true, ..mk_flags(&[]) };
        let mut isolation = Isolation::absent();
        let warning = mk_flags(&[]).check_isolation(&isolation).unwrap().unwrap();
        assert!(warning.contains("are not isolated"), "{warning}");
        let refused = strict.check_isolation(&isolation).unwrap_err().to_string();
        assert!(refused.contains("--require-isolation") && refused.contains("Linux 5.13"), "{refused}");
        isolation.namespaces = Ok(());
        isolation.landlock = Landlock::Full;
        isolation.system_calls = true;
        let refused = strict.check_isolation(&isolation).unwrap_err().to_string();
        assert!(refused.contains("no control group for memory"), "{refused}");
        isolation.missing_limits.clear();
        assert_eq!(strict.check_isolation(&isolation).unwrap(), None);
    }

    #[test]
    fn a_suspended_plane_is_named_as_in_the_contexts() {
        let names = ["shop", "hub", "cell-dfw", "platform"].map(str::to_owned).to_vec();
        let flags = Flags { suspend_admission: names, ..mk_flags(&[]) };
        let planes: Vec<String> = flags.suspended_planes().collect();
        assert_eq!(planes, ["project:shop", "hub", "cell-dfw", ""]);
    }

    #[test]
    fn a_project_has_a_quota_by_default_and_its_bytes_are_a_quantity() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let quota = |args: &[&str]| {
            let args = ["up"].into_iter().chain(args.iter().copied());
            <Line as clap::Parser>::try_parse_from(args).map(|line| line.flags.project_quota())
        };
        assert_eq!(quota(&[]).unwrap(), StorageQuota { objects: 100_000, bytes: 256 << 20 });
        let own = quota(&["--project-objects", "7", "--project-storage", "1Gi"]).unwrap();
        assert_eq!(own, StorageQuota { objects: 7, bytes: 1 << 30 });
        for wrong in ["0", "-1", "much"] {
            let error = quota(&[&format!("--project-storage={wrong}")]).unwrap_err().to_string();
            assert!(error.contains("such as 64Mi or 1Gi"), "{error}");
        }
    }

    #[test]
    fn an_external_hub_needs_external_cells() {
        let flags = Flags { federation_kubeconfig: Some("hub".into()), ..mk_flags(&[]) };
        assert!(flags.check().unwrap_err().to_string().contains("--cell"));
    }
}
