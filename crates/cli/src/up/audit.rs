//! The audit log of the API server of `polis up`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polis_apimachinery::audit::{AuditLevel, AuditPolicy};
use polis_apiserver::{Audit, AuditFile, CONTROLLERS};

/// File name in the data directory.
pub const FILE: &str = "audit.log";

/// Flags of the audit log.
#[derive(Clone, Debug, clap::Args)]
pub struct AuditFlags {
    /// What audit events contain: None (no audit log), Metadata, Request or RequestResponse. Bodies of
    /// Secrets and tokens are never recorded at this level
    #[arg(long, value_name = "LEVEL", default_value = "Metadata", value_parser = str::parse::<AuditLevel>)]
    pub audit_level: AuditLevel,
    /// Audit policy (kind Policy of audit.k8s.io/v1) instead of the default one: writes, refusals and reads
    /// of Secrets
    #[arg(long, value_name = "FILE", conflicts_with = "audit_level")]
    pub audit_policy_file: Option<PathBuf>,
    /// Audit log [default: audit.log in the data directory]
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Size in MiB at which the audit log is rotated
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub audit_log_maxsize: u64,
    /// Rotated files of the audit log to keep
    #[arg(long, value_name = "COUNT", default_value_t = 7, value_parser = clap::value_parser!(u16).range(0..=999))]
    pub audit_log_maxbackup: u16,
}

impl AuditFlags {
    /// Opens the audit log; `None` if it is off. `data` is the data directory.
    pub fn open(&self, data: &Path) -> Result<Option<Audit>> {
        let policy = match &self.audit_policy_file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("failed to read the audit policy {}", path.display()))?;
                AuditPolicy::parse(&text).with_context(|| format!("failed to use {}", path.display()))?
            }
            None if self.audit_level == AuditLevel::None => return Ok(None),
            None => AuditPolicy::standard(self.audit_level, CONTROLLERS),
        };
        let path = self.audit_log_path.clone().unwrap_or_else(|| data.join(FILE));
        let file = AuditFile {
            path,
            max_bytes: self.audit_log_maxsize << 20,
            max_backups: usize::from(self.audit_log_maxbackup),
        };
        Ok(Some(Audit::to_file(policy, file)?))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: AuditFlags,
    }

    fn parse(args: &[&str]) -> Result<AuditFlags, clap::Error> {
        Line::try_parse_from([&["up"], args].concat()).map(|line| line.flags)
    }

    #[test]
    fn audit_is_on_by_default_and_the_level_none_switches_it_off() {
        let folder = tempfile::tempdir().unwrap();
        assert!(parse(&["--audit-level", "none"]).unwrap().open(folder.path()).unwrap().is_none());
        assert!(!folder.path().join(FILE).exists());
        assert!(parse(&[]).unwrap().open(folder.path()).unwrap().is_some());
        assert!(folder.path().join(FILE).exists());
        assert!(parse(&["--audit-level", "all"]).err().unwrap().to_string().contains("RequestResponse"));
    }

    #[test]
    fn an_audit_policy_that_is_not_valid_is_refused_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        let flags = parse(&["--audit-policy-file", path.to_str().unwrap()]).unwrap();
        let error = |flags: &AuditFlags| format!("{:#}", flags.open(folder.path()).err().unwrap());
        assert!(error(&flags).contains("policy.yaml"));
        std::fs::write(&path, "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: []}").unwrap();
        assert!(error(&flags).contains("policy.yaml") && error(&flags).contains("no rules"));
        std::fs::write(&path, "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}")
            .unwrap();
        assert!(flags.open(folder.path()).unwrap().is_some());
    }
}
