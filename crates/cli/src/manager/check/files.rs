//! Checks of the flags, the configuration and the files that they name, without requests.

use std::path::Path;

use jiff::Timestamp;
use polis_api::kube::config::{AuthInfo, Kubeconfig};
use polis_engine::Plane;
use polis_tls::CertificateFiles;

use super::{Findings, credentials};
use crate::exit::CliError;
use crate::manager::address;
use crate::manager::certificates::{self as origin, CertificateSource};
use crate::manager::config::{Config, Mode, Pods, RuntimeKind, SecretRef};
use crate::manager::flags::Flags;

/// Reads the configuration and checks everything that needs no requests.
pub(super) async fn examine(flags: &Flags, now: Timestamp) -> (Config, Findings) {
    let mut findings = Findings::default();
    let config = super::read(flags, &mut findings);
    findings.errors.extend(check_flags_and_config(flags, &config));
    if let Err(error) = Plane::inferred("own").await {
        findings.error(
            "the cluster of this process",
            error.to_string(),
            "run the manager in a pod with a service account, or set $KUBECONFIG",
        );
    }
    for named in kubeconfigs(flags, &config) {
        kubeconfig(&named, now, &mut findings).await;
    }
    if let Some(server) = &config.webhook_server {
        let issued = "deploy/components/csi-webhook-cert mounts it; set the issuer with a patch";
        match &server.tls.secret_ref {
            Some(secret) => note_secret("webhookServer.tls", secret, &mut findings),
            None => {
                let files = origin::files(&server.tls, origin::WEBHOOKS, &server.client_ca_name);
                certificate("webhookServer.tls", files, issued, now, &mut findings);
            }
        }
    }
    if config.metrics_server.is_secure() {
        let mount = "mount a certificate there, or remove metricsServer.tls: then the manager uses a self-signed certificate, which clients cannot verify";
        match origin::source(&config.metrics_server.tls, |file| file.exists()) {
            CertificateSource::Secret(secret) => note_secret("metricsServer.tls", secret, &mut findings),
            CertificateSource::Files(files) => certificate("metricsServer.tls", files, mount, now, &mut findings),
            CertificateSource::SelfSigned => findings.note(
                "metricsServer.tls is not set: the manager uses a self-signed certificate, which scrapers cannot verify",
            ),
        }
    }
    (config, findings)
}

/// Errors in the flags and the configuration themselves. They also prevent a start.
pub(in crate::manager) fn check_flags_and_config(flags: &Flags, config: &Config) -> Vec<CliError> {
    let mut errors = Vec::new();
    let mut add_error = |what: &str, why: &str, next: &str| errors.push(CliError::usage(what, why, next));
    let (management, cell) = (flags.enable_management_controllers, flags.enable_cell_controllers);
    let discovery = &config.discovery;
    if !management && !cell {
        add_error(
            "roles",
            "no role is enabled",
            "set --enable-management-controllers or --enable-cell-controllers",
        );
    }
    if flags.federation_kubeconfig.is_none() {
        add_error(
            "--federation-kubeconfig",
            "it is not set, and every role needs the hub",
            "set it to the kubeconfig of the hub",
        );
    }
    // The federator would copy a deployment of the cell to the hub again, without end.
    if management && cell && discovery.mode == Mode::Single {
        add_error(
            "discovery.mode",
            "in mode single, one cluster would be both the project plane and the cell",
            "set discovery.mode: milo, or run the two roles in different clusters",
        );
    }
    if discovery.internal_service_discovery && discovery.mode == Mode::Single {
        add_error(
            "discovery.internalServiceDiscovery",
            "it applies to the projects of a platform, and mode single has only one plane",
            "set discovery.mode: milo, or remove the field",
        );
    }
    if cell && discovery.quota_kubeconfig().is_some() && discovery.cluster_name.is_none() {
        add_error(
            "discovery.clusterName",
            "it is not set, and quota claims must name their cell",
            "set discovery.clusterName to a name that is unique for each cell",
        );
    }
    let pods = config.runtime == RuntimeKind::Pods;
    if pods && !cell {
        add_error(
            "runtime",
            "pods run the instances of a cell, and the cell role is not enabled",
            "set --enable-cell-controllers, or remove runtime",
        );
    }
    if !pods && (config.pods != Pods::default() || flags.cluster_kubeconfig.is_some()) {
        let field = if flags.cluster_kubeconfig.is_some() { "--cluster-kubeconfig" } else { "pods" };
        add_error(field, "it applies to cells with runtime: pods", "set runtime: pods, or remove it");
    }
    if let Err(error) = address::parse(&flags.health_probe_bind_address) {
        add_error(
            "--health-probe-bind-address",
            &error.to_string(),
            "set it to a form such as :8081 or 127.0.0.1:8081",
        );
    }
    let metrics = &config.metrics_server;
    if metrics.is_enabled()
        && let Err(error) = address::parse(&metrics.bind_address)
    {
        add_error(
            "metricsServer.bindAddress",
            &error.to_string(),
            "set it to a form such as :8080, or to \"0\" to disable the server",
        );
    }
    let webhooks = config.webhook_server.as_ref().map(|server| &server.tls);
    for (field, tls) in [
        ("webhookServer.tls.secretRef", webhooks),
        ("metricsServer.tls.secretRef", Some(&config.metrics_server.tls)),
    ] {
        let secret = tls.and_then(|tls| tls.secret_ref.as_ref());
        if secret.is_some_and(|secret| secret.name.is_empty() || secret.namespace.is_empty()) {
            add_error(
                field,
                "name or namespace is empty",
                "set both, or mount the Secret and set certDir to its directory",
            );
        }
    }
    errors
}

