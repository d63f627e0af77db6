//! OCI layouts on disk: what `skopeo copy oci:DIR docker://…`, `oras cp --from-oci-layout` and containerd read.
//!
//! The same content gives the same bytes: no clock, no owner, no order of a directory gets in.

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

/// One file of a layer.
pub(crate) struct Entry {
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// A tar of these files, with the folders above them, by path.
pub(crate) fn tar(files: &BTreeMap<String, Entry>) -> Result<Vec<u8>> {
    let mut folders: Vec<String> = Vec::new();
    for path in files.keys() {
        let mut parts: Vec<&str> = path.split('/').collect();
        parts.pop();
        for depth in 1..=parts.len() {
            folders.push(format!("{}/", parts[..depth].join("/")));
        }
    }
    folders.sort();
    folders.dedup();
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
    for folder in &folders {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, folder, std::io::empty())?;
    }
    for (path, entry) in files {
        let mut header = header(tar::EntryType::Regular, entry.mode, entry.content.len());
        archive.append_data(&mut header, path, entry.content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

/// Compressed, without a name or a time.
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

/// A layout that is being written.
pub(crate) struct Layout {
    folder: PathBuf,
    manifests: Vec<Value>,
}

impl Layout {
    /// A new layout in place of what was in the folder.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        if folder.join("oci-layout").exists() {
            fs::remove_dir_all(folder).with_context(|| format!("failed to clear {}", folder.display()))?;
        }
        fs::create_dir_all(folder.join("blobs/sha256"))
            .with_context(|| format!("failed to make {}", folder.display()))?;
        fs::write(folder.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        Ok(Self { folder: folder.to_owned(), manifests: Vec::new() })
    }

    /// Writes a blob; gives its descriptor.
    pub(crate) fn blob(&self, media_type: &str, content: &[u8]) -> Result<Value> {
        let digest = digest(content);
        let path = self.folder.join("blobs").join(digest.replacen(':', "/", 1));
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
    }

    /// Writes a manifest and lists it, with what the index says of it besides. Gives its descriptor.
    pub(crate) fn manifest(&mut self, manifest: &Value, listed_with: &Value) -> Result<Value> {
        let plain = self.blob(MANIFEST, manifest.to_string().as_bytes())?;
        let mut listed = plain.clone();
        if let (Some(listed), Some(more)) = (listed.as_object_mut(), listed_with.as_object()) {
            listed.extend(more.clone());
        }
        self.manifests.push(listed);
        Ok(plain)
    }

    /// Writes the index.
    pub(crate) fn finish(self) -> Result<()> {
        let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": self.manifests});
        fs::write(self.folder.join("index.json"), index.to_string())?;
        Ok(())
    }
}

/// A blob of a layout, held to its digest and its size.
pub(crate) fn blob(folder: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let wanted = descriptor["digest"].as_str().unwrap_or_default();
    let path = folder.join("blobs").join(wanted.replacen(':', "/", 1));
    let content = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    if digest(&content) != wanted || descriptor["size"] != content.len() {
        bail!("{} is not what its descriptor says: {descriptor}", path.display());
    }
    Ok(content)
}

/// The index of a layout.
pub(crate) fn index(folder: &Path) -> Result<Value> {
    let path = folder.join("index.json");
    let text = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
pub(crate) mod reading {
    //! Reading a layout back, in tests.

    use super::*;

    pub(crate) fn blob(folder: &Path, descriptor: &Value) -> Vec<u8> {
        super::blob(folder, descriptor).unwrap()
    }

    pub(crate) fn index(folder: &Path) -> Value {
        super::index(folder).unwrap()
    }

    /// Every file below a folder with its content.
    pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder).unwrap() {
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
