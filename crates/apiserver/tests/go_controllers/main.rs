//! Unmodified Go controllers on an embedded plane: Karmada writes to it as a member, and kube-controller-manager
//! collects garbage and ends namespaces on it while ours are off.

#[path = "../common/mod.rs"]
mod common;
mod karmada;
mod kube_controller_manager;
mod mounted;
