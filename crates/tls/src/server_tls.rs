//! The TLS configuration of a server whose certificates an [`Authority`] issues.

use std::{fmt, sync::Arc, time::SystemTime};

use tokio_rustls::TlsAcceptor;

use crate::{
    AcceptorProvider, Authority, Certificate, CertificateError, CertificateSource, ClientAuth, Pem,
    ReloadingCertificate, ServerTlsError, SourceVersion, authority::VALIDITY,
};

/// The TLS configuration of a server: its certificate, and the authority of client certificates.
#[derive(Clone)]
pub struct ServerTls(Acceptors);

#[derive(Clone)]
enum Acceptors {
    Fixed(TlsAcceptor),
    Renewed(ReloadingCertificate),
}

impl ServerTls {
    /// `server` is the server's certificate; `clients` is the authority (PEM) of client certificates.
    pub fn new(server: &Certificate, clients: Option<&str>) -> Result<Self, ServerTlsError> {
        let config = server_config(server, clients)?;
        Ok(Self(Acceptors::Fixed(TlsAcceptor::from(Arc::new(config)))))
    }

    /// A server certificate for `hosts` that is renewed while it is used, and client certificates of the same
    /// authority.
    pub fn renewing(
        authority: Arc<Authority>,
        hosts: impl IntoIterator<Item = String>,
    ) -> Result<Self, ServerTlsError> {
        Self::of_source(AuthoritySource { authority, hosts: hosts.into_iter().collect(), clients: true })
    }

    /// A server certificate of an authority that nothing trusts, renewed while it is used, and no client
    /// certificates.
    pub fn self_signed(hosts: impl IntoIterator<Item = String>) -> Result<Self, ServerTlsError> {
        let authority = Arc::new(Authority::new()?);
        Self::of_source(AuthoritySource { authority, hosts: hosts.into_iter().collect(), clients: false })
    }

    fn of_source(source: AuthoritySource) -> Result<Self, ServerTlsError> {
        let config = source.issue()?;
        let certificate = ReloadingCertificate::new(source, version(SystemTime::now()), config);
        Ok(Self(Acceptors::Renewed(certificate)))
    }
}

impl AcceptorProvider for ServerTls {
    fn acceptor(&self) -> TlsAcceptor {
        match &self.0 {
            Acceptors::Fixed(acceptor) => acceptor.clone(),
            Acceptors::Renewed(certificate) => certificate.acceptor(),
        }
    }
}

fn server_config(
    server: &Certificate,
    clients: Option<&str>,
) -> Result<rustls::ServerConfig, CertificateError> {
    let (shown, key) =
        (Pem::new("of the server", server.cert.as_str()), Pem::new("key", server.key.as_str()));
    let clients = clients.map(|pem| Pem::new("of clients", pem));
    // A client certificate is optional: clients can authenticate with a token instead.
    let clients = clients.as_ref().map_or(ClientAuth::Disabled, ClientAuth::Optional);
    crate::server_config(&shown, &key, clients)
}

/// Issues server certificates, each for two thirds of its validity.
struct AuthoritySource {
    authority: Arc<Authority>,
    hosts: Vec<String>,
    /// Whether clients authenticate with certificates of the authority.
    clients: bool,
}

/// The number of the certificate that is used at a time.
fn version(now: SystemTime) -> SourceVersion {
    let every = VALIDITY.as_secs() * 2 / 3;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    SourceVersion((now / every).to_string())
}

impl AuthoritySource {
    fn issue(&self) -> Result<rustls::ServerConfig, ServerTlsError> {
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        let certificate = self.authority.server(&hosts)?;
        Ok(server_config(&certificate, self.clients.then(|| self.authority.pem()))?)
    }
}

fn unusable(error: ServerTlsError) -> CertificateError {
    match error {
        ServerTlsError::Unusable(error) => error,
        ServerTlsError::Make(error) => CertificateError::Unusable {
            source_name: "of the server".to_owned(),
            source: rustls::Error::General(format!("failed to issue it: {error}")),
        },
    }
}

impl fmt::Display for AuthoritySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the authority of the server")
    }
}

impl CertificateSource for AuthoritySource {
    fn renewed(
        &self,
        before: &SourceVersion,
    ) -> Option<(SourceVersion, Result<rustls::ServerConfig, CertificateError>)> {
        let now = version(SystemTime::now());
        (now != *before).then(|| (now, self.issue().map_err(unusable)))
    }
}
