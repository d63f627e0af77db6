//! Indexes, manifests and configurations of images, as far as they are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ImageError;
use super::reference::Digest;

/// Media types that a registry may answer with.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";
/// An overlay of the kernel has a limited number of layers.
const MAX_LAYERS: usize = 120;

/// An index or a manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Manifest {
    /// Of an index.
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
}

/// A reference to content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Descriptor {
    media_type: String,
    digest: String,
    pub(super) size: u64,
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Platform {
    os: String,
    architecture: String,
}

/// What a manifest refers to.
pub(super) enum Content {
    /// The manifest of this platform.
    Index(Digest),
    Image {
        config: (Digest, u64),
        layers: Vec<(Digest, u64)>,
    },
}

/// The architecture of this machine, in the words of images.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Manifest {
    /// What the manifest refers to, on this platform.
    pub(super) fn content(&self) -> Result<Content, ImageError> {
        if let Some(config) = &self.config {
            if self.layers.len() > MAX_LAYERS {
                let count = self.layers.len();
                return Err(ImageError::new(format!(
                    "it has {count} layers, and at most {MAX_LAYERS} can be mounted"
                )));
            }
            if let Some(layer) = self.layers.iter().find(|layer| layer.media_type.ends_with("zstd")) {
                let media = &layer.media_type;
                return Err(ImageError::new(format!(
                    "a layer has the media type {media}; use layers compressed with gzip"
                )));
            }
            let layers = self.layers.iter().map(Descriptor::content).collect::<Result<_, _>>()?;
            return Ok(Content::Image { config: config.content()?, layers });
        }
        let here = |descriptor: &&Descriptor| {
            let platform = descriptor.platform.as_ref();
            platform.is_some_and(|platform| platform.os == "linux" && platform.architecture == architecture())
        };
        match self.manifests.iter().find(here) {
            Some(descriptor) => Ok(Content::Index(descriptor.content()?.0)),
            None if self.manifests.is_empty() => {
                Err(ImageError::new("its manifest has neither layers nor platforms"))
            }
            None => {
                let platforms = self.manifests.iter().filter_map(|manifest| manifest.platform.as_ref());
                let platforms: Vec<_> = platforms.map(|p| format!("{}/{}", p.os, p.architecture)).collect();
                Err(ImageError::new(format!(
                    "it has no variant for linux/{}; it has {}",
                    architecture(),
                    platforms.join(", ")
                )))
            }
        }
    }
}

impl Descriptor {
    fn content(&self) -> Result<(Digest, u64), ImageError> {
        let digest = Digest::parse(&self.digest).ok_or_else(|| {
            ImageError::new(format!("its manifest has the digest {:?}, which is not SHA-256", self.digest))
        })?;
        Ok((digest, self.size))
    }
}

/// The configuration of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ImageFile {
    pub(super) os: String,
    pub(super) architecture: String,
    pub(super) config: Option<ImageConfig>,
    pub(super) rootfs: RootFs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RootFs {
    pub(super) diff_ids: Vec<String>,
}

/// How the programs of an image start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ImageConfig {
    pub(crate) user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    pub(crate) working_dir: Option<String>,
    stop_signal: Option<String>,
}

impl ImageConfig {
    /// The variables of the image.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let pairs = self.env.iter().flatten().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Program and arguments: `command` replaces the entry point and its arguments, `args` the arguments.
    pub(crate) fn command_line(
        &self,
        command: &[String],
        args: &[String],
    ) -> Result<Vec<String>, ImageError> {
        let own = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
        let line = match (command.is_empty(), args.is_empty()) {
            (false, _) => [command, args].concat(),
            (true, false) => [own(&self.entrypoint), args.to_vec()].concat(),
            (true, true) => [own(&self.entrypoint), own(&self.cmd)].concat(),
        };
        if line.first().is_none_or(String::is_empty) {
            return Err(ImageError::new("it has no entry point; set command"));
        }
        Ok(line)
    }

    /// The signal that asks the program to stop.
    pub(crate) fn stop_signal(&self) -> Option<&str> {
        self.stop_signal.as_deref().filter(|signal| !signal.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    fn content(manifest: serde_json::Value) -> Result<Content, String> {
        serde_json::from_value::<Manifest>(manifest).unwrap().content().map_err(|error| error.to_string())
    }

    #[test]
    fn an_index_leads_to_the_manifest_of_this_platform() {
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let platform = |os: &str, architecture: &str, digit: &str| json!({"digest": digest(digit), "size": 1, "platform": {"os": os, "architecture": architecture}});
        let own = architecture();
        let index = json!({"manifests": [platform("windows", own, "1"), platform("linux", own, "2"), platform("linux", "s390x", "3")]});
        let Ok(Content::Index(found)) = content(index) else { panic!() };
        assert_eq!(found.to_string(), digest("2"));
        let foreign = content(json!({"manifests": [platform("linux", "s390x", "3")]})).map(drop).unwrap_err();
        assert!(foreign.contains("no variant for linux/") && foreign.contains("linux/s390x"), "{foreign}");
    }

    #[test]
    fn a_manifest_that_cannot_be_mounted_is_refused() {
        let layer = json!({"digest": format!("sha256:{}", "1".repeat(64)), "size": 1});
        let many = json!({"config": layer, "layers": vec![layer.clone(); 10_000]});
        assert!(content(many).map(drop).unwrap_err().contains("10000 layers"));
        assert!(content(json!({})).map(drop).unwrap_err().contains("neither layers nor platforms"));
        let lying = json!({"config": {"digest": "sha256:../../x"}, "layers": []});
        assert!(content(lying).map(drop).unwrap_err().contains("not SHA-256"));
    }

    #[test]
    fn command_and_args_override_the_image_as_in_kubernetes() {
        let config: ImageConfig =
            serde_json::from_value(json!({"Entrypoint": ["/app"], "Cmd": ["serve"], "Env": ["A=b=c", "X"]}))
                .unwrap();
        let line = |command: &[&str], args: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
            config.command_line(&owned(command), &owned(args)).unwrap().join(" ")
        };
        assert_eq!(line(&[], &[]), "/app serve");
        assert_eq!(line(&[], &["-v"]), "/app -v");
        assert_eq!(line(&["sh"], &[]), "sh");
        assert_eq!(line(&["sh"], &["-c"]), "sh -c");
        assert_eq!(config.environment(), [("A".to_owned(), "b=c".to_owned())].into());
        assert!(
            ImageConfig::default().command_line(&[], &[]).unwrap_err().to_string().contains("no entry point")
        );
    }
}
