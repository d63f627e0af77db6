//! `cargo xtask image`: writes the image of `polis` as an OCI layout, without a daemon.
//!
//! The image has one layer with one program and nothing else: no shell, no libraries, no package manager. So
//! the program must be static. An SBOM, generated from the lock file, refers to the image by its digest.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::crds::root;
use crate::oci::{self, Entry, Layout};
use crate::outside;
use crate::sign::LayoutArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the layout.
    #[arg(long, default_value = "target/image", value_name = "DIR")]
    out: PathBuf,
    /// Use this program instead of building one. It must be static.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Unpack the image and run its program in an otherwise empty root. Needs user namespaces.
    #[arg(long = "try")]
    try_out: bool,
    #[command(flatten)]
    signature: LayoutArgs,
}

/// Path of the program in the image; the pods' `args` follow it.
const PROGRAM: &str = "usr/bin/polis";
/// As in `deploy/base/manager`.
const USER: &str = "65532:65532";
const SBOM: &str = "application/spdx+json";

pub(crate) fn run(args: Args) -> Result<()> {
    if args.signature.verifies(&root().join(&args.out))? {
        return Ok(());
    }
    let program = program(args.binary)?;
    let out = root().join(args.out);
    let size = program.len();
    let digest = write(&out, program, &packages()?)?;
    args.signature.sign(&out)?;
    let manifest: Value = serde_json::from_slice(&oci::blob(&out, &oci::index(&out)?["manifests"][0])?)?;
    let packed = manifest["layers"][0]["size"].as_u64().and_then(|size| usize::try_from(size).ok());
    if args.try_out {
        println!("{}", try_out(&out)?);
    }
    println!(
        "{}: {digest}\nprogram {}, layer {}\npush it with: skopeo copy oci:{}:{} docker://…",
        out.display(),
        mebibytes(size),
        mebibytes(packed.unwrap_or_default()),
        out.display(),
        version()
    );
    Ok(())
}

/// The static program: the given one, or one that is built.
pub(crate) fn program(binary: Option<PathBuf>) -> Result<Vec<u8>> {
    let binary = match binary {
        Some(binary) => binary,
        None => build()?,
    };
    let program = fs::read(&binary).with_context(|| format!("failed to read {}", binary.display()))?;
    if !is_static(&program) {
        bail!("{} is not a static program for Linux, and the image has no libraries", binary.display());
    }
    Ok(program)
}

/// Rounded down to a tenth, for display.
pub(crate) fn mebibytes(bytes: usize) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

/// Unpacks the image of a layout into a directory; returns its configuration.
fn unpack(image: &Path, dir: &Path) -> Result<Value> {
    let read =
        |descriptor: &Value| -> Result<Value> { Ok(serde_json::from_slice(&oci::blob(image, descriptor)?)?) };
    let manifest = read(&oci::index(image)?["manifests"][0])?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let packed = oci::blob(image, layer)?;
        tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice())).unpack(dir)?;
    }
    read(&manifest["config"])
}

/// Runs the program of an image in an otherwise empty root; returns its version.
fn try_out(image: &Path) -> Result<String> {
    let scratch = tempfile::tempdir()?;
    let config = unpack(image, scratch.path())?;
    let entry = config["config"]["Entrypoint"][0].as_str().unwrap_or_default();
    let output = chroot(scratch.path(), entry).arg("version").output().context("failed to start unshare")?;
    let output_text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    if !output.status.success() || !output_text.contains(&format!("polis {}", version())) {
        bail!("the program of the image does not print version {} of polis, but: {output_text}", version());
    }
    Ok(output_text.trim().to_owned())
}

/// A command that runs a program with a directory as its root.
fn chroot(dir: &Path, program: &str) -> Command {
    let mut command = outside::command("unshare");
    command.args(["--map-root-user", "chroot"]).arg(dir).arg(program);
    command
}

/// The architecture of the program, as in images.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Builds a static program.
fn build() -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // With an explicit target, its flags do not apply to build scripts and macros, which cannot be static.
    let status = outside::command("cargo")
        .args(["build", "--release", "--locked", "--bin", "polis", "--target", &target])
        .env("RUSTFLAGS", flags())
        // Function names stay for backtraces, and panics have their line anyway; line tables would be most of
        // the image.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .envs(commit())
        .current_dir(root())
        .status()
        .context("failed to start cargo")?;
    if !status.success() {
        bail!("cargo build ended with {status}");
    }
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(dir.join(target).join("release/polis"))
}

