//! `cargo xtask bundle`: writes `deploy/` as an OCI artifact for GitOps tools.
//!
//! The media types are those of Flux's OCIRepository; other tools can read the only layer as a tar archive.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::json;

use crate::crds::root;
use crate::image::version;
use crate::oci::{self, Entry, Layout};
use crate::sign::LayoutArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the layout.
    #[arg(long, default_value = "target/bundle", value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    signature: LayoutArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let out = root().join(args.out);
    if args.signature.verifies(&out)? {
        return Ok(());
    }
    let digest = write(&root().join("deploy"), &out)?;
    args.signature.sign(&out)?;
    println!(
        "{}: {digest}\npush it with: oras cp --from-oci-layout {}:{} …",
        out.display(),
        out.display(),
        version()
    );
    Ok(())
}

/// Writes the layout; returns the digest of the artifact.
pub(crate) fn write(dir: &Path, out: &Path) -> Result<String> {
    let mut layout = Layout::create(out)?;
    let content = packed(dir, "")?;
    let layer = layout.blob("application/vnd.cncf.flux.content.v1.tar+gzip", &content)?;
    let config = layout.blob("application/vnd.cncf.flux.config.v1+json", b"{}")?;
    let manifest = json!({"schemaVersion": 2, "mediaType": oci::MANIFEST, "config": config, "layers": [layer],
        "annotations": {"org.opencontainers.image.title": "polis-deploy", "org.opencontainers.image.version": version(),
            "org.opencontainers.image.licenses": "Apache-2.0"}});
    let listed = json!({"annotations": {"org.opencontainers.image.ref.name": version()}});
    let artifact = layout.manifest(&manifest, &listed)?;
    layout.finish()?;
    Ok(artifact["digest"].as_str().unwrap_or_default().to_owned())
}

/// A compressed archive of a directory under this name, or of what is in it if the name is empty.
pub(crate) fn packed(dir: &Path, name: &str) -> Result<Vec<u8>> {
    let mut files = BTreeMap::new();
    collect(dir, name, &mut files)?;
    oci::gzip(&oci::tar(&files)?)
}

/// Adds all files below a directory, by their paths in it after the prefix.
fn collect(dir: &Path, prefix: &str, files: &mut BTreeMap<String, Entry>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("failed to list {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inside = if prefix.is_empty() { name.into_owned() } else { format!("{prefix}/{name}") };
        if path.is_dir() {
            collect(&path, &inside, files)?;
        } else {
            let content = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            files.insert(inside, Entry { mode: 0o644, content });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::reading;

    #[test]
    fn the_unpacked_bundle_equals_deploy_and_is_reproducible() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let deploy = root().join("deploy");
        assert_eq!(write(&deploy, one.path()).unwrap(), write(&deploy, two.path()).unwrap());

        let index = reading::index(one.path());
        let manifest: serde_json::Value =
            serde_json::from_slice(&reading::blob(one.path(), &index["manifests"][0])).unwrap();
        let packed = reading::blob(one.path(), &manifest["layers"][0]);
        let unpacked = one.path().join("unpacked");
        tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice())).unpack(&unpacked).unwrap();
        let files = |dir: &Path| -> BTreeMap<PathBuf, Vec<u8>> {
            let files = reading::files(dir).into_iter();
            files.map(|(path, text)| (path.strip_prefix(dir).unwrap().to_owned(), text)).collect()
        };
        assert_eq!(files(&unpacked), files(&deploy));
        assert!(unpacked.join("overlays/cell/kustomization.yaml").is_file());
    }
}
