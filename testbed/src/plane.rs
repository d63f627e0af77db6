//! A plane: a kube-apiserver on its own prefix in the bed's etcd, and mostly a kube-controller-manager.

use serde::{Deserialize, Serialize};

use crate::{binaries::Binaries, home::Home, pins, pki::FRONT_PROXY, pki::Pki, process::Spec};

/// The name of the hub's plane.
pub const HUB: &str = "hub";
/// The name of the only plane of a bed without federation.
pub const LONE: &str = "plane";

/// What a plane is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A project's own plane.
    Project,
    /// The federation hub.
    Hub,
    /// The cell of a city.
    Cell {
        /// The city's code, as it is written in labels.
        city: String,
    },
}

/// One plane of a bed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plane {
    /// Its name: `hub`, the project's, or the city's in lower case.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its address.
    pub server: String,
}

impl Plane {
    /// The component that serves the plane.
    pub fn apiserver(&self) -> String {
        apiserver_name(&self.name)
    }

    /// The component that deletes namespaces and collects garbage on the plane.
    pub fn controller_manager(&self) -> String {
        controller_manager_name(&self.name)
    }
}

fn apiserver_name(plane: &str) -> String {
    format!("kube-apiserver-{plane}")
}

fn controller_manager_name(plane: &str) -> String {
    format!("kube-controller-manager-{plane}")
}

/// The address of a kube-apiserver on the port.
pub fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// With it a kube-apiserver asks, of whoever names an owner that waits for what it owns, for the right to change the
/// finalizers of that owner.
pub const OWNERS_GUARDED: &str = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";

/// How the kube-apiserver of a plane is started.
pub fn apiserver(
    binaries: &Binaries,
    pki: &Pki,
    plane: &str,
    kind: &Kind,
    etcd: &str,
    port: u16,
) -> Result<Spec, crate::Error> {
    let (cert, key) = pki.server();
    let (proxy_cert, proxy_key) = pki.front_proxy();
    let (accounts_public, accounts_private) = pki.service_accounts();
    let ca = pki.ca().display().to_string();
    let mut args = vec![
        format!("--etcd-servers={etcd}"),
        format!("--etcd-prefix=/planes/{plane}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--advertise-address=127.0.0.1".to_owned(),
        // A loopback address may not stand in Endpoints; nobody here looks for the API by its Service.
        "--endpoint-reconciler-type=none".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        format!("--client-ca-file={ca}"),
        format!("--tls-cert-file={}", cert.display()),
        format!("--tls-private-key-file={}", key.display()),
        "--service-account-issuer=https://polis.test".to_owned(),
        format!("--service-account-key-file={}", accounts_public.display()),
        format!("--service-account-signing-key-file={}", accounts_private.display()),
        format!("--proxy-client-cert-file={}", proxy_cert.display()),
        format!("--proxy-client-key-file={}", proxy_key.display()),
        format!("--requestheader-client-ca-file={ca}"),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--profiling=false".to_owned(),
    ];
    match kind {
        // As Karmada starts its own: on the hub pods and volumes are templates that nobody runs.
        Kind::Hub => {
            args.push("--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection".to_owned());
        }
        // Karmada logs in to a member with a bearer token and in no other way.
        Kind::Cell { .. } => args.push(format!("--token-auth-file={}", pki.token(plane)?.1.display())),
        Kind::Project => {}
    }
    Ok(Spec {
        name: apiserver_name(plane),
        program: binaries.path(pins::KUBE_APISERVER),
        args,
        ports: vec![port],
        ready: format!("{}/readyz", server(port)),
    })
}

/// How the kube-controller-manager of a plane is started.
pub fn controller_manager(binaries: &Binaries, home: &Home, pki: &Pki, plane: &str, port: u16) -> Spec {
    let kubeconfig = home.kubeconfig(plane).display().to_string();
    let (cert, key) = pki.server();
    let (_, accounts_private) = pki.service_accounts();
    Spec {
        name: controller_manager_name(plane),
        program: binaries.path(pins::KUBE_CONTROLLER_MANAGER),
        args: vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            // Without the first a namespace is never gone; without the second nothing follows its owner.
            "--controllers=namespace-controller,garbage-collector-controller,serviceaccount-controller,\
             serviceaccount-token-controller"
                .to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", cert.display()),
            format!("--tls-private-key-file={}", key.display()),
            format!("--service-account-private-key-file={}", accounts_private.display()),
            format!("--root-ca-file={}", pki.ca().display()),
            // The default of 20 makes the deletion of a namespace with many kinds take seconds.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            "--profiling=false".to_owned(),
        ],
        ports: vec![port],
        ready: format!("{}/healthz", server(port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_args(kind: Kind) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::create(folder.path()).unwrap();
        let binaries = Binaries::at("/cache".as_ref());
        apiserver(&binaries, &pki, "dfw", &kind, "http://127.0.0.1:20001", 20_002).unwrap().args
    }

    fn has(args: &[String], start: &str) -> bool {
        args.iter().any(|arg| arg.starts_with(start))
    }

    #[test]
    fn each_plane_keeps_to_its_own_prefix_and_to_this_machine() {
        let args = mk_args(Kind::Project);
        assert!(has(&args, "--etcd-prefix=/planes/dfw"));
        assert!(has(&args, "--bind-address=127.0.0.1"));
        assert!(has(&args, "--secure-port=20002"));
    }

    #[test]
    fn only_a_cell_takes_the_token_of_the_federation() {
        assert!(has(&mk_args(Kind::Cell { city: "DFW".to_owned() }), "--token-auth-file="));
        assert!(!has(&mk_args(Kind::Project), "--token-auth-file="));
        assert!(!has(&mk_args(Kind::Hub), "--token-auth-file="));
    }

    #[test]
    fn only_the_hub_leaves_out_admission_of_what_it_never_runs() {
        assert!(has(&mk_args(Kind::Hub), "--disable-admission-plugins=ServiceAccount"));
        assert!(!has(&mk_args(Kind::Project), "--disable-admission-plugins"));
    }
}
