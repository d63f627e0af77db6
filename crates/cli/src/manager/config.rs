//! The configuration file of `polis manager`: `kind: WorkloadOperator`.
//!
//! Decoding is strict: an unknown field is an error with the field and its line, because a misspelt field
//! that is ignored shows only in production.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Deserialize;

use super::flags::Flags;

const API_VERSION: &str = "apiserver.config.datumapis.com/v1alpha1";
const KIND: &str = "WorkloadOperator";

/// The content of the file. Absent fields have their defaults.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    api_version: String,
    kind: String,
    /// The metrics server.
    pub metrics_server: MetricsServer,
    /// The admission webhook server; absent = no webhook server and no certificate needed.
    pub webhook_server: Option<WebhookServer>,
    /// The planes of this process.
    pub discovery: Discovery,
    /// What runs the instances of a cell.
    pub runtime: RuntimeKind,
    /// Settings of `runtime: pods`.
    pub pods: Pods,
}

/// What runs the instances of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// A provider that is not part of this process.
    #[default]
    External,
    /// Pods of a Kubernetes cluster, created by this process.
    Pods,
}

/// Settings of `runtime: pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pods {
    /// Kubeconfig of the cluster that runs the Pods; absent = the cell itself. `--cluster-kubeconfig`
    /// replaces it.
    pub cluster_kubeconfig_path: Option<PathBuf>,
    /// Runtime class of all Pods; absent = that of the cluster.
    pub runtime_class_name: Option<String>,
    /// Labels that the nodes of all Pods must have.
    pub node_selector: BTreeMap<String, String>,
}

/// The separate metrics server. The health address also serves `/metrics`, unless this server is secure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsServer {
    /// Listen address; `0` disables the server.
    pub bind_address: String,
    /// Serve with TLS, to authenticated and authorised clients.
    pub secure_serving: bool,
    /// Certificate of the server; self-signed if nothing is set.
    pub tls: Tls,
}

impl MetricsServer {
    /// Whether the metrics need authentication and authorisation.
    pub fn is_secure(&self) -> bool {
        self.is_enabled() && self.secure_serving
    }

    /// Whether the separate server is enabled.
    pub fn is_enabled(&self) -> bool {
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
    /// Host to listen on; empty = all interfaces.
    pub host: String,
    /// Port to listen on.
    pub port: u16,
    /// Certificate of the server.
    pub tls: Tls,
    /// File name of the CA that client certificates must be signed by; empty = no client certificates.
    #[serde(rename = "clientCAName")]
    pub client_ca_name: String,
}

impl Default for WebhookServer {
    fn default() -> Self {
        Self { host: String::new(), port: 9443, tls: Tls::default(), client_ca_name: String::new() }
    }
}

/// Certificate of a server.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Tls {
    /// A Secret with keys `tls.crt` and `tls.key`.
    pub secret_ref: Option<SecretRef>,
    /// Directory of the certificate files.
    pub cert_dir: Option<PathBuf>,
    /// Name of the certificate file; `tls.crt` when absent.
    pub cert_name: Option<String>,
    /// Name of the key file; `tls.key` when absent.
    pub key_name: Option<String>,
}

/// Reference to a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Namespace of the Secret.
    pub namespace: String,
}

/// The planes of this process and how they are discovered.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Discovery {
    /// `single`: the plane of this process's own cluster. `milo`: one plane per Ready project.
    pub mode: Mode,
    /// Discover projects by their `ProjectControlPlane` and connect to the Service of each, instead of a path
    /// of the platform.
    pub internal_service_discovery: bool,
    /// Kubeconfig of the plane with the Project objects; absent = the cluster of this process.
    pub discovery_kubeconfig_path: Option<PathBuf>,
    /// Kubeconfig of the project planes; absent = the cluster of this process.
    pub project_kubeconfig_path: Option<PathBuf>,
    /// Name of this cell in quota claims and in the status of deployments. Required for a cell with quota.
    pub cluster_name: Option<String>,
    /// Kubeconfig for quota claims; absent = `projectKubeconfigPath`; neither = quota is disabled.
    pub quota_kubeconfig_path: Option<PathBuf>,
    /// Kind of the `resourceRef` of quota claims, as the platform has registered it: `Project` or `Instance`.
    pub quota_resource_ref: QuotaResourceRef,
}

/// Kind of the `resourceRef` of quota claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum QuotaResourceRef {
    /// The project, which current registrations allow.
    #[default]
    Project,
    /// The instance, which earlier registrations allowed.
    Instance,
}

impl Discovery {
    /// The kubeconfig for quota claims; `None` if quota is disabled.
    pub fn quota_kubeconfig(&self) -> Option<&Path> {
        self.quota_kubeconfig_path.as_deref().or(self.project_kubeconfig_path.as_deref())
    }
}

