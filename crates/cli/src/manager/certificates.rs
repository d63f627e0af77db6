//! Selects the source of a server's certificate from the configuration.

use std::path::{Path, PathBuf};

use polis_tls::CertificateFiles;

use super::config::{SecretRef, Tls};

/// Default certificate directory of the webhook server below the temporary directory, as in
/// controller-runtime.
pub(crate) const WEBHOOKS: &str = "k8s-webhook-server/serving-certs";
/// Default certificate directory of the metrics server below the temporary directory.
pub(crate) const METRICS: &str = "k8s-metrics-server/serving-certs";

/// The files of a certificate. `usual` is the directory if the configuration sets none.
pub(crate) fn files(tls: &Tls, usual: &str, client_ca_name: &str) -> CertificateFiles {
    let folder: PathBuf = tls.cert_dir.clone().unwrap_or_else(|| std::env::temp_dir().join(usual));
    let named = |name: &Option<String>, usual: &str| {
        folder.join(name.as_deref().filter(|name| !name.is_empty()).unwrap_or(usual))
    };
    CertificateFiles {
        certificate: named(&tls.cert_name, "tls.crt"),
        key: named(&tls.key_name, "tls.key"),
        client_ca: Some(client_ca_name).filter(|name| !name.is_empty()).map(|name| folder.join(name)),
    }
}

/// Source of the certificate of the metrics server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CertificateSource<'a> {
    /// The certificate in a Secret.
    Secret(&'a SecretRef),
    /// The certificate in files.
    Files(CertificateFiles),
    /// A self-signed certificate of this process, which clients cannot verify.
    SelfSigned,
}

/// The source that the configuration sets; otherwise the default directory if it has a certificate; otherwise
/// self-signed. `exists` tells whether a file exists.
pub(crate) fn source(tls: &Tls, exists: impl Fn(&Path) -> bool) -> CertificateSource<'_> {
    if let Some(secret) = &tls.secret_ref {
        return CertificateSource::Secret(secret);
    }
    let files = files(tls, METRICS, "");
    let asked_for = tls.cert_dir.is_some() || tls.cert_name.is_some() || tls.key_name.is_some();
    match asked_for || exists(&files.certificate) {
        true => CertificateSource::Files(files),
        false => CertificateSource::SelfSigned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_names_are_those_of_a_tls_secret() {
        let tls = Tls { cert_dir: Some("/certs".into()), ..Tls::default() };
        let found = files(&tls, WEBHOOKS, "");
        assert_eq!(found, CertificateFiles::in_dir("/certs".as_ref()));
        let tls = Tls { cert_name: Some("a.pem".into()), key_name: Some("a.key".into()), ..tls };
        let found = files(&tls, WEBHOOKS, "ca.pem");
        assert_eq!(found.certificate, PathBuf::from("/certs/a.pem"));
        assert_eq!(found.client_ca, Some(PathBuf::from("/certs/ca.pem")));
    }

    #[test]
    fn the_certificate_is_self_signed_only_if_none_is_configured_or_mounted() {
        let (nothing, everything) = (|_: &Path| false, |_: &Path| true);
        assert_eq!(source(&Tls::default(), nothing), CertificateSource::SelfSigned);
        assert!(matches!(source(&Tls::default(), everything), CertificateSource::Files(_)));
        let folder = Tls { cert_dir: Some("/certs".into()), ..Tls::default() };
        assert_eq!(
            source(&folder, nothing),
            CertificateSource::Files(CertificateFiles::in_dir("/certs".as_ref()))
        );
        let named = Tls { cert_name: Some("a.pem".into()), ..Tls::default() };
        assert!(matches!(source(&named, nothing), CertificateSource::Files(_)));
        let secret = SecretRef { name: "a".into(), namespace: "b".into() };
        let both = Tls { secret_ref: Some(secret.clone()), ..folder };
        assert_eq!(source(&both, everything), CertificateSource::Secret(&secret));
    }
}
