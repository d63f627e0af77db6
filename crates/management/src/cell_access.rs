//! Cell access controller: gives the cells of a city rights in the hub namespaces where the city has
//! deployments.
//!
//! Reads   hub: RoleBinding, WorkloadDeployment, Instance, Namespace; before rights are withdrawn uncached
//!         WorkloadDeployment and Instance
//! Writes  hub: RoleBinding, Namespace (removes the presence label of a city)
//! Order   presence label → RoleBinding when rights are withdrawn, so that a cell which is refused finds the
//!         reason.
//!
//! Keys are the RoleBindings, which are named like the policies of their cities. The first hub copy of a
//! city's deployments grants the rights, before the federation has brought it to a cell; the last deployment
//! and the last Instance of the city withdraw them. A binding that was changed or deleted by hand is
//! restored.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::rbac::v1::RoleBinding;
use polis_api::{ObjectExt, labels, names};
use polis_core::cell_access::{self, AccessAction};
use polis_core::policy::Referrer;
use polis_engine::{Action, Engine, Index, Key, ListOptions, Plane, Reconciler, Unresolved, Watch};

use crate::{Error, Management, unresolved_objects};

/// The watches of the controller on the hub.
pub(crate) fn hub_watches() -> Vec<Watch> {
    vec![
        Watch::of::<RoleBinding>().labels(labels::TOPOLOGY_CITY_CODE),
        Watch::of::<WorkloadDeployment>(),
        Watch::of::<Instance>().index(by_city()),
        unresolved_objects::watch(),
    ]
}

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let hub = &management.hub;
    engine
        .controller("cell-access", hub, CellAccess { hub: hub.clone() })
        .for_kind::<RoleBinding>()
        .watches::<WorkloadDeployment>(hub, keys_of_deployment)
        .watches::<Instance>(hub, keys_of_instance);
}

/// Instances by their city.
fn by_city() -> Index {
    Index::label(labels::CITY_CODE)
}

/// Creates, replaces and deletes the RoleBindings of cities.
struct CellAccess {
    hub: Plane,
}

impl Reconciler for CellAccess {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let namespace = self.hub.get::<Namespace>(key.namespace())?;
        let Some(namespace) = namespace.filter(|namespace| !namespace.is_deleting()) else {
            return Ok(Action::AwaitChange); // its RoleBindings are deleted with it
        };
        let existing = self.hub.get::<RoleBinding>(key)?;
        let deployments = self.hub.list_within::<WorkloadDeployment>(key.namespace())?;
        let deployments = of_policy(deployments, &key.name);
        let city = existing.as_ref().and_then(cell_access::city_of).map(str::to_owned);
        let Some(city) = city.or_else(|| Some(deployments.first()?.spec.city_code.clone())) else {
            return Ok(Action::AwaitChange);
        };
        let copies = self.hub.names_within::<Instance>(key.namespace(), &by_city(), &city)?;
        match plan(&deployments, copies.len(), key, &city, existing.as_ref()) {
            AccessAction::None => {}
            AccessAction::Grant => match self.hub.create(&cell_access::desired(key.namespace(), &city)).await
            {
                // A binding that lost its label is not in the cache.
                Err(error) if !error.is_already_exists() => return Err(error.into()),
                _ => {}
            },
            AccessAction::Replace(object) => {
                self.hub.delete_at::<RoleBinding>(key, &object.uid, Some(&object.resource_version)).await?;
            }
            AccessAction::Withdraw(_) => self.withdraw(key, &namespace, &city, existing.as_ref()).await?,
        }
        Ok(Action::AwaitChange)
    }
}

impl CellAccess {
    /// Removes the presence label and the RoleBinding if uncached reads find no deployment and no Instance.
    async fn withdraw(
        &self,
        key: &Key,
        namespace: &Namespace,
        city: &str,
        existing: Option<&RoleBinding>,
    ) -> Result<(), Error> {
        let within = ListOptions::within(key.namespace());
        let deployments = self.hub.uncached().list::<WorkloadDeployment>(&within).await?;
        let of_city = within.labels(format!("{}={city}", labels::CITY_CODE));
        let copies = self.hub.uncached().list::<Instance>(&of_city).await?.len();
        let deployments = of_policy(deployments, &key.name);
        let AccessAction::Withdraw(object) = plan(&deployments, copies, key, city, existing) else {
            return Ok(()); // their events requeue the key
        };
        if let Some(unlabelled) = cell_access::without_presence(namespace, city) {
            self.hub.update(namespace, &unlabelled).await?;
        }
        self.hub.delete_at::<RoleBinding>(key, &object.uid, Some(&object.resource_version)).await?;
        Ok(())
    }
}

fn plan(
    deployments: &[WorkloadDeployment],
    copies: usize,
    key: &Key,
    city: &str,
    existing: Option<&RoleBinding>,
) -> AccessAction {
    let deployments: Vec<_> = deployments.iter().map(Referrer::of).collect();
    cell_access::plan(&deployments, copies, key.namespace(), city, existing)
}

/// The deployments whose city has this policy. Cities that differ only in case share it.
fn of_policy(mut deployments: Vec<WorkloadDeployment>, policy: &str) -> Vec<WorkloadDeployment> {
    deployments.retain(|deployment| names::policy(&deployment.spec.city_code) == policy);
    deployments
}

/// Maps a deployment to the RoleBinding of its city, if the deployment is why the binding may change.
fn keys_of_deployment(hub: &Plane, deployment: &WorkloadDeployment) -> Result<Vec<Key>, Unresolved> {
    let (namespace, city) = (deployment.namespace(), &deployment.spec.city_code);
    let binding = names::policy(city);
    let current = hub.get::<WorkloadDeployment>((namespace, deployment.name()))?;
    let needed = current.is_some_and(|current| !current.is_deleting() && current.spec.city_code == *city);
    let granted = hub.get::<RoleBinding>((namespace, binding.as_str()))?.is_some();
    Ok(if needed == granted { Vec::new() } else { vec![Key::new(hub.name().clone(), namespace, &binding)] })
}

/// Maps a deleted Instance to the RoleBinding of its city.
fn keys_of_instance(hub: &Plane, instance: &Instance) -> Result<Vec<Key>, Unresolved> {
    let Some(city) = instance.label(labels::CITY_CODE) else { return Ok(Vec::new()) };
    let namespace = instance.namespace();
    let last = hub.names_within::<Instance>(namespace, &by_city(), city)?.is_empty();
    Ok(if last { vec![Key::new(hub.name().clone(), namespace, &names::policy(city))] } else { Vec::new() })
}