/// A kubeconfig and the flag or field that names it.
struct NamedKubeconfig<'a> {
    by: &'static str,
    /// Name of the plane in metrics.
    is: &'static str,
    file: &'a Path,
    context: Option<&'a str>,
}

fn kubeconfigs<'a>(flags: &'a Flags, config: &'a Config) -> Vec<NamedKubeconfig<'a>> {
    let discovery = &config.discovery;
    let hub = flags.federation_kubeconfig.as_deref().map(|file| NamedKubeconfig {
        by: "--federation-kubeconfig",
        is: "hub",
        file,
        context: flags.federation_context.as_deref(),
    });
    let by_field = [
        ("discovery.discoveryKubeconfigPath", "discovery", &discovery.discovery_kubeconfig_path),
        ("discovery.projectKubeconfigPath", "projects", &discovery.project_kubeconfig_path),
        ("discovery.quotaKubeconfigPath", "quota", &discovery.quota_kubeconfig_path),
    ];
    let by_field = by_field
        .into_iter()
        .filter_map(|(by, is, file)| Some(NamedKubeconfig { by, is, file: file.as_deref()?, context: None }));
    let pods = config.pods_kubeconfig(flags).map(|file| NamedKubeconfig {
        by: if flags.cluster_kubeconfig.is_some() {
            "--cluster-kubeconfig"
        } else {
            "pods.clusterKubeconfigPath"
        },
        is: "cluster",
        file,
        context: None,
    });
    hub.into_iter().chain(by_field).chain(pods).collect()
}

async fn kubeconfig(named: &NamedKubeconfig<'_>, now: Timestamp, findings: &mut Findings) {
    let what = format!("{} ({})", named.by, named.file.display());
    let next = "the file must have clusters, users, contexts and a current-context; check it with `kubectl config view`";
    if let Err(error) = std::fs::metadata(named.file) {
        return findings.error(
            what,
            error.to_string(),
            "mount the file there, or change the path; see deploy/components/hub-access and \
             deploy/components/quota-credentials for the object it comes from",
        );
    }
    if let Err(error) = Plane::from_kubeconfig("checked", named.file, named.context).await {
        return findings.error(what, error.to_string(), next);
    }
    let before = findings.error_count();
    if let Ok(read) = Kubeconfig::read_from(named.file) {
        check_credentials(&what, &read, named.context, now, findings);
    }
    if findings.error_count() == before {
        findings.ok(what);
    }
}

