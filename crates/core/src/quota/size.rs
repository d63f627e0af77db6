//! The size of an instance, and the resources that its claim requests.

use std::collections::BTreeMap;

use polis_api::compute::InstanceSpec;
use polis_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use polis_api::quota::{RESOURCE_INSTANCES, RESOURCE_MEMORY, RESOURCE_VCPUS, ResourceRequest};

use crate::quantity::{Unit, in_units};

/// Instance types of known size: name, CPU in millicores, memory in MiB.
const CATALOG: [(&str, i64, i64); 1] = [("datumcloud/d1-standard-2", 1000, 2048)];

/// The names of the instance types of known size; the first is the default.
pub fn instance_types() -> impl Iterator<Item = &'static str> {
    CATALOG.iter().map(|(name, _, _)| *name)
}

/// CPU and memory of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceSize {
    /// CPU, in millicores.
    pub millicores: i64,
    /// Memory, in MiB.
    pub mebibytes: i64,
}

/// A template has an invalid size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to size the instance: {resource} of {amount:?} is not a positive quantity in the supported range; correct the template"
)]
pub struct SizeError {
    /// `cpu` or `memory`.
    pub resource: &'static str,
    /// The amount in the template.
    pub amount: String,
}

/// The size of an instance; `None` if neither limits, requests nor a known instance type determine it.
pub fn instance_size(spec: &InstanceSpec) -> Result<Option<InstanceSize>, SizeError> {
    if let Some(sandbox) = &spec.runtime.sandbox {
        let none = BTreeMap::new();
        let limits =
            |c: &polis_api::compute::SandboxContainer| c.resources.as_ref().map(|r| r.limits.clone());
        let each: Result<Option<Vec<_>>, _> = sandbox
            .containers
            .iter()
            .map(|container| of(&limits(container).unwrap_or_else(|| none.clone())))
            .collect();
        if let Some(each) = each?.filter(|each| !each.is_empty()) {
            return total(&each).map(Some);
        }
    }
    if let Some(requested) = of(&spec.runtime.resources.requests)? {
        return Ok(Some(requested));
    }
    let known = CATALOG.iter().find(|(name, _, _)| *name == spec.runtime.resources.instance_type);
    Ok(known
        .map(|(_, millicores, mebibytes)| InstanceSize { millicores: *millicores, mebibytes: *mebibytes }))
}

/// The requests of the claim of an instance of this size.
pub fn requests(size: Option<InstanceSize>) -> Vec<ResourceRequest> {
    let request = |resource: &str, amount| ResourceRequest {
        resource_type: resource.to_owned(),
        amount,
        ..Default::default()
    };
    let mut requests = vec![request(RESOURCE_INSTANCES, 1)];
    if let Some(InstanceSize { millicores, mebibytes }) = size {
        requests.extend([request(RESOURCE_VCPUS, millicores), request(RESOURCE_MEMORY, mebibytes)]);
    }
    requests
}

/// CPU and memory from a map of quantities, if both are set.
fn of(quantities: &BTreeMap<String, Quantity>) -> Result<Option<InstanceSize>, SizeError> {
    let amount = |resource: &'static str, unit| {
        let Some(quantity) = quantities.get(resource) else { return Ok(None) };
        let amount = in_units(&quantity.0, unit).filter(|amount| *amount > 0);
        amount.map(Some).ok_or_else(|| SizeError { resource, amount: quantity.0.clone() })
    };
    let (millicores, mebibytes) = (amount("cpu", Unit::Thousandth)?, amount("memory", Unit::Mebi)?);
    Ok(millicores.zip(mebibytes).map(|(millicores, mebibytes)| InstanceSize { millicores, mebibytes }))
}

fn total(each: &[InstanceSize]) -> Result<InstanceSize, SizeError> {
    let sum = |resource: &'static str, amount: fn(&InstanceSize) -> i64| {
        let sum = each.iter().map(amount).try_fold(0i64, i64::checked_add);
        sum.ok_or_else(|| SizeError { resource, amount: "the sum of all containers".into() })
    };
    Ok(InstanceSize {
        millicores: sum("cpu", |size| size.millicores)?,
        mebibytes: sum("memory", |size| size.mebibytes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_template, with_limits};

    fn size(millicores: i64, mebibytes: i64) -> Option<InstanceSize> {
        Some(InstanceSize { millicores, mebibytes })
    }

    #[test]
    fn limits_of_all_containers_are_added_up() {
        let mut template = with_limits(mk_template("app:1"), &[("cpu", "500m"), ("memory", "1Gi")]);
        let containers = &mut template.spec.runtime.sandbox.as_mut().unwrap().containers;
        containers.push(containers[0].clone());
        assert_eq!(instance_size(&template.spec), Ok(size(1000, 2048)));
    }

    #[test]
    fn one_container_without_limits_makes_the_requests_of_the_instance_count() {
        let mut template = with_limits(mk_template("app:1"), &[("cpu", "500m")]);
        template.spec.runtime.resources.requests =
            [("cpu", "2"), ("memory", "4Gi")].map(|(n, q)| (n.to_owned(), Quantity(q.to_owned()))).into();
        assert_eq!(instance_size(&template.spec), Ok(size(2000, 4096)));
    }

    #[test]
    fn without_limits_and_requests_the_instance_type_counts() {
        assert_eq!(instance_size(&mk_template("app:1").spec), Ok(size(1000, 2048)));
    }

    #[test]
    fn an_unknown_type_requests_only_one_instance() {
        let mut template = mk_template("app:1");
        template.spec.runtime.resources.instance_type = "unheard/of".into();
        assert_eq!(instance_size(&template.spec), Ok(None));
        assert_eq!(requests(None).len(), 1);
    }

    #[test]
    fn negative_zero_and_oversized_amounts_are_rejected() {
        for amount in ["-1", "0", "1e99", "lots"] {
            let template = with_limits(mk_template("app:1"), &[("cpu", amount), ("memory", "1Gi")]);
            assert_eq!(
                instance_size(&template.spec),
                Err(SizeError { resource: "cpu", amount: amount.into() })
            );
        }
        let mut template =
            with_limits(mk_template("app:1"), &[("cpu", "9007199254740993"), ("memory", "1Gi")]);
        let containers = &mut template.spec.runtime.sandbox.as_mut().unwrap().containers;
        *containers = vec![containers[0].clone(); 2];
        assert!(instance_size(&template.spec).is_err());
    }

    #[test]
    fn a_claim_requests_instances_cpu_and_memory() {
        let requests: Vec<_> =
            requests(size(1000, 2048)).into_iter().map(|r| (r.resource_type, r.amount)).collect();
        assert_eq!(
            requests,
            [
                ("compute.datumapis.com/instances".to_owned(), 1),
                ("compute.datumapis.com/vcpus".to_owned(), 1000),
                ("compute.datumapis.com/memory".to_owned(), 2048)
            ]
        );
    }
}
