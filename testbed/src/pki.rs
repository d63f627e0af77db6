//! The certificate authority of a test cluster: server certificates, and kubeconfigs for any user.
//!
//! One authority signs all certificates, and all servers share one certificate. Keys are P-256; they stay in
//! the state directory and do not expire.

use std::{
    fs,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sha2::{Digest, Sha256};

use crate::Error;

/// The common name with which a kube-apiserver authenticates forwarded requests.
pub const FRONT_PROXY: &str = "front-proxy-client";
/// Subject alternative names of the servers. The aggregation layer uses the last one for every address.
const SERVER_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "karmada-aggregated-apiserver.karmada-system.svc"];
/// The group with all permissions.
pub const MASTERS: &str = "system:masters";
/// Context and cluster name in kubeconfigs.
const CONTEXT: &str = "testbed";
/// OID of the attribute `organizationName`.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertifiedKey {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// The certificate authority of one test cluster.
#[derive(Debug)]
pub struct Pki {
    folder: PathBuf,
    authority: CertifiedKey,
}

impl Pki {
    /// Creates a new authority and the server certificates in the directory.
    pub fn create(folder: &Path) -> Result<Pki, Error> {
        let pki = Pki { folder: folder.to_owned(), authority: authority()? };
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            .map_err(Error::file("close", folder))?;
        write(&pki.ca(), &pki.authority.certificate)?;
        write(&folder.join("ca.key"), &pki.authority.key)?;

        let (cert, key) = pki.server();
        let folder = cert.parent().expect("a certificate has a parent directory").to_owned();
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        pki.issue("server", &[], &SERVER_NAMES, ExtendedKeyUsagePurpose::ServerAuth)?.write(&cert, &key)?;

        let (cert, key) = pki.front_proxy();
        pki.issue(FRONT_PROXY, &[], &[], ExtendedKeyUsagePurpose::ClientAuth)?.write(&cert, &key)?;

        let (public, private) = pki.service_accounts();
        let signer = KeyPair::generate().map_err(certificate("service accounts"))?;
        write(&public, &signer.public_key_pem())?;
        write(&private, &signer.serialize_pem())?;
        Ok(pki)
    }

    /// Opens the authority in the directory.
    pub fn open(folder: &Path) -> Result<Pki, Error> {
        let read = |name: &str| {
            fs::read_to_string(folder.join(name)).map_err(Error::file("read", folder.join(name)))
        };
        Ok(Pki {
            folder: folder.to_owned(),
            authority: CertifiedKey { certificate: read("ca.crt")?, key: read("ca.key")? },
        })
    }

