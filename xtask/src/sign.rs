//! Signatures in the formats of sigstore, with a local key and without a service: ECDSA on P-256 with
//! SHA-256.
//!
//! - Each manifest of an OCI layout gets an artifact `sha256-<digest>.sig` with a simple signing payload,
//!   which `cosign verify --key` reads after a push.
//! - A file gets `<file>.sigstore.json`, a bundle of version 0.3, which `cosign verify-blob` reads.
//!
//! `cargo xtask image --verify`, `bundle --verify` and `sign --verify` check both without cosign. The key is
//! PKCS#8 in PEM; `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` makes one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
    },
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::oci::{self, Layout};

/// Media type of a simple signing payload.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation of a payload: the signature in base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Annotation of an entry of the index: its name.
const NAME: &str = "org.opencontainers.image.ref.name";
/// `type` of a simple signing payload.
const PAYLOAD_TYPE: &str = "cosign container image signature";
/// Media type of the bundle of a file.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// The SubjectPublicKeyInfo of a P-256 key before its point.
const SPKI_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Private key (PKCS#8 in PEM), or with --verify the public key (PEM).
    #[arg(long, value_name = "FILE", env = "POLIS_SIGN_KEY")]
    key: PathBuf,
    /// Check the signatures of the files instead.
    #[arg(long)]
    verify: bool,
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// The flags of tasks that write an OCI layout.
#[derive(clap::Args)]
pub(crate) struct LayoutArgs {
    /// Sign the layout with this private key (PKCS#8 in PEM).
    #[arg(long, value_name = "FILE", env = "POLIS_SIGN_KEY")]
    sign_key: Option<PathBuf>,
    /// Build nothing; check the existing layout with this public key (PEM).
    #[arg(long, value_name = "FILE", conflicts_with = "sign_key")]
    verify: Option<PathBuf>,
}

impl LayoutArgs {
    /// With `--verify`, checks the layout and returns true.
    pub(crate) fn verifies(&self, layout: &Path) -> Result<bool> {
        let Some(path) = &self.verify else { return Ok(false) };
        let count = verify_layout(layout, &PublicKey::load(path)?)?;
        println!("{}: {count} signed manifests, all verified", layout.display());
        Ok(true)
    }

    /// With `--sign-key`, signs the layout.
    pub(crate) fn sign(&self, layout: &Path) -> Result<()> {
        let Some(path) = &self.sign_key else { return Ok(()) };
        let key = SigningKey::load(path)?;
        sign_layout(layout, &key)?;
        println!("signed; check it with this public key:\n{}", key.public().to_pem().trim_end());
        Ok(())
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.verify {
        let key = PublicKey::load(&args.key)?;
        for file in &args.files {
            verify_file(file, &key)?;
            println!("{}: verified", file.display());
        }
        return Ok(());
    }
    let key = SigningKey::load(&args.key)?;
    for file in &args.files {
        println!("{}", sign_file(file, &key)?.display());
    }
    Ok(())
}

/// A private key.
pub(crate) struct SigningKey(EcdsaKeyPair);

impl SigningKey {
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("failed to use the key {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let der = pem(text, "PRIVATE KEY")?;
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &SystemRandom::new())
            .map(Self)
            .map_err(|error| anyhow!("it is not a P-256 key in PKCS#8: {error}"))
    }

    pub(crate) fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key().as_ref().to_vec())
    }

    /// The signature, in base64.
    fn sign(&self, content: &[u8]) -> Result<String> {
        let signed = self.0.sign(&SystemRandom::new(), content);
        Ok(STANDARD.encode(signed.map_err(|_| anyhow!("failed to sign: no random numbers"))?))
    }
}

/// The point of a public key.
pub(crate) struct PublicKey(Vec<u8>);

impl PublicKey {
    fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("failed to use the key {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let der = pem(text, "PUBLIC KEY")?;
        let point = der.strip_prefix(&SPKI_HEAD).filter(|point| point.len() == 65);
        Ok(Self(point.context("it is not a public key on P-256")?.to_vec()))
    }

    fn to_der(&self) -> Vec<u8> {
        [&SPKI_HEAD[..], &self.0].concat()
    }

    fn to_pem(&self) -> String {
        let text = STANDARD.encode(self.to_der());
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
    }

    /// Checks a signature in base64.
    fn verify(&self, content: &[u8], signature: &str) -> Result<()> {
        let signature = STANDARD.decode(signature).context("the signature is not base64")?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.0)
            .verify(content, &signature)
            .map_err(|_| anyhow!("the signature is not valid for this key and content"))
    }
}

