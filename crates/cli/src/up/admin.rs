//! The kubeconfig of the administrator, and the renewal of its client certificate.
//!
//! The certificate is valid for a day. While `polis up` runs it writes the kubeconfig again with a new
//! certificate when two thirds of the day have passed, and when the certificate is revoked. The file is
//! replaced atomically, and kubectl and `polis` read it for each command.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use polis_apiserver::{MASTERS, Server};
use polis_tls::{Authority, Certificate};

use super::data;
use super::kubeconfig::{self, ContextEntry};

/// Validity of the client certificate.
pub const VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Longest wait between two looks at the clock. The timers of the process stand still while a laptop sleeps,
/// and the certificate ends meanwhile.
const CLOCK_CHECK: Duration = Duration::from_secs(60);
/// The resolution of the times in a certificate: one that is issued within it after a revocation counts as
/// issued before.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The kubeconfig of the administrator.
pub struct AdminKubeconfig {
    pub server: Server,
    pub authority: Arc<Authority>,
    /// URL of the API server.
    pub url: String,
    pub entries: Vec<ContextEntry>,
    /// The file.
    pub path: PathBuf,
    /// The user's own kubeconfig, with `--merge-kubeconfig`.
    pub merge_into: Option<PathBuf>,
    pub validity: Duration,
}

impl AdminKubeconfig {
    /// Writes the kubeconfig with a new client certificate.
    pub async fn write(&self) -> Result<Certificate> {
        let client = self.authority.client_for("polis-admin", &[MASTERS], self.validity)?;
        self.server.record_certificate(&client.cert).await?;
        let text = kubeconfig::render(&self.url, self.authority.pem(), &client, &self.entries);
        data::write_private(&self.path, &text)
            .with_context(|| format!("failed to write {}", self.path.display()))?;
        if let Some(own) = &self.merge_into {
            kubeconfig::merge(&text, own)?;
        }
        Ok(client)
    }

    /// Writes the kubeconfig again before the certificate ends, and after it is revoked. Never returns.
    pub async fn keep_valid(self, mut client: Certificate) {
        let mut revocations = self.server.revocations();
        let mut due = self.next_renewal();
        loop {
            let left = Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default();
            let valid = self.server.accepts_certificate(&client.cert);
            if valid && !left.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(left.min(CLOCK_CHECK)) => {}
                    _ = revocations.changed() => {}
                }
                continue;
            }
            if !valid {
                tokio::time::sleep(RESOLUTION).await;
            }
            match self.write().await {
                Ok(renewed) => {
                    client = renewed;
                    due = self.next_renewal();
                }
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "failed to renew the client certificate of the kubeconfig; retrying in {} s",
                        CLOCK_CHECK.as_secs()
                    );
                    tokio::time::sleep(CLOCK_CHECK).await;
                }
            }
        }
    }

    fn next_renewal(&self) -> Timestamp {
        Timestamp::now() + self.validity * 2 / 3
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polis_apiserver::Revocation;
    use polis_testing::eventually;

    use super::*;

    async fn mk_kubeconfig(folder: &std::path::Path, validity: Duration) -> AdminKubeconfig {
        AdminKubeconfig {
            server: Server::builder().build().await.unwrap(),
            authority: Arc::new(Authority::new().unwrap()),
            url: "https://127.0.0.1:7443".to_owned(),
            entries: kubeconfig::entries(&["default".to_owned()], &[], true),
            path: folder.join("kubeconfig"),
            merge_into: Some(folder.join("own")),
            validity,
        }
    }

    /// Waits until both files differ from `before`, and returns the first.
    async fn renewed(folder: &std::path::Path, before: &str) -> String {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        eventually("the kubeconfig has another certificate", || async {
            (read("kubeconfig") != before && read("own") == read("kubeconfig")).then(|| read("kubeconfig"))
        })
        .await
    }

    #[tokio::test]
    async fn the_certificate_is_renewed_before_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = mk_kubeconfig(folder.path(), Duration::from_secs(3)).await;
        let server = kubeconfig.server.clone();
        let client = kubeconfig.write().await.unwrap();
        let first = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
        let task = tokio::spawn(kubeconfig.keep_valid(client.clone()));
        renewed(folder.path(), &first).await;
        assert!(server.accepts_certificate(&client.cert), "the first certificate is still valid");
        task.abort();
    }

    #[tokio::test]
    async fn a_revoked_certificate_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = mk_kubeconfig(folder.path(), VALIDITY).await;
        let server = kubeconfig.server.clone();
        let client = kubeconfig.write().await.unwrap();
        let first = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
        let task = tokio::spawn(kubeconfig.keep_valid(client.clone()));
        let ended = server.revoke(&Revocation::Subject("polis-admin".to_owned())).await.unwrap();
        assert_eq!(ended.len(), 1);
        renewed(folder.path(), &first).await;
        assert!(!server.accepts_certificate(&client.cert));
        assert_eq!(server.credentials().len(), 1, "the new certificate is valid and listed");
        task.abort();
    }
}
