//! Flags, configuration, and the files that they name. Nothing is sent.

use std::path::Path;

use jiff::Timestamp;
use polis_api::kube::config::{AuthInfo, Kubeconfig};
use polis_engine::Plane;
use polis_tls::CertificateFiles;

use super::{Findings, credentials};
use crate::exit::Fault;
use crate::manager::address;
use crate::manager::certificates::{self as origin, Proof};
use crate::manager::config::{Config, Mode, SecretRef};
use crate::manager::flags::Flags;

/// The configuration, and everything that can be told without asking anybody.
pub(super) async fn examine(flags: &Flags, now: Timestamp) -> (Config, Findings) {
    let mut findings = Findings::default();
    let config = super::read(flags, &mut findings);
    findings.faults.extend(at_once(flags, &config));
    if let Err(error) = Plane::inferred("own").await {
        findings.fault(
            "the cluster of this process",
            error.to_string(),
            "run it in a pod with a service account, or name a kubeconfig in the variable KUBECONFIG",
        );
    }
    for named in kubeconfigs(flags, &config) {
        kubeconfig(&named, now, &mut findings).await;
    }
    if let Some(server) = &config.webhook_server {
        let issued = "deploy/components/csi-webhook-cert mounts it; the issuer is the environment's to name by a patch";
        match &server.tls.secret_ref {
            Some(secret) => in_secret("webhookServer.tls", secret, &mut findings),
            None => {
                let files = origin::files(&server.tls, origin::WEBHOOKS, &server.client_ca_name);
                certificate("webhookServer.tls", files, issued, now, &mut findings);
            }
        }
    }
    if config.metrics_server.is_guarded() {
        let mount = "mount a certificate there, or take metricsServer.tls out: then the manager makes one that nobody can check";
        match origin::proof(&config.metrics_server.tls, |file| file.exists()) {
            Proof::Secret(secret) => in_secret("metricsServer.tls", secret, &mut findings),
            Proof::Files(files) => certificate("metricsServer.tls", files, mount, now, &mut findings),
            Proof::Own => findings.note(
                "metricsServer.tls names no certificate: the manager makes one when it starts, which scrapers cannot check",
            ),
        }
    }
    (config, findings)
}

/// What is wrong with flags and configuration by themselves: what a start refuses as well.
pub(in crate::manager) fn at_once(flags: &Flags, config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut wrong = |what: &str, why: &str, next: &str| faults.push(Fault::usage(what, why, next));
    let (management, cell) = (flags.enable_management_controllers, flags.enable_cell_controllers);
    let discovery = &config.discovery;
    if !management && !cell {
        wrong(
            "roles",
            "no role is switched on",
            "give --enable-management-controllers or --enable-cell-controllers",
        );
    }
    if flags.federation_kubeconfig.is_none() {
        wrong("--federation-kubeconfig", "the hub is not given", "name its kubeconfig");
    }
    // A deployment that comes to the cell would look like one of the project and go out again, without end.
    if management && cell && discovery.mode == Mode::Single {
        wrong(
            "discovery.mode",
            "one cluster cannot be project plane and cell",
            "set discovery.mode: milo, or run the roles beside two API servers",
        );
    }
    if discovery.internal_service_discovery && discovery.mode == Mode::Single {
        wrong(
            "discovery.internalServiceDiscovery",
            "it is about the projects of a platform, and mode single has one plane",
            "set discovery.mode: milo, or take it out",
        );
    }
    if cell && discovery.quota_kubeconfig().is_some() && discovery.cluster_name.is_none() {
        wrong(
            "discovery.clusterName",
            "quota is configured, and claims must say which cell they are of",
            "set discovery.clusterName, another for each cell",
        );
    }
    if let Err(error) = address::parse(&flags.health_probe_bind_address) {
        wrong("--health-probe-bind-address", &error.to_string(), "write it as :8081 or 127.0.0.1:8081");
    }
    let metrics = &config.metrics_server;
    if metrics.is_on() {
        if let Err(error) = address::parse(&metrics.bind_address) {
            wrong(
                "metricsServer.bindAddress",
                &error.to_string(),
                "write it as :8080, or \"0\" to switch it off",
            );
        }
    }
    let webhooks = config.webhook_server.as_ref().map(|server| &server.tls);
    for (field, tls) in [
        ("webhookServer.tls.secretRef", webhooks),
        ("metricsServer.tls.secretRef", Some(&config.metrics_server.tls)),
    ] {
        let secret = tls.and_then(|tls| tls.secret_ref.as_ref());
        if secret.is_some_and(|secret| secret.name.is_empty() || secret.namespace.is_empty()) {
            wrong(
                field,
                "a Secret has a name and a namespace",
                "set both, or mount the Secret and give its folder as certDir",
            );
        }
    }
    faults
}

/// A kubeconfig, and what names it.
struct Named<'a> {
    by: &'static str,
    /// What it leads to.
    is: &'static str,
    file: &'a Path,
    context: Option<&'a str>,
}

