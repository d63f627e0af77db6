//! `cargo xtask release`: writes the files of a release into one directory.
//!
//! | file | content |
//! |---|---|
//! | `polis-<version>-linux-<architecture>.tar.gz` | the static program, the licence and the README |
//! | `polis-image-<version>.tar.gz` | the image as an OCI layout |
//! | `polis-deploy-<version>.tar.gz` | `deploy/` as an OCI layout |
//! | `polis-<version>.tgz` | the Helm chart |
//! | `polis-<version>.spdx.json` | the SBOM of the program |
//! | `SHA256SUMS` | the checksums of all of them, for `sha256sum -c` |
//!
//! The files are reproducible from one compilation. With a key, the layouts are signed, and each file gets a
//! `<file>.sigstore.json`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bundle;
use crate::crds::root;
use crate::image::{self, version};
use crate::oci::{self, Entry};
use crate::sign::{self, SigningKey};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the files. The files of an earlier release in it are deleted.
    #[arg(long, default_value = "target/assets", value_name = "DIR")]
    out: PathBuf,
    /// Use this program instead of building one. It must be static.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Sign with this private key (PKCS#8 in PEM).
    #[arg(long, value_name = "FILE", env = "POLIS_SIGN_KEY")]
    sign_key: Option<PathBuf>,
}

const CHECKSUMS: &str = "SHA256SUMS";

pub(crate) fn run(args: Args) -> Result<()> {
    let key = args.sign_key.as_deref().map(SigningKey::load).transpose()?;
    let out = root().join(args.out);
    let program = image::program(args.binary)?;
    for file in write(&out, program, &image::packages()?, key.as_ref())? {
        let size = usize::try_from(fs::metadata(&file)?.len())?;
        println!("{:>10}  {}", image::mebibytes(size), file.display());
    }
    println!("check them with: cd {} && sha256sum -c {CHECKSUMS}", out.display());
    Ok(())
}

/// Writes the files; returns their paths.
fn write(out: &Path, program: Vec<u8>, packages: &[Value], key: Option<&SigningKey>) -> Result<Vec<PathBuf>> {
    if out.join(CHECKSUMS).exists() {
        fs::remove_dir_all(out).with_context(|| format!("failed to clear {}", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("failed to create {}", out.display()))?;
    let scratch = tempfile::tempdir()?;
    let (image, deploy) = (scratch.path().join("image"), scratch.path().join("deploy"));
    let archive = program_archive(program.clone())?;
    image::write(&image, program, packages)?;
    bundle::write(&root().join("deploy"), &deploy)?;
    if let Some(key) = key {
        sign::sign_layout(&image, key)?;
        sign::sign_layout(&deploy, key)?;
    }
    let version = version();
    let contents = [
        (format!("polis-{version}-linux-{}.tar.gz", image::architecture()), archive),
        (format!("polis-image-{version}.tar.gz"), bundle::packed(&image, "image")?),
        (format!("polis-deploy-{version}.tar.gz"), bundle::packed(&deploy, "deploy")?),
        (format!("polis-{version}.tgz"), bundle::packed(&root().join("deploy/chart"), "polis")?),
        (format!("polis-{version}.spdx.json"), image::sbom(packages).to_string().into_bytes()),
    ];
    let checksums: String = contents.iter().map(|(name, content)| checksum(name, content)).collect();
    let mut files = Vec::new();
    for (name, content) in contents.into_iter().chain([(CHECKSUMS.to_owned(), checksums.into_bytes())]) {
        let path = out.join(name);
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
        files.push(path);
    }
    if let Some(key) = key {
        let signatures: Vec<PathBuf> =
            files.iter().map(|file| sign::sign_file(file, key)).collect::<Result<_>>()?;
        files.extend(signatures);
    }
    Ok(files)
}

/// A line of `SHA256SUMS`.
fn checksum(name: &str, content: &[u8]) -> String {
    let digest = oci::digest(content);
    format!("{}  {name}\n", digest.trim_start_matches("sha256:"))
}

/// The program with the files that must come with it.
fn program_archive(program: Vec<u8>) -> Result<Vec<u8>> {
    let folder = format!("polis-{}", version());
    let mut files = BTreeMap::from([(format!("{folder}/polis"), Entry { mode: 0o755, content: program })]);
    for name in ["LICENSE", "README.md"] {
        let path = root().join(name);
        let content = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        files.insert(format!("{folder}/{name}"), Entry { mode: 0o644, content });
    }
    oci::gzip(&oci::tar(&files)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;
    use crate::image::tests::{mk_packages, mk_program};
    use crate::oci::reading;

    fn unpack(file: &Path, dir: &Path) {
        let packed = fs::read(file).unwrap();
        tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice())).unpack(dir).unwrap();
    }

    #[test]
    fn the_files_of_a_release_are_complete_and_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let program = mk_program(dir.path());
        let files = write(&one, program.clone(), &mk_packages(), None).unwrap();
        write(&two, program.clone(), &mk_packages(), None).unwrap();
        let first = write(&two, program, &mk_packages(), None).unwrap();
        assert_eq!(first.len(), 6, "{first:?}");
        for (a, b) in files.iter().zip(&first) {
            assert_eq!(a.file_name(), b.file_name());
            assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap(), "{}", a.display());
        }

        let checked = Command::new("sha256sum").args(["-c", CHECKSUMS]).current_dir(&one).output().unwrap();
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success() && text.lines().count() == 5, "{text}");

        let unpacked = dir.path().join("unpacked");
        for file in &files[..4] {
            unpack(file, &unpacked);
        }
        let program = unpacked.join(format!("polis-{}/polis", version()));
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        let output = Command::new(&program).arg("localhost").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(unpacked.join("polis/Chart.yaml").is_file());
        assert_eq!(reading::index(&unpacked.join("image"))["manifests"].as_array().unwrap().len(), 2);
        assert_eq!(reading::index(&unpacked.join("deploy"))["manifests"].as_array().unwrap().len(), 1);
        let sbom: Value = serde_json::from_slice(&fs::read(&files[4]).unwrap()).unwrap();
        assert_eq!(sbom["packages"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_file_changed_after_the_release_does_not_match_its_checksum() {
        let line = checksum("polis.tgz", b"content");
        assert!(line.ends_with("  polis.tgz\n") && line.len() == 64 + 2 + 10, "{line}");
        assert_ne!(line, checksum("polis.tgz", b"changed"));
    }

    #[test]
    fn every_file_and_layout_is_signed_with_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let (out, key) = (dir.path().join("out"), sign::tests::mk_key());
        let files = write(&out, b"program".to_vec(), &mk_packages(), Some(&key)).unwrap();
        assert_eq!(files.len(), 12, "{files:?}");
        for file in &files[..6] {
            sign::verify_file(file, &key.public()).unwrap();
        }
        unpack(&files[1], &out);
        assert_eq!(sign::verify_layout(&out.join("image"), &key.public()).unwrap(), 2);
    }
}
