//! A plane: a kube-apiserver with its own prefix in etcd and, by option, a kube-controller-manager.

use serde::{Deserialize, Serialize};

use crate::{
    binaries::Binaries, pins, pki::FRONT_PROXY, pki::Pki, process::ComponentSpec, state_dir::StateDir,
};

/// The name of the hub plane.
pub const HUB: &str = "hub";
/// The name of the plane of a single-plane test cluster.
pub const SINGLE_PLANE: &str = "plane";

/// The role of a plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaneKind {
    /// A project plane.
    Project,
    /// The federation hub.
    Hub,
    /// The cell of a city.
    Cell {
        /// The city code, as in labels.
        city: String,
    },
}

/// One plane of a test cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPlane {
    /// Its name: `hub`, the name of the project, or the city code in lower case.
    pub name: String,
    /// Its role.
    pub kind: PlaneKind,
    /// Its URL.
    pub server: String,
}

impl TestPlane {
    /// The name of its kube-apiserver component.
    pub fn apiserver(&self) -> String {
        apiserver_name(&self.name)
    }

    /// The name of its kube-controller-manager component (namespace deletion, garbage collection).
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

/// The URL of a kube-apiserver on this port.
pub fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// The flag for the admission plugin that requires permission to update the owner's finalizers for an owner
/// reference with `blockOwnerDeletion`.
pub const ENFORCE_OWNER_REFERENCES: &str = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";

/// The spec of the kube-apiserver of a plane.
pub fn apiserver(
    binaries: &Binaries,
    pki: &Pki,
    plane: &str,
    kind: &PlaneKind,
    etcd: &str,
    port: u16,
) -> Result<ComponentSpec, crate::Error> {
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
        // Endpoints must not hold a loopback address, and no client here uses the Service `kubernetes`.
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
        // As in Karmada's own deployment: on the hub, Pods and volumes are templates that are never run.
        PlaneKind::Hub => {
            args.push("--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection".to_owned());
        }
        // Karmada authenticates to a member only with a bearer token.
        PlaneKind::Cell { .. } => args.push(format!("--token-auth-file={}", pki.token(plane)?.1.display())),
        PlaneKind::Project => {}
    }
    Ok(ComponentSpec {
        name: apiserver_name(plane),
        program: binaries.path(pins::KUBE_APISERVER),
        args,
        ports: vec![port],
        ready: format!("{}/readyz", server(port)),
    })
}

/// The spec of the kube-controller-manager of a plane.
pub fn controller_manager(
    binaries: &Binaries,
    state_dir: &StateDir,
    pki: &Pki,
    plane: &str,
    port: u16,
) -> ComponentSpec {
    let kubeconfig = state_dir.kubeconfig(plane).display().to_string();
    let (cert, key) = pki.server();
    let (_, accounts_private) = pki.service_accounts();
    ComponentSpec {
        name: controller_manager_name(plane),
        program: binaries.path(pins::KUBE_CONTROLLER_MANAGER),
        args: vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            // The first finishes namespace deletion; the second deletes dependents of deleted owners.
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
            // With the default of 20, the deletion of a namespace with many kinds takes seconds.
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

    fn mk_args(kind: PlaneKind) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::create(folder.path()).unwrap();
        let binaries = Binaries::at("/cache".as_ref());
        apiserver(&binaries, &pki, "dfw", &kind, "http://127.0.0.1:20001", 20_002).unwrap().args
    }

    fn has(args: &[String], start: &str) -> bool {
        args.iter().any(|arg| arg.starts_with(start))
    }

    #[test]
    fn each_plane_has_its_own_prefix_and_listens_on_loopback() {
        let args = mk_args(PlaneKind::Project);
        assert!(has(&args, "--etcd-prefix=/planes/dfw"));
        assert!(has(&args, "--bind-address=127.0.0.1"));
        assert!(has(&args, "--secure-port=20002"));
    }

    #[test]
    fn only_a_cell_accepts_the_token_of_the_federation() {
        assert!(has(&mk_args(PlaneKind::Cell { city: "DFW".to_owned() }), "--token-auth-file="));
        assert!(!has(&mk_args(PlaneKind::Project), "--token-auth-file="));
        assert!(!has(&mk_args(PlaneKind::Hub), "--token-auth-file="));
    }

    #[test]
    fn only_the_hub_disables_admission_for_pods_and_volumes() {
        assert!(has(&mk_args(PlaneKind::Hub), "--disable-admission-plugins=ServiceAccount"));
        assert!(!has(&mk_args(PlaneKind::Project), "--disable-admission-plugins"));
    }
}