/// The commit of the work tree and its date, for `/version`; nothing if the tree has changes, because the
/// program is then of no commit. The date is that of the commit, so that the build stays reproducible.
fn commit() -> Vec<(&'static str, String)> {
    let git = |args: &[&str]| {
        let output = outside::command("git").args(args).env("TZ", "UTC").current_dir(root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let is_clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    let hash = git(&["rev-parse", "HEAD"]).filter(|_| is_clean);
    let date = git(&["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"]);
    match (hash, date) {
        (Some(hash), Some(date)) => vec![("POLIS_COMMIT", hash), ("POLIS_COMMIT_DATE", date)],
        _ => Vec::new(),
    }
}

/// Links the C library statically. It resolves names with `/etc/hosts` and `/etc/resolv.conf`, which every
/// pod has.
const STATIC: &str = "target-feature=+crt-static";

/// A static program cannot detect at run time whether the C library has `getrandom`, and would read
/// `/dev/urandom`, which an empty root does not have. Every Linux since 3.17 has the system call.
const RANDOM: &str = "--cfg getrandom_backend=\"linux_getrandom\"";

/// Static linking, and no paths of this machine, so that the build is reproducible elsewhere.
fn flags() -> String {
    let cargo_home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut flags = format!("-C {STATIC} {RANDOM} --remap-path-prefix={}=/polis", root().display());
    if let Ok(cargo_home) = cargo_home {
        flags += &format!(" --remap-path-prefix={cargo_home}=/cargo");
    }
    flags
}

/// Whether this is an ELF program without an interpreter, which would load libraries.
fn is_static(program: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = program.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
    };
    // 64 bit, little endian, as the image declares.
    if program.get(..6) != Some(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return false;
    }
    let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    let kind = |row: u64| number(usize::try_from(table + row * size).ok()?, 4);
    (0..count).all(|row| kind(row).is_some_and(|kind| kind != u64::from(INTERPRETER)))
}

/// Writes the layout; returns the digest of the image.
pub(crate) fn write(out: &Path, program: Vec<u8>, packages: &[Value]) -> Result<String> {
    let mut layout = Layout::create(out)?;
    let layer = oci::tar(&BTreeMap::from([(PROGRAM.to_owned(), Entry { mode: 0o755, content: program })]))?;
    let packed = layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", &oci::gzip(&layer)?)?;
    let labels = json!({
        "org.opencontainers.image.title": "polis",
        "org.opencontainers.image.description": "Workloads by city",
        "org.opencontainers.image.version": version(),
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": [format!("/{PROGRAM}")], "Env": ["PATH=/usr/bin"], "User": USER, "WorkingDir": "/", "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [oci::digest(&layer)]},
    });
    let config = layout.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let image = json!({"schemaVersion": 2, "mediaType": oci::MANIFEST, "config": config, "layers": [packed], "annotations": labels});
    let platform = json!({"platform": {"architecture": architecture(), "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": version()}});
    let image = layout.manifest(&image, &platform)?;

    let empty = layout.blob("application/vnd.oci.empty.v1+json", b"{}")?;
    let sbom_blob = layout.blob(SBOM, sbom(packages).to_string().as_bytes())?;
    let referrer = json!({"schemaVersion": 2, "mediaType": oci::MANIFEST, "artifactType": SBOM, "config": empty, "layers": [sbom_blob], "subject": image});
    layout.manifest(&referrer, &json!({"artifactType": SBOM}))?;
    layout.finish()?;
    Ok(image["digest"].as_str().unwrap_or_default().to_owned())
}