fn kubeconfigs<'a>(flags: &'a Flags, config: &'a Config) -> Vec<Named<'a>> {
    let discovery = &config.discovery;
    let hub = flags.federation_kubeconfig.as_deref().map(|file| Named {
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
        .filter_map(|(by, is, file)| Some(Named { by, is, file: file.as_deref()?, context: None }));
    hub.into_iter().chain(by_field).collect()
}

async fn kubeconfig(named: &Named<'_>, now: Timestamp, findings: &mut Findings) {
    let what = format!("{} ({})", named.by, named.file.display());
    let next = "the file holds clusters, users, contexts and a current-context; `kubectl config view` shows what is in it";
    if let Err(error) = std::fs::metadata(named.file) {
        return findings.fault(
            what,
            error.to_string(),
            "mount the file there, or change the path; deploy/components/hub-access and \
             deploy/components/quota-credentials say which object it comes from",
        );
    }
    if let Err(error) = Plane::from_kubeconfig("checked", named.file, named.context).await {
        return findings.fault(what, error.to_string(), next);
    }
    let before = findings.wrong();
    if let Ok(read) = Kubeconfig::read_from(named.file) {
        ends(&what, &read, named.context, now, findings);
    }
    if findings.wrong() == before {
        findings.good(what);
    }
}

/// When each certificate of this process ends that can be read, by what it is for.
pub(in crate::manager) fn certificates(flags: &Flags, config: &Config) -> Vec<(&'static str, Timestamp)> {
    let by_kubeconfig = kubeconfigs(flags, config).into_iter().filter_map(|named| {
        let read = Kubeconfig::read_from(named.file).ok()?;
        let pem = client_certificate(user(&read, named.context)?)?;
        Some((named.is, credentials::certificate_ends(&pem)?))
    });
    // One in a Secret is not in any file.
    let in_files = config.webhook_server.iter().filter(|server| server.tls.secret_ref.is_none());
    let webhooks = in_files.filter_map(|server| {
        let files = origin::files(&server.tls, origin::WEBHOOKS, &server.client_ca_name);
        Some(("webhooks", file_ends(&files)?))
    });
    let guarded = config.metrics_server.is_guarded().then_some(&config.metrics_server.tls);
    let metrics = guarded.and_then(|tls| match origin::proof(tls, |file| file.exists()) {
        Proof::Files(files) => Some(("metrics", file_ends(&files)?)),
        // One in a Secret is not in any file, and one of its own ends after the process.
        Proof::Secret(_) | Proof::Own => None,
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

/// The certificate by which a user is known, if it is known by one.
fn client_certificate(user: &AuthInfo) -> Option<Vec<u8>> {
    match (user.client_certificate_data.as_deref(), user.client_certificate.as_deref()) {
        (Some(data), _) => {
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data.trim()).ok()
        }
        (None, Some(file)) => std::fs::read(file).ok(),
        (None, None) => None,
    }
}

/// Whether the user of a kubeconfig has a credential, and how long.
fn ends(what: &str, read: &Kubeconfig, context: Option<&str>, now: Timestamp, findings: &mut Findings) {
    let Some(user) = user(read, context) else {
        return findings.fault(
            what,
            "the user of its context has no credential",
            "put a tokenFile or a client certificate into its users",
        );
    };
    if let Some(file) = &user.token_file {
        match std::fs::read_to_string(file) {
            Err(error) => findings.fault(
                format!("{what}, token file {file}"),
                error.to_string(),
                "mount a projected service account token there (deploy/components/hub-access)",
            ),
            Ok(token) if token.trim().is_empty() => {
                findings.fault(format!("{what}, token file {file}"), "it is empty", "put the token into it");
            }
            Ok(token) => over(
                &format!("{what}, token file {file}"),
                credentials::token_ends(&token),
                now,
                "whoever renews it has stopped: with a projected token that is the kubelet; with any other, put a new one there",
                findings,
            ),
        }
    }
    let end = client_certificate(user).and_then(|pem| credentials::certificate_ends(&pem));
    over(
        &format!("{what}, client certificate"),
        end,
        now,
        "issue a new one; files that change are read anew for the next connection",
        findings,
    );
}

fn over(what: &str, end: Option<Timestamp>, now: Timestamp, next: &str, findings: &mut Findings) {
    if let Some(end) = end.filter(|end| *end <= now) {
        findings.ended.push(Fault::usage(what, format!("it ended at {end}"), next));
    }
}

/// When the certificate in files ends.
fn file_ends(files: &CertificateFiles) -> Option<Timestamp> {
    credentials::certificate_ends(&std::fs::read(&files.certificate).ok()?)
}

fn in_secret(field: &str, secret: &SecretRef, findings: &mut Findings) {
    findings.note(format!(
        "{field}: Secret {}/{} of the manager's own cluster is read at the start and watched; deploy/components/secret-webhook-cert grants that, and --check-config=planes asks for it",
        secret.namespace, secret.name
    ));
}

/// The certificate of a server. `mount` says what to do where it cannot be used.
fn certificate(field: &str, files: CertificateFiles, mount: &str, now: Timestamp, findings: &mut Findings) {
    let what = format!("{field} ({})", files.certificate.display());
    let end = file_ends(&files);
    if let Err(error) = files.open() {
        return findings.fault(what, error.to_string(), mount);
    }
    let before = findings.wrong();
    over(
        &what,
        end,
        now,
        "its issuer has stopped renewing it: look at the certificate's own object",
        findings,
    );
    if findings.wrong() == before {
        findings.good(what);
    }
}