/// The content of the first PEM block with a label.
fn pem(text: &str, label: &str) -> Result<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let block = text.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    let (block, _) = block.with_context(|| format!("it has no PEM block {label}"))?;
    let base64: String = block.split_whitespace().collect();
    STANDARD.decode(base64).with_context(|| format!("its PEM block {label} is not base64"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The name of the signature of a manifest, as cosign looks it up in a registry.
fn signature_name(digest: &str) -> String {
    format!("{}.sig", digest.replacen(':', "-", 1))
}

fn is_signature(listed: &Value) -> bool {
    text(&listed["annotations"], NAME).ends_with(".sig")
}

/// Signs every manifest of a layout.
pub(crate) fn sign_layout(dir: &Path, key: &SigningKey) -> Result<()> {
    let mut layout = Layout::open(dir)?;
    for listed in oci::manifests(dir)?.iter().filter(|listed| !is_signature(listed)) {
        let digest = text(listed, "digest");
        let payload = json!({"critical": {"identity": {"docker-reference": ""},
            "image": {"docker-manifest-digest": digest}, "type": PAYLOAD_TYPE}, "optional": null});
        let payload = payload.to_string();
        let mut layer = layout.blob(PAYLOAD, payload.as_bytes())?;
        layer["annotations"] = json!({SIGNATURE: key.sign(payload.as_bytes())?});
        let config = json!({"architecture": "", "os": "", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [oci::digest(payload.as_bytes())]}});
        let config =
            layout.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let manifest =
            json!({"schemaVersion": 2, "mediaType": oci::MANIFEST, "config": config, "layers": [layer]});
        layout.manifest(&manifest, &json!({"annotations": {NAME: signature_name(digest)}}))?;
    }
    layout.finish()
}

/// Checks the blobs and signatures of every manifest of a layout; returns how many it has.
pub(crate) fn verify_layout(dir: &Path, key: &PublicKey) -> Result<usize> {
    let listed = oci::manifests(dir)?;
    let signed: Vec<&Value> = listed.iter().filter(|listed| !is_signature(listed)).collect();
    if signed.is_empty() {
        bail!("{} has no manifests", dir.display());
    }
    for entry in &signed {
        let digest = text(entry, "digest");
        let name = signature_name(digest);
        let found = listed.iter().find(|other| text(&other["annotations"], NAME) == name);
        let found = found.with_context(|| format!("{digest} has no signature in {}", dir.display()))?;
        let manifest: Value = serde_json::from_slice(&oci::blob(dir, found)?)?;
        let layers = manifest["layers"].as_array().map_or(&[][..], Vec::as_slice);
        let valid = layers.iter().any(|layer| verify_payload(dir, layer, digest, key).is_ok());
        if !valid {
            bail!("{digest} has no valid signature of this key in {}", dir.display());
        }
        let content: Value = serde_json::from_slice(&oci::blob(dir, entry)?)?;
        let layers = content["layers"].as_array().into_iter().flatten();
        for blob in layers.chain([&content["config"]]) {
            oci::blob(dir, blob)?;
        }
    }
    Ok(signed.len())
}

/// Checks one payload of a signature: what it says, and that the key signed it.
fn verify_payload(dir: &Path, layer: &Value, digest: &str, key: &PublicKey) -> Result<()> {
    if text(layer, "mediaType") != PAYLOAD {
        bail!("it is not a simple signing payload");
    }
    let payload = oci::blob(dir, layer)?;
    key.verify(&payload, text(&layer["annotations"], SIGNATURE))?;
    let claims: Value = serde_json::from_slice(&payload)?;
    let critical = &claims["critical"];
    if text(&critical["image"], "docker-manifest-digest") != digest || text(critical, "type") != PAYLOAD_TYPE
    {
        bail!("it signs something else");
    }
    Ok(())
}

fn bundle_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".sigstore.json");
    name.into()
}