/// How project planes are discovered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The plane of this process's own cluster, with the name `single`.
    #[default]
    Single,
    /// One plane per Ready project.
    Milo,
}

impl Config {
    /// The kubeconfig of the cluster that runs the Pods; `None` if it is the cell itself, or nothing runs
    /// them.
    pub fn pods_kubeconfig<'a>(&'a self, flags: &'a Flags) -> Option<&'a Path> {
        let path = flags.cluster_kubeconfig.as_deref().or(self.pods.cluster_kubeconfig_path.as_deref());
        path.filter(|_| self.runtime == RuntimeKind::Pods)
    }

    /// Parses the text of a file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        serde_saphyr::from_str::<Self>(text)?.of_our_kind()
    }

    /// Decodes a parsed file.
    pub(super) fn from_value(value: serde_json::Value) -> Result<Self> {
        serde_json::from_value::<Self>(value)?.of_our_kind()
    }

    fn of_our_kind(self) -> Result<Self> {
        let config = self;
        if config.api_version != API_VERSION || config.kind != KIND {
            bail!(
                "the file has apiVersion {:?} and kind {:?}; set apiVersion: {API_VERSION} and kind: {KIND}",
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
    fn a_file_with_only_its_kind_has_the_defaults() {
        let config = Config::parse(&mk_file("")).unwrap();
        assert_eq!(config.discovery.mode, Mode::Single);
        assert_eq!(config.metrics_server, MetricsServer::default());
        assert_eq!(config.webhook_server, None);
    }

    #[test]
    fn an_empty_webhook_server_is_enabled_with_its_defaults() {
        let config = Config::parse(&mk_file("webhookServer: {}\n")).unwrap();
        assert_eq!(config.webhook_server.unwrap().port, 9443);
    }

    #[test]
    fn the_error_about_an_unknown_field_has_its_line() {
        let err = Config::parse(&mk_file("discovery:\n  mode: milo\n  clustername: dfw\n")).unwrap_err();
        let text = format!("{err:#}");
        assert!(text.contains("clustername"), "{text}");
        assert!(text.contains("line 5"), "{text}");
    }

    #[test]
    fn an_unknown_mode_is_an_error() {
        let text = format!("{:#}", Config::parse(&mk_file("discovery: {mode: kind}\n")).unwrap_err());
        assert!(text.contains("kind"), "{text}");
    }

    #[test]
    fn the_error_about_another_kind_has_the_expected_kind() {
        let text = format!("{:#}", Config::parse("apiVersion: v1\nkind: ConfigMap\n").unwrap_err());
        assert!(text.contains("kind: WorkloadOperator"), "{text}");
    }

    #[test]
    fn an_empty_file_is_an_error() {
        assert!(Config::parse("").is_err());
    }

    #[test]
    fn all_fields_of_a_cell_are_decoded() {
        let config = Config::parse(&mk_file(
            "discovery: {clusterName: cell-dfw, quotaKubeconfigPath: /etc/quota-credentials/kubeconfig}\nmetricsServer: {bindAddress: ':8080', secureServing: false}\n",
        ))
        .unwrap();
        assert_eq!(config.discovery.cluster_name.as_deref(), Some("cell-dfw"));
        assert_eq!(config.metrics_server.bind_address, ":8080");
        assert_eq!(config.discovery.quota_resource_ref, QuotaResourceRef::Project);
    }

    #[test]
    fn a_cell_runs_pods_where_its_configuration_says_so() {
        assert_eq!(Config::parse(&mk_file("")).unwrap().runtime, RuntimeKind::External);
        let config = Config::parse(&mk_file(
            "runtime: pods\npods: {clusterKubeconfigPath: /etc/cluster/kubeconfig, runtimeClassName: gvisor, nodeSelector: {pool: tenants}}\n",
        ))
        .unwrap();
        assert_eq!(config.runtime, RuntimeKind::Pods);
        assert_eq!(config.pods.runtime_class_name.as_deref(), Some("gvisor"));
        assert_eq!(config.pods.node_selector["pool"], "tenants");
        assert!(Config::parse(&mk_file("runtime: docker\n")).is_err());
    }

    #[test]
    fn quota_resource_ref_is_project_or_instance() {
        let parsed =
            |what: &str| Config::parse(&mk_file(&format!("discovery: {{quotaResourceRef: {what}}}\n")));
        assert_eq!(parsed("Instance").unwrap().discovery.quota_resource_ref, QuotaResourceRef::Instance);
        assert!(parsed("Pod").is_err());
    }
}
