//! The keys that encrypt Secrets in the store of `polis up`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use polis_apiserver::EncryptionKeys;

/// File name in the data directory.
pub const FILE: &str = "secrets.key";

/// Flags of the encryption at rest.
#[derive(Clone, Debug, clap::Args)]
pub struct EncryptionFlags {
    /// File with the keys that encrypt Secrets in the store; created if it does not exist [default:
    /// secrets.key in the data directory]
    #[arg(long, value_name = "FILE", conflicts_with = "ephemeral")]
    pub encryption_key_file: Option<PathBuf>,
    /// Add a new key at this start, and encrypt every Secret with it
    #[arg(long, conflicts_with = "ephemeral")]
    pub rotate_encryption_key: bool,
}

impl EncryptionFlags {
    /// Reads the keys. The first start creates them. `data` is the data directory.
    pub fn keys(&self, data: &Path) -> Result<EncryptionKeys> {
        let path = self.encryption_key_file.clone().unwrap_or_else(|| data.join(FILE));
        Ok(match self.rotate_encryption_key {
            true => EncryptionKeys::rotate(&path)?,
            false => EncryptionKeys::load_or_create(&path)?,
        })
    }
}
