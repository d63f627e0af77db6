//! OCI layouts on disk, for `skopeo copy oci:DIR docker://…`, `oras cp --from-oci-layout` and containerd.
//!
//! The output is reproducible: it does not depend on the clock, file owners or the order of a directory.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A file of a layer.
pub(crate) struct Entry {
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// A tar archive of these files and their parent directories, in the order of their paths.
pub(crate) fn tar(files: &BTreeMap<String, Entry>) -> Result<Vec<u8>> {
    let mut dirs: Vec<String> = Vec::new();
    for path in files.keys() {
        let mut parts: Vec<&str> = path.split('/').collect();
        parts.pop();
        for depth in 1..=parts.len() {
            dirs.push(format!("{}/", parts[..depth].join("/")));
        }
    }
    dirs.sort();
    dirs.dedup();
    let mut archive = tar::Builder::new(Vec::new());
    let header = |kind: tar::EntryType, mode: u32, size: usize| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header
    };
    for dir in &dirs {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, dir, std::io::empty())?;
    }
    for (path, entry) in files {
        let mut header = header(tar::EntryType::Regular, entry.mode, entry.content.len());
        archive.append_data(&mut header, path, entry.content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

/// Compresses without name and time.
pub(crate) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut writer =
        GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::default());
    writer.write_all(content)?;
    Ok(writer.finish()?)
}

/// `sha256:…`
pub(crate) fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A layout being written.
pub(crate) struct Layout {
    dir: PathBuf,
    manifests: Vec<Value>,
}

impl Layout {
    /// Creates a layout; an existing layout in the directory is deleted.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        if dir.join("oci-layout").exists() {
            fs::remove_dir_all(dir).with_context(|| format!("failed to clear {}", dir.display()))?;
        }
        fs::create_dir_all(dir.join("blobs/sha256"))
            .with_context(|| format!("failed to create {}", dir.display()))?;
        fs::write(dir.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        Ok(Self { dir: dir.to_owned(), manifests: Vec::new() })
    }

    /// Opens a layout to add to it. [`Layout::finish`] writes the index.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        Ok(Self { dir: dir.to_owned(), manifests: manifests(dir)? })
    }

    /// Writes a blob; returns its descriptor.
    pub(crate) fn blob(&self, media_type: &str, content: &[u8]) -> Result<Value> {
        let digest = digest(content);
        let path = self.dir.join("blobs").join(digest.replacen(':', "/", 1));
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
    }

    /// Writes a manifest and adds it to the index, with further fields of its index entry. Returns its
    /// descriptor.
    pub(crate) fn manifest(&mut self, manifest: &Value, listed_with: &Value) -> Result<Value> {
        let plain = self.blob(MANIFEST, manifest.to_string().as_bytes())?;
        let mut listed = plain.clone();
        if let (Some(listed), Some(more)) = (listed.as_object_mut(), listed_with.as_object()) {
            listed.extend(more.clone());
        }
        // An entry of the same name is replaced.
        let name = |entry: &Value| entry["annotations"]["org.opencontainers.image.ref.name"].clone();
        let named = name(&listed);
        self.manifests.retain(|known| named.is_null() || name(known) != named);
        self.manifests.push(listed);
        Ok(plain)
    }

    /// Writes the index.
    pub(crate) fn finish(self) -> Result<()> {
        let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": self.manifests});
        fs::write(self.dir.join("index.json"), index.to_string())?;
        Ok(())
    }
}

/// Reads a blob of a layout and verifies its digest and size.
pub(crate) fn blob(dir: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let wanted = descriptor["digest"].as_str().unwrap_or_default();
    let path = dir.join("blobs").join(wanted.replacen(':', "/", 1));
    let content = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    if digest(&content) != wanted || descriptor["size"] != content.len() {
        bail!("{} does not match its descriptor {descriptor}", path.display());
    }
    Ok(content)
}

/// The index of a layout.
pub(crate) fn index(dir: &Path) -> Result<Value> {
    let path = dir.join("index.json");
    let text = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("failed to read {}", path.display()))
}

/// The entries of the index of a layout.
pub(crate) fn manifests(dir: &Path) -> Result<Vec<Value>> {
    Ok(index(dir)?["manifests"].as_array().cloned().unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod reading {
    //! Reads a layout in tests.

    use super::*;

    pub(crate) fn blob(dir: &Path, descriptor: &Value) -> Vec<u8> {
        super::blob(dir, descriptor).unwrap()
    }

    pub(crate) fn index(dir: &Path) -> Value {
        super::index(dir).unwrap()
    }

    /// All files below a directory with their content.
    pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => found.extend(files(&path)),
                false => {
                    found.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
        }
        found
    }
}
