//! The name of an image: `[registry/]repository[:tag][@digest]`.

use std::fmt;

use super::ImageError;

/// The registry of names without one, and its address.
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_ADDRESS: &str = "registry-1.docker.io";
/// The folder of Docker Hub's own images.
const DEFAULT_FOLDER: &str = "library";
const DEFAULT_TAG: &str = "latest";

/// A parsed name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    /// Host and port of the registry.
    pub(super) registry: String,
    pub(super) repository: String,
    pub(super) tag: Option<String>,
    pub(super) digest: Option<Digest>,
}

/// A SHA-256 digest, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digest(String);

impl Digest {
    /// Parses `sha256:<64 digits>`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(plain)).then(|| Digest(hex.to_owned()))
    }

    /// The digest of some bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        use sha2::{Digest as _, Sha256};
        Digest::from_hash(&Sha256::digest(bytes))
    }

    pub(super) fn from_hash(hash: &[u8]) -> Self {
        Digest(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The hexadecimal digits.
    pub(super) fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl Reference {
    /// Parses the name of an image.
    pub(super) fn parse(name: &str) -> Result<Self, ImageError> {
        let wrong = |why: &str| {
            ImageError::new(format!(
                "{name:?} is not the name of an image: {why}; use [registry/]repository[:tag]"
            ))
        };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (
                rest,
                Some(Digest::parse(digest).ok_or_else(|| wrong("the digest is not sha256 with 64 digits"))?),
            ),
            None => (name, None),
        };
        let (registry, path) = match rest.split_once('/') {
            Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path),
            _ => (DEFAULT_REGISTRY, rest),
        };
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (path, None),
        };
        let host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        let start = registry.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[');
        if !start || !registry.bytes().all(host) {
            return Err(wrong("the registry is not a host"));
        }
        if path.len() > 255 || !path.split('/').all(is_component) {
            return Err(wrong("the repository has other characters than a-z, 0-9, and . _ - / between them"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("the tag has other characters than letters, digits, and . _ -"));
        }
        let repository = match registry {
            DEFAULT_REGISTRY if !path.contains('/') => format!("{DEFAULT_FOLDER}/{path}"),
            _ => path.to_owned(),
        };
        let tag = tag.map(str::to_owned).or_else(|| digest.is_none().then(|| DEFAULT_TAG.to_owned()));
        Ok(Reference { registry: registry.to_owned(), repository, tag, digest })
    }

    /// The tag or digest under which the registry has the manifest.
    pub(super) fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// The address of the registry.
    pub(super) fn address(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_ADDRESS } else { &self.registry }
    }

    /// Whether the name always means the newest image.
    pub(super) fn is_latest(&self) -> bool {
        self.digest.is_none() && self.tag.as_deref() == Some(DEFAULT_TAG)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

fn is_component(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.into_iter().all(|byte| byte.is_some_and(alphanumeric))
        && text.bytes().all(|byte| alphanumeric(byte) || b"._-".contains(&byte))
        && !text.contains("..")
}

fn is_tag(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    first
        && text.len() <= 128
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_by_docker() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let table = [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.29", "docker.io/library/nginx:1.29"),
            ("acme/shop", "docker.io/acme/shop:latest"),
            ("ghcr.io/acme/shop:v1", "ghcr.io/acme/shop:v1"),
            ("localhost/shop", "localhost/shop:latest"),
            ("127.0.0.1:5000/a/b:c", "127.0.0.1:5000/a/b:c"),
            (&format!("nginx@{digest}"), &format!("docker.io/library/nginx@{digest}")),
        ];
        for (name, full) in table {
            assert_eq!(Reference::parse(name).unwrap().to_string(), full);
        }
        assert_eq!(Reference::parse("nginx").unwrap().address(), "registry-1.docker.io");
        assert!(Reference::parse("nginx").unwrap().is_latest());
        assert!(!Reference::parse("nginx:1").unwrap().is_latest());
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        for name in
            ["", "UPPER", "a//b", "../etc", "a b", "nginx:", "nginx:a/b:c d", "a@sha256:12", "ex ample.org/a"]
        {
            let error = Reference::parse(name).unwrap_err().to_string();
            assert!(error.contains("is not the name of an image"), "{name}: {error}");
        }
    }
}