/// Writes the bundle of a file; returns its path.
pub(crate) fn sign_file(file: &Path, key: &SigningKey) -> Result<PathBuf> {
    let content = fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let hint = STANDARD.encode(Sha256::digest(key.public().to_der()));
    let bundle = json!({
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "messageSignature": {
            "messageDigest": {"algorithm": "SHA2_256", "digest": STANDARD.encode(Sha256::digest(&content))},
            "signature": key.sign(&content)?,
        },
    });
    let path = bundle_path(file);
    fs::write(&path, bundle.to_string()).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

/// Checks a file against its bundle.
pub(crate) fn verify_file(file: &Path, key: &PublicKey) -> Result<()> {
    let path = bundle_path(file);
    let read = |path: &Path| fs::read(path).with_context(|| format!("failed to read {}", path.display()));
    let bundle: Value = serde_json::from_slice(&read(&path)?)
        .with_context(|| format!("{} is not a sigstore bundle", path.display()))?;
    if text(&bundle, "mediaType") != BUNDLE {
        bail!("{} is not a sigstore bundle of version 0.3", path.display());
    }
    key.verify(&read(file)?, text(&bundle["messageSignature"], "signature"))
        .with_context(|| format!("failed to verify {}", file.display()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::oci::reading;

    fn mk_pem() -> String {
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
        let der = made.unwrap();
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der.as_ref()))
    }

    pub(crate) fn mk_key() -> SigningKey {
        SigningKey::parse(&mk_pem()).unwrap()
    }

    /// A layout with two manifests.
    fn mk_layout(dir: &Path) {
        let mut layout = Layout::create(dir).unwrap();
        for name in ["one", "two"] {
            let config = layout.blob("application/vnd.oci.empty.v1+json", b"{}").unwrap();
            let layer = layout.blob("text/plain", name.as_bytes()).unwrap();
            let manifest =
                json!({"schemaVersion": 2, "mediaType": oci::MANIFEST, "config": config, "layers": [layer]});
            layout.manifest(&manifest, &json!({"annotations": {NAME: name}})).unwrap();
        }
        layout.finish().unwrap();
    }

    #[test]
    fn a_signed_layout_verifies_with_its_key_only() {
        let dir = tempfile::tempdir().unwrap();
        mk_layout(dir.path());
        let key = mk_key();
        let error = verify_layout(dir.path(), &key.public()).unwrap_err().to_string();
        assert!(error.contains("has no signature"), "{error}");
        sign_layout(dir.path(), &key).unwrap();
        assert_eq!(verify_layout(dir.path(), &key.public()).unwrap(), 2);
        let error = verify_layout(dir.path(), &mk_key().public()).unwrap_err().to_string();
        assert!(error.contains("no valid signature of this key"), "{error}");
        // Signing again adds nothing that is signed in turn.
        sign_layout(dir.path(), &key).unwrap();
        assert_eq!(verify_layout(dir.path(), &key.public()).unwrap(), 2);
    }

    #[test]
    fn a_signature_has_the_form_that_cosign_reads() {
        let dir = tempfile::tempdir().unwrap();
        mk_layout(dir.path());
        sign_layout(dir.path(), &mk_key()).unwrap();
        let index = reading::index(dir.path());
        let digest = index["manifests"][0]["digest"].as_str().unwrap();
        let listed = &index["manifests"][2];
        assert_eq!(listed["annotations"][NAME], format!("sha256-{}.sig", &digest["sha256:".len()..]));
        let manifest: Value = serde_json::from_slice(&reading::blob(dir.path(), listed)).unwrap();
        let layer = &manifest["layers"][0];
        assert_eq!(layer["mediaType"], "application/vnd.dev.cosign.simplesigning.v1+json");
        let payload = String::from_utf8(reading::blob(dir.path(), layer)).unwrap();
        assert_eq!(
            payload,
            format!(
                "{{\"critical\":{{\"identity\":{{\"docker-reference\":\"\"}},\"image\":{{\"docker-manifest-digest\":\"{digest}\"}},\"type\":\"cosign container image signature\"}},\"optional\":null}}"
            )
        );
    }

    #[test]
    fn a_changed_manifest_blob_or_payload_does_not_verify() {
        let key = mk_key();
        for change in ["layer", "manifest", "swapped signatures"] {
            let dir = tempfile::tempdir().unwrap();
            mk_layout(dir.path());
            sign_layout(dir.path(), &key).unwrap();
            let mut index = reading::index(dir.path());
            match change {
                "layer" => {
                    let path = dir.path().join("blobs").join(oci::digest(b"one").replacen(':', "/", 1));
                    fs::write(path, "two").unwrap();
                }
                "manifest" => {
                    let layout = Layout::open(dir.path()).unwrap();
                    let other = layout.blob(oci::MANIFEST, b"{\"layers\": []}").unwrap();
                    index["manifests"][0]["digest"] = other["digest"].clone();
                    index["manifests"][0]["size"] = other["size"].clone();
                }
                _ => {
                    let name = index["manifests"][2]["annotations"][NAME].clone();
                    index["manifests"][2]["annotations"][NAME] =
                        index["manifests"][3]["annotations"][NAME].clone();
                    index["manifests"][3]["annotations"][NAME] = name;
                }
            }
            fs::write(dir.path().join("index.json"), index.to_string()).unwrap();
            assert!(verify_layout(dir.path(), &key.public()).is_err(), "{change}");
        }
    }

    #[test]
    fn a_signed_file_verifies_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (file, key) = (dir.path().join("polis.tar.gz"), mk_key());
        fs::write(&file, "content").unwrap();
        assert_eq!(sign_file(&file, &key).unwrap(), dir.path().join("polis.tar.gz.sigstore.json"));
        verify_file(&file, &key.public()).unwrap();
        assert!(verify_file(&file, &mk_key().public()).is_err());
        fs::write(&file, "other").unwrap();
        let error = format!("{:#}", verify_file(&file, &key.public()).unwrap_err());
        assert!(error.contains("polis.tar.gz") && error.contains("not valid"), "{error}");
    }

    #[test]
    fn a_public_key_in_pem_is_read_back_and_another_key_is_refused() {
        let key = mk_key();
        let parsed = PublicKey::parse(&key.public().to_pem()).unwrap();
        assert_eq!(parsed.0, key.public().0);
        for (text, cause) in [
            ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", "no PEM block"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "P-256"),
        ] {
            let error = format!("{:#}", SigningKey::parse(text).err().unwrap());
            assert!(error.contains(cause), "{error}");
        }
    }
}
