//! The NetworkPolicy of an Instance whose interface has a network policy.

use polis_api::ObjectExt;
use polis_api::compute::{IngressRule, Instance, PolicyPeer, PolicyPort};
use polis_api::k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use polis_api::labels;

use crate::metadata;

/// The policy for the Pod of an Instance; none if its interface allows all traffic. Only incoming traffic is
/// restricted, as in the Instance.
pub fn network_policy(instance: &Instance) -> Option<NetworkPolicy> {
    let policy = instance.spec.network_interfaces.first()?.network_policy.as_ref()?;
    let uid = metadata::map([(labels::INSTANCE_UID, instance.uid())]);
    Some(NetworkPolicy {
        metadata: ObjectMeta {
            name: instance.metadata.name.clone(),
            namespace: instance.metadata.namespace.clone(),
            labels: Some(uid.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(uid), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(policy.ingress.iter().map(rule).collect()),
            egress: None,
        }),
    })
}

fn rule(rule: &IngressRule) -> NetworkPolicyIngressRule {
    let some = |is_empty: bool| (!is_empty).then_some(());
    NetworkPolicyIngressRule {
        ports: some(rule.ports.is_empty()).map(|()| rule.ports.iter().map(port).collect()),
        from: some(rule.from.is_empty()).map(|()| rule.from.iter().map(peer).collect()),
    }
}

fn port(port: &PolicyPort) -> NetworkPolicyPort {
    let PolicyPort { port, end_port, protocol } = port;
    NetworkPolicyPort { port: port.clone(), end_port: *end_port, protocol: protocol.clone() }
}

fn peer(peer: &PolicyPeer) -> NetworkPolicyPeer {
    let block = |block: &polis_api::compute::IpBlock| IPBlock {
        cidr: block.cidr.clone(),
        except: (!block.except.is_empty()).then(|| block.except.clone()),
    };
    NetworkPolicyPeer { ip_block: peer.ip_block.as_ref().map(block), ..NetworkPolicyPeer::default() }
}
