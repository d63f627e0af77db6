//! [`CertificateFiles`]: a serving certificate in files, reloaded when they change.
//!
//! The kubelet renews a mounted Secret by replacing a symbolic link. Each check makes up to three `stat`
//! calls, and the files are read only if they have changed.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustls::ServerConfig;

use crate::{
    CertificateError, CertificateSource, ClientAuth, Pem, ReloadingCertificate, SourceVersion, server_config,
};

/// The files of a serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The client CA, if clients must present a certificate.
    pub client_ca: Option<PathBuf>,
}

impl CertificateFiles {
    /// `tls.crt` and `tls.key` in a directory, as in a mounted Secret.
    pub fn in_dir(dir: &Path) -> Self {
        Self { certificate: dir.join("tls.crt"), key: dir.join("tls.key"), client_ca: None }
    }

    /// Loads the certificate, and reloads it when the files change.
    pub fn open(self) -> Result<ReloadingCertificate, CertificateError> {
        let version = self.version();
        let config = self.load()?;
        Ok(ReloadingCertificate::new(self, version, config))
    }

    fn version(&self) -> SourceVersion {
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        let stat = |file: &PathBuf| {
            let meta = fs::metadata(file).ok()?;
            Some((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
        };
        let stats: Vec<_> = files.into_iter().flatten().map(stat).collect();
        SourceVersion(format!("{stats:?}"))
    }

    fn load(&self) -> Result<ServerConfig, CertificateError> {
        let client_ca = self.client_ca.as_deref().map(read).transpose()?;
        let client_auth = client_ca.as_ref().map_or(ClientAuth::Disabled, ClientAuth::Required);
        server_config(&read(&self.certificate)?, &read(&self.key)?, client_auth)
    }
}

impl CertificateSource for CertificateFiles {
    fn renewed(
        &self,
        before: &SourceVersion,
    ) -> Option<(SourceVersion, Result<ServerConfig, CertificateError>)> {
        let version = self.version();
        (version != *before).then(|| (version, self.load()))
    }
}

impl fmt::Display for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.certificate.display())
    }
}

fn read(file: &Path) -> Result<Pem, CertificateError> {
    let text = fs::read(file).map_err(|source| CertificateError::Read { file: file.to_owned(), source })?;
    Ok(Pem::new(file.display().to_string(), text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::AcceptorProvider;

    /// Writes a certificate and key to a directory, as the kubelet does for each version of a Secret.
    fn put(dir: &Path, name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("tls.crt"), &certificate).unwrap();
        fs::write(dir.join("tls.key"), &key).unwrap();
        (certificate, key)
    }

    fn link(dir: &Path, state: &str) {
        let _ = fs::remove_file(dir.join("new"));
        std::os::unix::fs::symlink(state, dir.join("new")).unwrap();
        fs::rename(dir.join("new"), dir.join("..data")).unwrap();
    }

    fn config(certificates: &ReloadingCertificate) -> Arc<ServerConfig> {
        certificates.acceptor().config().clone()
    }

    #[test]
    fn the_next_handshake_uses_a_renewed_secret() {
        let dir = tempfile::tempdir().unwrap();
        put(&dir.path().join("one"), "a.example");
        put(&dir.path().join("two"), "b.example");
        link(dir.path(), "one");
        let certificates = CertificateFiles::in_dir(&dir.path().join("..data")).open().unwrap();
        let first = config(&certificates);
        assert!(Arc::ptr_eq(&first, &config(&certificates)), "unchanged files are not read again");
        link(dir.path(), "two");
        assert!(!Arc::ptr_eq(&first, &config(&certificates)));
    }

    #[test]
    fn an_incomplete_renewal_keeps_the_old_certificate() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a.example");
        let certificates = CertificateFiles::in_dir(dir.path()).open().unwrap();
        let first = config(&certificates);
        let (_, other_key) = put(&dir.path().join("other"), "b.example");
        fs::write(dir.path().join("tls.key"), &other_key).unwrap();
        assert!(Arc::ptr_eq(&first, &config(&certificates)), "the key does not match the certificate");
        fs::remove_file(dir.path().join("tls.crt")).unwrap();
        assert!(Arc::ptr_eq(&first, &config(&certificates)));
        fs::copy(dir.path().join("other/tls.crt"), dir.path().join("tls.crt")).unwrap();
        assert!(!Arc::ptr_eq(&first, &config(&certificates)), "certificate and key match");
    }

    #[test]
    fn the_error_for_a_missing_certificate_contains_its_path() {
        let error = CertificateFiles::in_dir(Path::new("/nowhere")).open().unwrap_err().to_string();
        assert!(error.contains("/nowhere/tls.crt"), "{error}");
    }

    #[test]
    fn errors_do_not_contain_the_private_key() {
        let dir = tempfile::tempdir().unwrap();
        let (_, key) = put(dir.path(), "a.example");
        fs::write(dir.path().join("tls.crt"), &key).unwrap();
        fs::write(dir.path().join("tls.key"), "planted").unwrap();
        let error = format!("{:?}", CertificateFiles::in_dir(dir.path()).open().unwrap_err());
        let line = key.lines().nth(1).unwrap();
        assert!(!error.contains(line) && !error.contains("planted"), "{error}");
    }
}
