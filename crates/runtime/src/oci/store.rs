//! Images and layers on this host, shared by all instances.
//!
//! `layers/<digest>` is an unpacked layer, named by the digest of its uncompressed content;
//! `images/<name>` an image, by its reference and the credentials that may read it;
//! `users/<uid>.<container>` lists the layers of a container. All of them appear complete or not at all.
//! Layers and images that no container has used for [`RETENTION`] are removed when an instance is
//! removed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::manifest::{Content, ImageConfig, ImageFile, Manifest};
use super::reference::{Digest, Reference};
use super::registry::{Credentials, Registry};
use super::{ImageError, RegistrySettings};
use crate::shim::replace_file;

/// Digits of a digest in the name of a layer: 128 bits. The kernel limits the length of all names together.
const NAME_DIGITS: usize = 32;
/// How long layers without a container stay.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// When an image that is present is checked against its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
}

impl PullPolicy {
    /// The default of Kubernetes: `latest` moves, other tags and digests do not.
    pub(super) fn of(reference: &Reference) -> Self {
        if reference.is_latest() { PullPolicy::Always } else { PullPolicy::IfNotPresent }
    }
}

/// An image that is present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// The digest of its manifest.
    digest: String,
    /// Names of its layers, lowest first.
    pub(crate) layers: Vec<String>,
    pub(crate) config: ImageConfig,
}

/// The result of [`ImageStore::pull`].
pub(crate) type Pulled = Result<Image, ImageError>;

/// The images of this host.
#[derive(Clone, Debug)]
pub(crate) struct ImageStore {
    dir: PathBuf,
    settings: RegistrySettings,
    /// Bytes that an image may have when it is unpacked.
    max_bytes: u64,
}

impl ImageStore {
    pub(crate) fn new(dir: PathBuf, settings: RegistrySettings, max_bytes: u64) -> Self {
        ImageStore { dir, settings, max_bytes }
    }

    /// The directory of a layer.
    pub(crate) fn layer(&self, name: &str) -> PathBuf {
        self.dir.join("layers").join(name)
    }

    /// Makes an image present. `docker_configs` are the contents of pull secrets.
    pub(crate) async fn pull(&self, name: &str, docker_configs: &[Vec<u8>]) -> Pulled {
        let reference = Reference::parse(name)?;
        let unavailable =
            |error: ImageError| ImageError::new(format!("image {reference} is not available: {error}"));
        let mut credentials = Credentials::default();
        docker_configs.iter().for_each(|config| credentials.add(config));
        if let Some(config) = self.settings.docker_config.as_ref().and_then(|path| fs::read(path).ok()) {
            credentials.add(&config);
        }
        self.pull_with(&reference, &credentials).await.map_err(unavailable)
    }

    async fn pull_with(&self, reference: &Reference, credentials: &Credentials) -> Pulled {
        let stored = |error: io::Error| ImageError::new(format!("it cannot be stored on this host: {error}"));
        for folder in ["layers", "images", "users", "parts"] {
            fs::create_dir_all(self.dir.join(folder)).map_err(stored)?;
        }
        // Shared by pulls; the removal of layers waits for none and is skipped while one runs.
        let _lock = self.lock().map_err(stored)?;
        let name = format!("{} {}", reference, credentials.fingerprint(reference));
        let record = self.dir.join("images").join(&Digest::of(name.as_bytes()).hex()[..NAME_DIGITS]);
        let present = fs::read(&record).ok().and_then(|bytes| serde_json::from_slice::<Image>(&bytes).ok());
        let present = present.filter(|image| image.layers.iter().all(|layer| self.layer(layer).is_dir()));
        if let Some(image) = &present
            && PullPolicy::of(reference) == PullPolicy::IfNotPresent
        {
            return Ok(image.clone());
        }
        let mut registry = Registry::new(&self.settings, reference, credentials);
        let mut bytes = registry.manifest(&reference.version()).await?;
        let mut depth = 0;
        let (config, layers) = loop {
            let manifest: Manifest = serde_json::from_slice(&bytes)
                .map_err(|error| ImageError::new(format!("its manifest is invalid: {error}")))?;
            match manifest.content()? {
                Content::Image { config, layers } => break (config, layers),
                Content::Index(digest) if depth == 0 => {
                    bytes = registry.manifest(&digest.to_string()).await?;
                    depth += 1;
                }
                Content::Index(_) => return Err(ImageError::new("its index refers to another index")),
            }
        };
        let digest = Digest::of(&bytes).to_string();
        if let Some(image) = present.filter(|image| image.digest == digest) {
            return Ok(image);
        }
        let file = registry.config(&config.0).await?;
        let file: ImageFile = serde_json::from_slice(&file)
            .map_err(|error| ImageError::new(format!("its configuration is invalid: {error}")))?;
        check_platform(&file)?;
        let names = self.fetch_layers(&mut registry, &layers, &file.rootfs.diff_ids).await?;
        let image = Image { digest, layers: names, config: file.config.unwrap_or_default() };
        let content = serde_json::to_vec(&image).map_err(|error| stored(error.into()))?;
        replace_file(&record, &content).map_err(stored)?;
        Ok(image)
    }