    /// The path of the CA certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Certificate and key of all servers, in a directory of their own, as Karmada's webhook requires.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        let folder = self.folder.join("server");
        (folder.join("tls.crt"), folder.join("tls.key"))
    }

    /// Certificate and key of the front proxy: a kube-apiserver forwards requests with them.
    pub fn front_proxy(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("front-proxy.crt"), self.folder.join("front-proxy.key"))
    }

    /// Public and private key for service account tokens.
    pub fn service_accounts(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("service-accounts.pub"), self.folder.join("service-accounts.key"))
    }

    /// The token file of a plane, with one bearer token in the group `system:masters`: Karmada authenticates
    /// to a member only with a bearer token. Returns the token and the file.
    pub fn token(&self, plane: &str) -> Result<(String, PathBuf), Error> {
        let digest = Sha256::new().chain_update(&self.authority.key).chain_update(plane).finalize();
        let token: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = self.folder.join(format!("{plane}.tokens"));
        write(&file, &format!("{token},federation,federation,\"{MASTERS}\"\n"))?;
        Ok((token, file))
    }

    /// The CA certificate in base64, for `caBundle` fields.
    pub fn ca_bundle(&self) -> String {
        BASE64_STANDARD.encode(&self.authority.certificate)
    }

    /// A client certificate for a user with at most two groups.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<CertifiedKey, Error> {
        self.issue(user, groups, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A self-contained kubeconfig of the server for a user with these groups.
    pub fn kubeconfig(&self, server: &str, user: &str, groups: &[&str]) -> Result<String, Error> {
        Ok(kubeconfig(server, &self.authority.certificate, user, &self.client(user, groups)?))
    }

    fn issue(
        &self,
        name: &str,
        groups: &[&str],
        servers: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<CertifiedKey, Error> {
        let failed = || certificate(name);
        let names: Vec<String> = servers.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed())?;
        params.distinguished_name.push(DnType::CommonName, name);
        // Groups are organizations. rcgen holds one value per attribute type, and treats the same type given
        // by its OID as another type: that makes two.
        let types = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        if groups.len() > types.len() {
            return Err(Error::TooManyGroups { user: name.to_owned(), count: groups.len() });
        }
        for (kind, &group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(kind, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let ca_key = KeyPair::from_pem(&self.authority.key).map_err(failed())?;
        let issuer = Issuer::from_ca_cert_pem(&self.authority.certificate, ca_key).map_err(failed())?;
        let key = KeyPair::generate().map_err(failed())?;
        let cert = params.signed_by(&key, &issuer).map_err(failed())?;
        Ok(CertifiedKey { certificate: cert.pem(), key: key.serialize_pem() })
    }
}

impl CertifiedKey {
    fn write(&self, certificate: &Path, key: &Path) -> Result<(), Error> {
        write(certificate, &self.certificate)?;
        write(key, &self.key)
    }
}

fn authority() -> Result<CertifiedKey, Error> {
    let failed = || certificate("the authority");
    let mut params = CertificateParams::new(Vec::new()).map_err(failed())?;
    params.distinguished_name.push(DnType::CommonName, "polis test bed");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().map_err(failed())?;
    let cert = params.self_signed(&key).map_err(failed())?;
    Ok(CertifiedKey { certificate: cert.pem(), key: key.serialize_pem() })
}

fn certificate(name: &str) -> impl FnOnce(rcgen::Error) -> Error {
    let name = name.to_owned();
    move |cause| Error::Certificate { name, cause }
}

fn kubeconfig(server: &str, authority: &str, user: &str, pair: &CertifiedKey) -> String {
    let [authority, certificate, key] =
        [authority, &pair.certificate, &pair.key].map(|pem| BASE64_STANDARD.encode(pem));
    // Written as JSON strings, which are valid YAML: a user name may contain any character.
    let [server, user] = [server, user].map(|text| serde_json::Value::from(text).to_string());
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: {CONTEXT}\n\
         contexts:\n\
         - name: {CONTEXT}\n\
         \x20 context: {{cluster: {CONTEXT}, user: {user}}}\n\
         clusters:\n\
         - name: {CONTEXT}\n\
         \x20 cluster:\n\
         \x20   server: {server}\n\
         \x20   certificate-authority-data: {authority}\n\
         users:\n\
         - name: {user}\n\
         \x20 user:\n\
         \x20   client-certificate-data: {certificate}\n\
         \x20   client-key-data: {key}\n"
    )
}

/// Writes a file that only its owner can read.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path);
    let mut file = file.map_err(Error::file("create", path))?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    fn mk_pki() -> (tempfile::TempDir, Pki) {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::create(folder.path()).unwrap();
        (folder, pki)
    }

    #[test]
    fn a_kubeconfig_is_self_contained() {
        let (_folder, pki) = mk_pki();
        let user = "system:serviceaccount:polis-system:polis \"manager\"";
        let text = pki.kubeconfig("https://127.0.0.1:23456", user, &["system:serviceaccounts"]).unwrap();
        let config = Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some(CONTEXT));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:23456"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some(pki.ca_bundle().as_str()));
        assert_eq!(config.auth_infos[0].name, user);
        assert_eq!(config.contexts[0].context.as_ref().unwrap().user.as_deref(), Some(user));
        assert!(config.auth_infos[0].auth_info.as_ref().unwrap().client_certificate_data.is_some());
    }

    #[test]
    fn an_opened_authority_continues_to_issue() {
        let (folder, pki) = mk_pki();
        let found = Pki::open(folder.path()).unwrap();
        assert_eq!(found.ca_bundle(), pki.ca_bundle());
        assert_ne!(found.client("eve", &[]).unwrap(), pki.client("eve", &[]).unwrap());
        assert_eq!(found.token("dfw").unwrap().0, pki.token("dfw").unwrap().0);
        assert_ne!(found.token("dfw").unwrap().0, pki.token("ord").unwrap().0);
    }

    #[test]
    fn two_groups_fit_and_a_third_is_rejected() {
        let (_folder, pki) = mk_pki();
        assert!(pki.client("eve", &["a", "b"]).is_ok());
        let message = pki.client("eve", &["a", "b", "c"]).unwrap_err().to_string();
        assert_eq!(
            message,
            "failed to issue a certificate for eve: it holds at most two groups, 3 were requested"
        );
    }

    #[test]
    fn only_the_owner_can_read_keys() {
        let (folder, pki) = mk_pki();
        for key in [folder.path().join("ca.key"), pki.server().1, pki.service_accounts().1] {
            assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "{}", key.display());
        }
    }
}
