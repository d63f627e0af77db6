//! Unmodified Go controllers on an embedded plane: Karmada uses it as a member cluster, and
//! kube-controller-manager runs the garbage collector and the namespace controller in place of the built-in
//! ones.

#[path = "../common/mod.rs"]
mod common;
mod karmada;
mod kube_controller_manager;
mod test_server;