    /// Makes the layers present; returns their names.
    async fn fetch_layers(
        &self,
        registry: &mut Registry<'_>,
        layers: &[(Digest, u64)],
        contents: &[String],
    ) -> Result<Vec<String>, ImageError> {
        if layers.len() != contents.len() {
            return Err(ImageError::new(
                "its manifest and its configuration have different numbers of layers",
            ));
        }
        let mut space = self.max_bytes;
        let mut names = Vec::new();
        for ((digest, size), content) in layers.iter().zip(contents) {
            let content = Digest::parse(content)
                .ok_or_else(|| ImageError::new(format!("its configuration has the digest {content:?}")))?;
            let name = content.hex()[..NAME_DIGITS].to_owned();
            if !self.layer(&name).is_dir() {
                space = self.fetch_layer(registry, (digest, *size), &content, space).await?;
            }
            names.push(name);
        }
        Ok(names)
    }

    /// Downloads and unpacks a layer; returns what is left of the space.
    async fn fetch_layer(
        &self,
        registry: &mut Registry<'_>,
        (digest, size): (&Digest, u64),
        content: &Digest,
        space: u64,
    ) -> Result<u64, ImageError> {
        let stored = |error: io::Error| ImageError::new(format!("it cannot be stored on this host: {error}"));
        if size > space {
            return Err(ImageError::new(format!(
                "it is larger than {} MiB, which this host allows",
                self.max_bytes >> 20
            )));
        }
        let part = Part::new(&self.dir).map_err(stored)?;
        let mut blob = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(part.0.join("blob"))
            .map_err(stored)?;
        registry.blob(digest, size, &mut blob).await?;
        drop(blob);
        let (folder, content) = (part.0.clone(), content.clone());
        let name = self.layer(&content.hex()[..NAME_DIGITS]);
        let unpacking = tokio::task::spawn_blocking(move || {
            let root = folder.join("root");
            fs::create_dir(&root).map_err(stored)?;
            let blob = File::open(folder.join("blob")).map_err(stored)?;
            let left = super::layer::unpack(blob, &root, &content, space)?;
            match fs::rename(&root, &name) {
                // Another pull was faster.
                Err(_) if name.is_dir() => Ok(left),
                done => done.map(|()| left).map_err(stored),
            }
        });
        let left = unpacking.await.map_err(|error| ImageError::new(error.to_string()))??;
        drop(part);
        Ok(left)
    }

    /// Records that a container uses an image, before it starts.
    pub(crate) fn claim(&self, user: &str, image: &Image) -> io::Result<()> {
        let content = serde_json::to_vec(&image.layers)?;
        replace_file(&self.dir.join("users").join(user), &content)
    }

    /// Removes the claims of an instance, and what no container has used for some time.
    pub(crate) fn release(&self, instance: &str) {
        let prefix = format!("{instance}.");
        for entry in fs::read_dir(self.dir.join("users")).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                _ = fs::remove_file(entry.path());
            }
        }
        self.collect(RETENTION);
    }

    /// Removes images and layers that no container uses and that are older than `retention`.
    pub(crate) fn collect(&self, retention: Duration) {
        let Ok(Some(_lock)) = self.try_lock_for_removal() else { return };
        let users = fs::read_dir(self.dir.join("users")).into_iter().flatten().flatten();
        let used: BTreeSet<String> = users
            .filter_map(|entry| serde_json::from_slice::<Vec<String>>(&fs::read(entry.path()).ok()?).ok())
            .flatten()
            .collect();
        let is_old = |path: &Path| {
            let modified = fs::metadata(path).and_then(|meta| meta.modified());
            modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age >= retention))
        };
        let read = |path: &Path| serde_json::from_slice::<Image>(&fs::read(path).ok()?).ok();
        for entry in fs::read_dir(self.dir.join("images")).into_iter().flatten().flatten() {
            let image = read(&entry.path());
            if image.is_none_or(|image| !image.layers.iter().any(|layer| used.contains(layer)))
                && is_old(&entry.path())
            {
                _ = fs::remove_file(entry.path());
            }
        }
        let images = fs::read_dir(self.dir.join("images")).into_iter().flatten().flatten();
        let kept: BTreeSet<String> = images
            .filter_map(|entry| read(&entry.path()))
            .flat_map(|image| image.layers)
            .chain(used)
            .collect();
        for entry in fs::read_dir(self.dir.join("layers")).into_iter().flatten().flatten() {
            if !kept.contains(&*entry.file_name().to_string_lossy()) {
                _ = fs::remove_dir_all(entry.path());
            }
        }
        for part in fs::read_dir(self.dir.join("parts")).into_iter().flatten().flatten() {
            _ = fs::remove_dir_all(part.path()); // of a pull that was killed
        }
    }

    fn lock_file(&self) -> io::Result<File> {
        File::options().create(true).truncate(false).write(true).open(self.dir.join("lock"))
    }

    fn lock(&self) -> io::Result<File> {
        let file = self.lock_file()?;
        file.lock_shared()?;
        Ok(file)
    }

    fn try_lock_for_removal(&self) -> io::Result<Option<File>> {
        let file = self.lock_file()?;
        Ok(file.try_lock().is_ok().then_some(file))
    }
}

fn check_platform(file: &ImageFile) -> Result<(), ImageError> {
    let own = super::manifest::architecture();
    if file.os == "linux" && (file.architecture == own || file.architecture.is_empty()) {
        return Ok(());
    }
    Err(ImageError::new(format!("it is for {}/{}, and this host is linux/{own}", file.os, file.architecture)))
}

/// The directory of a download, removed when it is dropped.
struct Part(PathBuf);

impl Part {
    fn new(dir: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = dir.join("parts").join(name);
        fs::create_dir(&path)?;
        Ok(Part(path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
