//! Where the certificate of a server comes from, by the configuration.

use std::path::{Path, PathBuf};

use polis_tls::CertificateFiles;

use super::config::{SecretRef, Tls};

/// Folders below that of temporary files, as programs of Kubernetes have them.
pub(crate) const WEBHOOKS: &str = "k8s-webhook-server/serving-certs";
/// The same for metrics.
pub(crate) const METRICS: &str = "k8s-metrics-server/serving-certs";

/// The files of a certificate. `usual` is their folder where the configuration names none.
pub(crate) fn files(tls: &Tls, usual: &str, client_ca_name: &str) -> CertificateFiles {
    let folder: PathBuf = tls.cert_dir.clone().unwrap_or_else(|| std::env::temp_dir().join(usual));
    let named = |name: &Option<String>, usual: &str| {
        folder.join(name.as_deref().filter(|name| !name.is_empty()).unwrap_or(usual))
    };
    CertificateFiles {
        certificate: named(&tls.cert_name, "tls.crt"),
        key: named(&tls.key_name, "tls.key"),
        clients: Some(client_ca_name).filter(|name| !name.is_empty()).map(|name| folder.join(name)),
    }
}

/// What the server of metrics shows of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Proof<'a> {
    /// The certificate in a Secret.
    Secret(&'a SecretRef),
    /// The certificate in files.
    Files(CertificateFiles),
    /// One that it makes when it starts, and that nobody can check.
    Own,
}

/// What the configuration says, and where it says nothing, what is in the usual folder; one of its own where that is empty.
/// `there` tells whether there is such a file.
pub(crate) fn proof(tls: &Tls, there: impl Fn(&Path) -> bool) -> Proof<'_> {
    if let Some(secret) = &tls.secret_ref {
        return Proof::Secret(secret);
    }
    let files = files(tls, METRICS, "");
    let asked_for = tls.cert_dir.is_some() || tls.cert_name.is_some() || tls.key_name.is_some();
    match asked_for || there(&files.certificate) {
        true => Proof::Files(files),
        false => Proof::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_mounted_secret_are_the_usual_ones() {
        let tls = Tls { cert_dir: Some("/certs".into()), ..Tls::default() };
        let found = files(&tls, WEBHOOKS, "");
        assert_eq!(found, CertificateFiles::within("/certs".as_ref()));
        let tls = Tls { cert_name: Some("a.pem".into()), key_name: Some("a.key".into()), ..tls };
        let found = files(&tls, WEBHOOKS, "ca.pem");
        assert_eq!(found.certificate, PathBuf::from("/certs/a.pem"));
        assert_eq!(found.clients, Some(PathBuf::from("/certs/ca.pem")));
    }

    #[test]
    fn a_certificate_of_its_own_is_only_for_those_who_name_none() {
        let (nothing, everything) = (|_: &Path| false, |_: &Path| true);
        assert_eq!(proof(&Tls::default(), nothing), Proof::Own);
        assert!(matches!(proof(&Tls::default(), everything), Proof::Files(_)));
        let folder = Tls { cert_dir: Some("/certs".into()), ..Tls::default() };
        assert_eq!(proof(&folder, nothing), Proof::Files(CertificateFiles::within("/certs".as_ref())));
        let named = Tls { cert_name: Some("a.pem".into()), ..Tls::default() };
        assert!(matches!(proof(&named, nothing), Proof::Files(_)));
        let secret = SecretRef { name: "a".into(), namespace: "b".into() };
        let both = Tls { secret_ref: Some(secret.clone()), ..folder };
        assert_eq!(proof(&both, everything), Proof::Secret(&secret));
    }
}