/// Expiry of each certificate in the files of this process, by its use.
pub(in crate::manager) fn certificates(flags: &Flags, config: &Config) -> Vec<(&'static str, Timestamp)> {
    let by_kubeconfig = kubeconfigs(flags, config).into_iter().filter_map(|named| {
        let read = Kubeconfig::read_from(named.file).ok()?;
        let pem = client_certificate(user(&read, named.context)?)?;
        Some((named.is, credentials::certificate_ends(&pem)?))
    });
    // A certificate in a Secret has no file.
    let in_files = config.webhook_server.iter().filter(|server| server.tls.secret_ref.is_none());
    let webhooks = in_files.filter_map(|server| {
        let files = origin::files(&server.tls, origin::WEBHOOKS, &server.client_ca_name);
        Some(("webhooks", file_ends(&files)?))
    });
    let guarded = config.metrics_server.is_secure().then_some(&config.metrics_server.tls);
    let metrics = guarded.and_then(|tls| match origin::source(tls, |file| file.exists()) {
        CertificateSource::Files(files) => Some(("metrics", file_ends(&files)?)),
        // A certificate in a Secret has no file. A self-signed one outlives the process.
        CertificateSource::Secret(_) | CertificateSource::SelfSigned => None,
    });
    by_kubeconfig.chain(webhooks).chain(metrics).collect()
}

/// The user of a kubeconfig's context.
fn user<'a>(read: &'a Kubeconfig, context: Option<&str>) -> Option<&'a AuthInfo> {
    let context = context.or(read.current_context.as_deref());
    let context = read.contexts.iter().find(|found| Some(found.name.as_str()) == context)?;
    let user = context.context.as_ref()?.user.as_ref();
    read.auth_infos.iter().find(|found| Some(&found.name) == user)?.auth_info.as_ref()
}

/// The client certificate of a user, if it has one.
fn client_certificate(user: &AuthInfo) -> Option<Vec<u8>> {
    match (user.client_certificate_data.as_deref(), user.client_certificate.as_deref()) {
        (Some(data), _) => {
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data.trim()).ok()
        }
        (None, Some(file)) => std::fs::read(file).ok(),
        (None, None) => None,
    }
}

/// Checks that the user of a kubeconfig has a credential that is not expired.
fn check_credentials(
    what: &str,
    read: &Kubeconfig,
    context: Option<&str>,
    now: Timestamp,
    findings: &mut Findings,
) {
    let Some(user) = user(read, context) else {
        return findings.error(
            what,
            "the user of its context has no credentials",
            "add a tokenFile or a client certificate to the user",
        );
    };
    if let Some(file) = &user.token_file {
        match std::fs::read_to_string(file) {
            Err(error) => findings.error(
                format!("{what}, token file {file}"),
                error.to_string(),
                "mount a projected service account token there (deploy/components/hub-access)",
            ),
            Ok(token) if token.trim().is_empty() => {
                findings.error(
                    format!("{what}, token file {file}"),
                    "the file is empty",
                    "write the token to it",
                );
            }
            Ok(token) => check_expiry(
                &format!("{what}, token file {file}"),
                credentials::token_ends(&token),
                now,
                "the token is no longer renewed: the kubelet renews a projected token; write a new token of any other type",
                findings,
            ),
        }
    }
    let end = client_certificate(user).and_then(|pem| credentials::certificate_ends(&pem));
    check_expiry(
        &format!("{what}, client certificate"),
        end,
        now,
        "issue a new certificate; a changed file is read for the next connection",
        findings,
    );
}

fn check_expiry(what: &str, end: Option<Timestamp>, now: Timestamp, next: &str, findings: &mut Findings) {
    if let Some(end) = end.filter(|end| *end <= now) {
        findings.expired.push(CliError::usage(what, format!("it expired at {end}"), next));
    }
}

/// Expiry of the certificate in files.
fn file_ends(files: &CertificateFiles) -> Option<Timestamp> {
    credentials::certificate_ends(&std::fs::read(&files.certificate).ok()?)
}

fn note_secret(field: &str, secret: &SecretRef, findings: &mut Findings) {
    findings.note(format!(
        "{field}: the manager reads and watches Secret {}/{} of its cluster; deploy/components/secret-webhook-cert grants this, and --check-config=planes checks it",
        secret.namespace, secret.name
    ));
}

/// Checks the certificate of a server. `mount` is what to do if it cannot be used.
fn certificate(field: &str, files: CertificateFiles, mount: &str, now: Timestamp, findings: &mut Findings) {
    let what = format!("{field} ({})", files.certificate.display());
    let end = file_ends(&files);
    if let Err(error) = files.open() {
        return findings.error(what, error.to_string(), mount);
    }
    let before = findings.error_count();
    check_expiry(
        &what,
        end,
        now,
        "the certificate is no longer renewed: check its Certificate object or its issuer",
        findings,
    );
    if findings.error_count() == before {
        findings.ok(what);
    }
}
