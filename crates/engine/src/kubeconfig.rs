//! Constructors of [`Plane`] from a kubeconfig: server address, CA and credentials.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

use polis_api::kube;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls_pki_types::ServerName;

use crate::transport::auth::Credentials;
use crate::transport::pool::Pool;
use crate::transport::tls::{ClientTlsConfig, Target, Tls};
use crate::{Error, Plane, PlaneName, Transport};

impl Plane {
    /// The plane of a kubeconfig file: of the given context, or of the current context.
    pub async fn from_kubeconfig(
        name: impl Into<PlaneName>,
        file: &Path,
        context: Option<&str>,
    ) -> Result<Self, Error> {
        let from = || match context {
            Some(context) => format!("{} (context {context})", file.display()),
            None => file.display().to_string(),
        };
        let error_with = |why: String| Error::Kubeconfig { from: from(), why };
        let kubeconfig = Kubeconfig::read_from(file).map_err(|error| error_with(reason(&error)))?;
        let options =
            KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| error_with(error.to_string()))?;
        Self::from_config(name, &config).map_err(error_with)
    }

    /// The plane of the default configuration: `KUBECONFIG`, the default file, or the cluster that the
    /// process runs in.
    pub async fn inferred(name: impl Into<PlaneName>) -> Result<Self, Error> {
        let error_with = |why: String| Error::Kubeconfig { from: "of the environment".to_owned(), why };
        let config = kube::Config::infer().await.map_err(|error| {
            let of_file = error.source().and_then(|source| source.downcast_ref::<KubeconfigError>());
            let unreadable = of_file.filter(|error| matches!(error, KubeconfigError::Parse(_)));
            error_with(unreadable.map_or_else(|| error.to_string(), reason))
        })?;
        Self::from_config(name, &config).map_err(error_with)
    }

    /// The plane of a loaded kube configuration.
    pub fn from_kube_config(name: impl Into<PlaneName>, config: &kube::Config) -> Result<Self, Error> {
        Self::from_config(name, config)
            .map_err(|why| Error::Kubeconfig { from: config.cluster_url.to_string(), why })
    }

    fn from_config(name: impl Into<PlaneName>, config: &kube::Config) -> Result<Self, String> {
        let url = &config.cluster_url;
        let host = url.host().ok_or_else(|| format!("server {url} has no host"))?.trim_matches(['[', ']']);
        let tls = match url.scheme_str() {
            Some("https") => Some(tls(config, host)?),
            Some("http") => None,
            other => return Err(format!("server {url}: scheme {other:?} is neither https nor http")),
        };
        let port = url.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let authority = url.authority().map_or(host, |authority| authority.as_str());
        let target = Target { authority: authority.into(), host: host.into(), port, tls };
        let credentials = Credentials::from_config(config).map_err(|error| error.to_string())?;
        let plane = Self::new(name, Transport::pooled(Pool::new(target, credentials)));
        let path = url.path().trim_matches('/');
        Ok(if path.is_empty() { plane } else { plane.with_path_prefix(plane.name().clone(), path) })
    }
}

/// The reason of a kubeconfig error, without the file's content: the parser's message quotes the invalid
/// text, which may be a credential.
fn reason(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(unreadable) = error else { return error.to_string() };
    let location = unreadable.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
    format!("it cannot be read as a kubeconfig{}", location.unwrap_or_default())
}

fn tls(config: &kube::Config, host: &str) -> Result<Tls, String> {
    let name = config.tls_server_name.as_deref().unwrap_or(host).to_owned();
    let server_name = ServerName::try_from(name).map_err(|error| format!("server name: {error}"))?;
    Ok(Tls { config: Arc::new(ClientTlsConfig::new(config)?), server_name })
}
