//! The configuration file of `polis manager`: `kind: WorkloadOperator`.
//!
//! Decoding is strict: a field that Polis does not know is an error that names the field and its line, because a
//! misspelt setting that is silently ignored shows only in production.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Deserialize;

const API_VERSION: &str = "apiserver.config.datumapis.com/v1alpha1";
const KIND: &str = "WorkloadOperator";

/// Everything that the file may hold. An absent part has its default.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    api_version: String,
    kind: String,
    /// Where metrics are served.
    pub metrics_server: MetricsServer,
    /// Admission webhooks; absent = no webhook server and no certificate needed.
    pub webhook_server: Option<WebhookServer>,
    /// Which planes this process works on.
    pub discovery: Discovery,
}

/// Where metrics are served. On the health address they always are, unless they are guarded here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsServer {
    /// `0` switches the separate server off.
    pub bind_address: String,
    /// Serve over TLS, to clients that may.
    pub secure_serving: bool,
    /// Certificate of the server; one of its own that nobody can check where nothing is said.
    pub tls: Tls,
}

impl MetricsServer {
    /// Whether metrics are for those only who may see them.
    pub fn is_guarded(&self) -> bool {
        self.is_on() && self.secure_serving
    }

    /// Whether there is a server of its own.
    pub fn is_on(&self) -> bool {
        !matches!(self.bind_address.as_str(), "" | "0")
    }
}

impl Default for MetricsServer {
    fn default() -> Self {
        Self { bind_address: "0".into(), secure_serving: true, tls: Tls::default() }
    }
}

/// The admission webhook server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookServer {
    /// Address to listen on; empty = all.
    pub host: String,
    /// Port to listen on.
    pub port: u16,
    /// Certificate of the server.
    pub tls: Tls,
    /// File name of the CA that clients must present a certificate of; empty = none asked for.
    #[serde(rename = "clientCAName")]
    pub client_ca_name: String,
}

impl Default for WebhookServer {
    fn default() -> Self {
        Self { host: String::new(), port: 9443, tls: Tls::default(), client_ca_name: String::new() }
    }
}

/// Where a server's certificate comes from.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Tls {
    /// A Secret with keys `tls.crt` and `tls.key`.
    pub secret_ref: Option<SecretRef>,
    /// Folder of the certificate files.
    pub cert_dir: Option<PathBuf>,
    /// Name of the certificate file; `tls.crt` when absent.
    pub cert_name: Option<String>,
    /// Name of the key file; `tls.key` when absent.
    pub key_name: Option<String>,
}

/// Names a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SecretRef {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// Which planes this process works on, and how it finds them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Discovery {
    /// `single`: the plane of this process's own cluster. `milo`: one plane per Ready project.
    pub mode: Mode,
    /// Find projects by their `ProjectControlPlane` and reach each at its own service instead of at a path of the platform.
    pub internal_service_discovery: bool,
    /// Kubeconfig of the plane that holds the projects; the cluster's own when absent.
    pub discovery_kubeconfig_path: Option<PathBuf>,
    /// Kubeconfig for the project planes; the cluster's own when absent.
    pub project_kubeconfig_path: Option<PathBuf>,
    /// Name of this cell; stands on quota claims and in the status of deployments. Needed by cells with quota.
    pub cluster_name: Option<String>,
    /// Kubeconfig for quota claims; `projectKubeconfigPath` when absent; neither = quota is off.
    pub quota_kubeconfig_path: Option<PathBuf>,
    /// What quota claims say they are for, as the platform has registered it: `Project` or `Instance`.
    pub quota_resource_ref: QuotaResourceRef,
}

/// What quota claims say they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum QuotaResourceRef {
    /// The project: what current registrations allow.
    #[default]
    Project,
    /// The instance: what earlier registrations allowed.
    Instance,
}

impl Discovery {
    /// The kubeconfig for quota claims; none = quota is off.
    pub fn quota_kubeconfig(&self) -> Option<&Path> {
        self.quota_kubeconfig_path.as_deref().or(self.project_kubeconfig_path.as_deref())
    }
}

/// How project planes are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The plane of this process's own cluster, under the name `single`.
    #[default]
    Single,
    /// One plane per project that is Ready.
    Milo,
}

impl Config {
    /// Reads the text of a file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        serde_saphyr::from_str::<Self>(text)?.of_our_kind()
    }

    /// The same, of a text that was read before.
    pub(super) fn from_value(value: serde_json::Value) -> Result<Self> {
        serde_json::from_value::<Self>(value)?.of_our_kind()
    }

    fn of_our_kind(self) -> Result<Self> {
        let config = self;
        if config.api_version != API_VERSION || config.kind != KIND {
            bail!(
                "the file says apiVersion {:?} and kind {:?}; write apiVersion: {API_VERSION} and kind: {KIND}",
                config.api_version,
                config.kind
            );
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_file(rest: &str) -> String {
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{rest}")
    }

    #[test]
    fn a_file_with_nothing_but_its_kind_gives_the_defaults() {
        let config = Config::parse(&mk_file("")).unwrap();
        assert_eq!(config.discovery.mode, Mode::Single);
        assert_eq!(config.metrics_server, MetricsServer::default());
        assert_eq!(config.webhook_server, None);
    }

    #[test]
    fn an_empty_webhook_server_switches_it_on_with_its_defaults() {
        let config = Config::parse(&mk_file("webhookServer: {}\n")).unwrap();
        assert_eq!(config.webhook_server.unwrap().port, 9443);
    }

    #[test]
    fn an_unknown_field_is_named_with_its_line() {
        let err = Config::parse(&mk_file("discovery:\n  mode: milo\n  clustername: dfw\n")).unwrap_err();
        let text = format!("{err:#}");
        assert!(text.contains("clustername"), "{text}");
        assert!(text.contains("line 5"), "{text}");
    }

    #[test]
    fn an_unknown_mode_is_refused() {
        let text = format!("{:#}", Config::parse(&mk_file("discovery: {mode: kind}\n")).unwrap_err());
        assert!(text.contains("kind"), "{text}");
    }

    #[test]
    fn a_file_of_another_kind_is_refused_with_what_to_write() {
        let text = format!("{:#}", Config::parse("apiVersion: v1\nkind: ConfigMap\n").unwrap_err());
        assert!(text.contains("kind: WorkloadOperator"), "{text}");
    }

    #[test]
    fn an_empty_file_is_refused() {
        assert!(Config::parse("").is_err());
    }

    #[test]
    fn all_fields_of_a_cell_are_read() {
        let config = Config::parse(&mk_file(
            "discovery: {clusterName: cell-dfw, quotaKubeconfigPath: /etc/quota-credentials/kubeconfig}\nmetricsServer: {bindAddress: ':8080', secureServing: false}\n",
        ))
        .unwrap();
        assert_eq!(config.discovery.cluster_name.as_deref(), Some("cell-dfw"));
        assert_eq!(config.metrics_server.bind_address, ":8080");
        assert_eq!(config.discovery.quota_resource_ref, QuotaResourceRef::Project);
    }

    #[test]
    fn claims_can_be_for_instances_and_for_nothing_else_than_these() {
        let parsed =
            |what: &str| Config::parse(&mk_file(&format!("discovery: {{quotaResourceRef: {what}}}\n")));
        assert_eq!(parsed("Instance").unwrap().discovery.quota_resource_ref, QuotaResourceRef::Instance);
        assert!(parsed("Pod").is_err());
    }
}
