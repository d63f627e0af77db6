//! A certificate in files that change under a server.
//!
//! A Secret that is mounted into a pod is renewed by swapping a link, at any time. The files are looked at (three `stat`
//! calls) and read when they have changed.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustls::ServerConfig;

use crate::{Certificates, Clients, Pem, Source, Stamp, TlsError, server};

/// Where a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, with what links it to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority of clients, where they must show a certificate.
    pub clients: Option<PathBuf>,
}

impl CertificateFiles {
    /// `tls.crt` and `tls.key` in a folder, as a mounted Secret has them.
    pub fn within(folder: &Path) -> Self {
        Self { certificate: folder.join("tls.crt"), key: folder.join("tls.key"), clients: None }
    }

    /// The certificate that is in the files now, and follows them.
    pub fn open(self) -> Result<Certificates, TlsError> {
        let stamp = self.stamp();
        let config = self.load()?;
        Ok(Certificates::new(self, stamp, config))
    }

    fn stamp(&self) -> Stamp {
        let files = [Some(&self.certificate), Some(&self.key), self.clients.as_ref()];
        let stat = |file: &PathBuf| {
            let meta = fs::metadata(file).ok()?;
            Some((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
        };
        let seen: Vec<_> = files.into_iter().flatten().map(stat).collect();
        Stamp(format!("{seen:?}"))
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
        let clients = self.clients.as_deref().map(read).transpose()?;
        let clients = clients.as_ref().map_or(Clients::Unasked, Clients::Required);
        server(&read(&self.certificate)?, &read(&self.key)?, clients)
    }
}

impl Source for CertificateFiles {
    fn renewed(&self, before: &Stamp) -> Option<(Stamp, Result<ServerConfig, TlsError>)> {
        let stamp = self.stamp();
        (stamp != *before).then(|| (stamp, self.load()))
    }
}

impl fmt::Display for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.certificate.display())
    }
}

fn read(file: &Path) -> Result<Pem, TlsError> {
    let text = fs::read(file).map_err(|source| TlsError::Read { file: file.to_owned(), source })?;
    Ok(Pem::new(file.display().to_string(), text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Handshake;

    /// A pair in a folder of its own, as the kubelet writes each state of a Secret.
    fn put(folder: &Path, name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("tls.crt"), &certificate).unwrap();
        fs::write(folder.join("tls.key"), &key).unwrap();
        (certificate, key)
    }

    fn link(home: &Path, state: &str) {
        let _ = fs::remove_file(home.join("new"));
        std::os::unix::fs::symlink(state, home.join("new")).unwrap();
        fs::rename(home.join("new"), home.join("..data")).unwrap();
    }

    fn config(certificates: &Certificates) -> Arc<ServerConfig> {
        certificates.acceptor().config().clone()
    }

    #[test]
    fn a_renewed_secret_is_seen_by_the_next_handshake_and_no_sooner() {
        let home = tempfile::tempdir().unwrap();
        put(&home.path().join("one"), "a.example");
        put(&home.path().join("two"), "b.example");
        link(home.path(), "one");
        let certificates = CertificateFiles::within(&home.path().join("..data")).open().unwrap();
        let first = config(&certificates);
        assert!(Arc::ptr_eq(&first, &config(&certificates)), "read once");
        link(home.path(), "two");
        assert!(!Arc::ptr_eq(&first, &config(&certificates)));
    }

    #[test]
    fn half_of_a_renewal_leaves_the_old_certificate_in_force() {
        let home = tempfile::tempdir().unwrap();
        put(home.path(), "a.example");
        let certificates = CertificateFiles::within(home.path()).open().unwrap();
        let first = config(&certificates);
        let (_, other_key) = put(&home.path().join("other"), "b.example");
        fs::write(home.path().join("tls.key"), &other_key).unwrap();
        assert!(Arc::ptr_eq(&first, &config(&certificates)), "the key is of another certificate");
        fs::remove_file(home.path().join("tls.crt")).unwrap();
        assert!(Arc::ptr_eq(&first, &config(&certificates)));
        fs::copy(home.path().join("other/tls.crt"), home.path().join("tls.crt")).unwrap();
        assert!(!Arc::ptr_eq(&first, &config(&certificates)), "now they fit");
    }

    #[test]
    fn a_missing_certificate_is_an_error_that_says_where_it_should_be() {
        let error = CertificateFiles::within(Path::new("/nowhere")).open().unwrap_err().to_string();
        assert!(error.contains("/nowhere/tls.crt"), "{error}");
    }

    #[test]
    fn no_error_holds_the_text_of_a_key() {
        let home = tempfile::tempdir().unwrap();
        let (_, key) = put(home.path(), "a.example");
        fs::write(home.path().join("tls.crt"), &key).unwrap();
        fs::write(home.path().join("tls.key"), "planted").unwrap();
        let error = format!("{:?}", CertificateFiles::within(home.path()).open().unwrap_err());
        let line = key.lines().nth(1).unwrap();
        assert!(!error.contains(line) && !error.contains("planted"), "{error}");
    }
}