/// The packages of the program.
pub(crate) fn packages() -> Result<Vec<Value>> {
    let output = outside::command("cargo")
        .args(["metadata", "--format-version=1", "--locked"])
        .current_dir(root())
        .output()
        .context("failed to start cargo")?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("failed to parse the output of cargo metadata")?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

/// An SBOM in SPDX 2.3, without its creation time, so that it is reproducible.
pub(crate) fn sbom(packages: &[Value]) -> Value {
    let field_text =
        |package: &Value, field: &str| package[field].as_str().unwrap_or("NOASSERTION").to_owned();
    let mut rows: Vec<Value> = packages
        .iter()
        .map(|package| {
            let (name, version) = (field_text(package, "name"), field_text(package, "version"));
            let purl = format!("pkg:cargo/{name}@{version}");
            json!({"SPDXID": format!("SPDXRef-{name}-{version}").replace(['_', '+'], "-"), "name": name, "versionInfo": version,
                "downloadLocation": "NOASSERTION", // the purl identifies the package, wherever it was fetched from
                "licenseDeclared": field_text(package, "license").replace('/', " OR "),
                "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]})
        })
        .collect();
    rows.sort_by_key(|row| row["SPDXID"].as_str().unwrap_or_default().to_owned());
    json!({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": format!("polis-{}", version()),
        "documentNamespace": format!("https://polis.invalid/spdx/polis-{}", version()),
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: cargo xtask image"]}, "packages": rows})
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::oci::reading;

    pub(crate) fn mk_packages() -> Vec<Value> {
        vec![
            json!({"name": "b", "version": "1.0.0", "license": "MIT/Apache-2.0", "source": "registry"}),
            json!({"name": "a", "version": "0.1.0", "license": "MIT", "source": null}),
        ]
    }

    /// A small static program that resolves a name.
    pub(crate) fn mk_program(dir: &Path) -> Vec<u8> {
        let source = r#"
            use std::net::ToSocketAddrs;
            fn main() {
                let name = std::env::args().nth(1).expect("a name");
                let mut found = (name.as_str(), 443).to_socket_addrs().expect("it is found");
                println!("{name} is {}", found.next().expect("an address").ip());
            }"#;
        fs::write(dir.join("main.rs"), source).unwrap();
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let built = Command::new(rustc)
            .args(["--edition=2024", "-C", STATIC, "-o", "program", "main.rs"])
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        fs::read(dir.join("program")).unwrap()
    }

    #[test]
    fn a_program_runs_from_the_unpacked_image_in_an_empty_root() {
        let dir = tempfile::tempdir().unwrap();
        let (image, unpacked) = (dir.path().join("image"), dir.path().join("root"));
        let program = mk_program(dir.path());
        assert!(is_static(&program));
        let digest = write(&image, program, &mk_packages()).unwrap();

        let listed = &reading::index(&image)["manifests"][0];
        assert_eq!(listed["digest"], digest.as_str());
        let manifest: Value = serde_json::from_slice(&reading::blob(&image, listed)).unwrap();
        let config: Value = serde_json::from_slice(&reading::blob(&image, &manifest["config"])).unwrap();
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 1);
        let mut layer = Vec::new();
        let packed = reading::blob(&image, &layers[0]);
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], oci::digest(&layer).as_str());
        assert_eq!(config["config"]["User"], USER);

        assert_eq!(unpack(&image, &unpacked).unwrap(), config);
        let entry = config["config"]["Entrypoint"][0].as_str().unwrap();
        let file = unpacked.join(entry.trim_start_matches('/'));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(reading::files(&unpacked).len(), 1, "only the program");
        // The kubelet mounts this file.
        fs::create_dir(unpacked.join("etc")).unwrap();
        fs::write(unpacked.join("etc/hosts"), "127.0.0.7 hub.example\n").unwrap();
        let output = chroot(&unpacked, entry).arg("hub.example").output().unwrap();
        let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        assert_eq!(text, "hub.example is 127.0.0.7\n");
        // The program is not polis, and the check reports that.
        assert!(try_out(&image).unwrap_err().to_string().contains("does not print version"));
    }

    #[test]
    fn the_same_program_gives_a_byte_identical_image() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut other_order = mk_packages();
        other_order.reverse();
        let first = write(one.path(), b"program".to_vec(), &mk_packages()).unwrap();
        let second = write(two.path(), b"program".to_vec(), &other_order).unwrap();
        assert_eq!(first, second);
        let strip = |dir: &Path| -> Vec<(PathBuf, Vec<u8>)> {
            let files = reading::files(dir).into_iter();
            files.map(|(path, text)| (path.strip_prefix(dir).unwrap().to_owned(), text)).collect()
        };
        assert_eq!(strip(one.path()), strip(two.path()));
        assert_ne!(first, write(two.path(), b"another".to_vec(), &mk_packages()).unwrap());
    }

    #[test]
    fn the_sbom_refers_to_the_image_and_lists_every_package() {
        let dir = tempfile::tempdir().unwrap();
        let image = write(dir.path(), b"program".to_vec(), &mk_packages()).unwrap();
        let index = reading::index(dir.path());
        let referrer: Value =
            serde_json::from_slice(&reading::blob(dir.path(), &index["manifests"][1])).unwrap();
        assert_eq!(referrer["subject"]["digest"], image.as_str());
        let sbom_blob: Value =
            serde_json::from_slice(&reading::blob(dir.path(), &referrer["layers"][0])).unwrap();
        let named: Vec<&str> = sbom_blob["packages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["name"].as_str().unwrap())
            .collect();
        assert_eq!(named, ["a", "b"]);
        assert_eq!(sbom_blob["packages"][1]["licenseDeclared"], "MIT OR Apache-2.0");
    }

    #[test]
    fn a_program_that_loads_libraries_is_distinguished_from_a_static_one() {
        let mut elf = vec![0; 64 + 2 * 56];
        elf[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        (elf[32], elf[54], elf[56]) = (64, 56, 2);
        (elf[64], elf[64 + 56]) = (1, 2);
        assert!(is_static(&elf));
        elf[64 + 56] = 3;
        assert!(!is_static(&elf), "it has an interpreter");
        assert!(!is_static(b"#!/bin/sh"));
        assert!(!is_static(&elf[..70]), "it is truncated");
    }
}
