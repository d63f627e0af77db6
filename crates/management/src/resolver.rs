//! Resolver: copies the config maps and secrets that a deployment refers to into its hub namespace.
//!
//! Reads   project: uncached ConfigMap and Secret, WorkloadDeployment · hub: ConfigMap, Secret (companions),
//!         WorkloadDeployment
//! Writes  hub: ConfigMap, Secret (companions only)
//! Order   sources → companions → (federator) hub copy with the list of its companions. Deletion: hub copy →
//!         the companions that no other deployment refers to.
//!
//! The federator calls it for each deployment, so that the hub copy, which starts instances, names data that
//! is on the hub already: an instance of a new spec never starts with older data than its deployment. A
//! project is watched for its config maps and secrets, their metadata alone, while a deployment refers to
//! one. A companion without a user has a key of its own name, under which the federator deletes it. The
//! values of a source are read when it has changed or a deployment has a new spec, and are not kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::{ObjectExt, annotations, labels};
use polis_core::canonical;
use polis_core::referenced_data::{
    self, CompanionAction, DataKind, DataObject, OBJECT_LIMIT, Reference, Resolution, SourceFacts,
    SourceState,
};
use polis_engine::{
    Change, ControllerBuilder, Index, Key, Kind, ListOptions, Object, Plane, PlaneName, PlaneSet,
    Preconditions, Unresolved, Watch,
};

use crate::Error;
use crate::unresolved_objects::UnresolvedObjects;

/// WorkloadDeployments by the companions that they need, and by the kinds of those.
pub(crate) fn by_companion() -> Index {
    Index::Computed("companion", referenced_data::index_values)
}

/// The watches of the hub.
pub(crate) fn hub_watches() -> [Watch; 2] {
    [Watch::of::<ConfigMap>(), Watch::of::<Secret>()].map(|watch| watch.labels(labels::REFERENCED_DATA))
}

/// Copies sources to companions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Resolver {
    hub: Plane,
    known: Arc<KnownSources>,
}

/// A source that was read, and the companion of it.
struct Observed {
    state: SourceState,
    /// Content hash of the existing companion.
    existing: Option<String>,
    /// The source, if the companion may have to be written.
    source: Option<Source>,
}

enum Source {
    ConfigMap(ConfigMap),
    Secret(Secret),
}

impl From<ConfigMap> for Source {
    fn from(source: ConfigMap) -> Self {
        Source::ConfigMap(source)
    }
}

impl From<Secret> for Source {
    fn from(source: Secret) -> Self {
        Source::Secret(source)
    }
}

impl Resolver {
    pub(crate) fn new(hub: Plane) -> Self {
        Self { hub, known: Arc::default() }
    }

    /// Adds the sources and the companions to the events of a controller of deployments.
    pub(crate) fn watch<'e>(
        &self,
        controller: ControllerBuilder<'e>,
        projects: &PlaneSet,
        unresolved: &UnresolvedObjects,
    ) -> ControllerBuilder<'e> {
        let known = self.known.clone();
        let [of_maps, of_secrets, of_copies] = [(); 3].map(|()| (projects.clone(), unresolved.clone()));
        controller
            .watches_added(projects, move |project, change| keys_of_source(&known, project, change))
            .watches::<ConfigMap>(&self.hub, move |hub, companion: &ConfigMap| {
                keys_of_companion(&of_maps, hub, companion)
            })
            .watches::<Secret>(&self.hub, move |hub, companion: &Secret| {
                keys_of_companion(&of_secrets, hub, companion)
            })
            .watches::<WorkloadDeployment>(&self.hub, move |hub, copy| keys_of_copy(&of_copies, hub, copy))
    }

    /// Ensures the companions of a deployment, and returns what its hub copy has to say about them.
    pub(crate) async fn ensure(
        &self,
        project: &Plane,
        hub_namespace: &str,
        deployment: &WorkloadDeployment,
        copy: Option<&WorkloadDeployment>,
    ) -> Result<Resolution, Error> {
        let references = referenced_data::references(&deployment.spec.template.spec);
        self.update_watches(project, &references)?;
        let is_new = copy.is_none_or(|copy| !canonical::same(&copy.spec, &deployment.spec));
        let place = Place { project, namespace: deployment.namespace(), hub_namespace, is_new };
        let mut observed = Vec::new();
        for reference in &references {
            observed.push(match reference.kind {
                DataKind::ConfigMap => self.observe::<ConfigMap>(&place, reference).await?,
                DataKind::Secret => self.observe::<Secret>(&place, reference).await?,
            });
        }
        let resolution = resolve(&references, &observed);
        let mut taken = false;
        for index in &resolution.copied {
            let free = match observed[*index].source.take() {
                Some(Source::ConfigMap(source)) => self.copy(&source, hub_namespace).await?,
                Some(Source::Secret(source)) => self.copy(&source, hub_namespace).await?,
                None => true,
            };
            if !free {
                observed[*index].state = SourceState::NameTaken;
                taken = true;
            }
        }
        Ok(if taken { resolve(&references, &observed) } else { resolution })
    }

    /// The state of a source and its companion. The source is read unless it is known, its companion has its
    /// content, and the deployment is not new.
    async fn observe<K: Object + DataObject + Into<Source>>(
        &self,
        place: &Place<'_>,
        reference: &Reference,
    ) -> Result<Observed, Error> {
        let companion = self.hub.get::<K>((place.hub_namespace, reference.companion().as_str()))?;
        let hash = |companion: &K| companion.annotation(annotations::CONTENT_HASH).map(str::to_owned);
        let existing = companion.as_ref().and_then(hash);
        let id = SourceId {
            plane: place.project.name().clone(),
            kind: K::KIND,
            namespace: place.namespace.to_owned(),
            name: reference.name.clone(),
        };
        let (changes, known) = self.known.begin(&id);
        if let Some(facts) = known.filter(|_| !place.is_new) {
            let current =
                |companion: &K| referenced_data::hash_of(companion, &facts.uid).as_ref() == Some(&facts.hash);
            if facts.size > OBJECT_LIMIT || companion.as_ref().is_some_and(current) {
                return Ok(Observed { state: SourceState::Found(facts), existing, source: None });
            }
        }
        let read = place.project.uncached().get::<K>((place.namespace, reference.name.as_str())).await;
        let (state, source) = match read {
            Ok(Some(source)) => {
                let facts = SourceFacts::of(&source);
                self.known.set(&id, changes, facts.clone());
                (SourceState::Found(facts), Some(source.into()))
            }
            Ok(None) => (SourceState::Missing, None),
            Err(error) if error.code() == Some(403) => (SourceState::Unauthorized, None),
            Err(error) => return Err(error.into()),
        };
        Ok(Observed { state, existing, source })
    }

    /// Creates or updates the companion of a source. Returns false if an object that is not a companion has
    /// its name.
    async fn copy<K: Object + DataObject>(&self, source: &K, namespace: &str) -> Result<bool, Error> {
        let name = polis_api::names::companion(K::KIND.as_str(), source.name());
        let name = (namespace, name.as_str());
        match referenced_data::plan_companion(source, namespace, self.hub.get::<K>(name)?.as_ref()) {
            CompanionAction::None | CompanionAction::AwaitDeletion => {}
            CompanionAction::Create(companion) => match self.hub.create_missing(&*companion).await {
                Err(error) if error.is_already_exists() => {
                    // The cache has only objects with the label.
                    let named = ListOptions::within(namespace).fields(format!("metadata.name={}", name.1));
                    let found = self.hub.uncached().list::<K>(&named).await?;
                    return Ok(found.iter().all(referenced_data::is_companion));
                }
                created => _ = created?,
            },
            CompanionAction::Update(_) => {
                // Deployments that share the source write the same companion.
                let change =
                    |current: &K| match referenced_data::plan_companion(source, namespace, Some(current)) {
                        CompanionAction::Update(desired) => Some(*desired),
                        _ => None,
                    };
                self.hub.modify(name, change).await?;
            }
            CompanionAction::Replace(object) => {
                self.hub.delete_at::<K>(name, &object.uid, Some(&object.resource_version)).await?;
            }
        }
        Ok(true)
    }

    /// Deletes the companions that a deployment refers to and no other deployment does.
    pub(crate) async fn release(
        &self,
        project: &Plane,
        hub_namespace: &str,
        deployment: &WorkloadDeployment,
        namespace: &str,
    ) -> Result<(), Error> {
        for reference in referenced_data::references(&deployment.spec.template.spec) {
            let companion = Companion {
                namespace,
                hub_namespace,
                name: &reference.companion(),
                leaving: Some(deployment.name()),
            };
            self.delete_unused(project, &companion).await?;
        }
        Ok(())
    }

    /// Whether the hub has a companion of this name.
    pub(crate) fn has_companion(&self, hub_namespace: &str, name: &str) -> Result<bool, Error> {
        Ok(self.hub.get::<ConfigMap>((hub_namespace, name))?.is_some()
            || self.hub.get::<Secret>((hub_namespace, name))?.is_some())
    }

    /// Deletes a companion that no deployment refers to. The caches decide whether an uncached check is worth
    /// the request.
    pub(crate) async fn delete_unused(
        &self,
        project: &Plane,
        companion: &Companion<'_>,
    ) -> Result<(), Error> {
        self.delete_unused_of::<ConfigMap>(project, companion).await?;
        self.delete_unused_of::<Secret>(project, companion).await
    }

    async fn delete_unused_of<K: Object + DataObject>(
        &self,
        project: &Plane,
        companion: &Companion<'_>,
    ) -> Result<(), Error> {
        let Companion { namespace, hub_namespace, name, leaving } = *companion;
        let Some(existing) = self.hub.get::<K>((hub_namespace, name))? else { return Ok(()) };
        let token = K::KIND.token(name);
        let others = |users: Vec<String>| users.iter().any(|user| Some(user.as_str()) != leaving);
        let copied = self.hub.names_within::<WorkloadDeployment>(hub_namespace, &by_companion(), &token)?;
        let is_ours = !existing.is_deleting() && referenced_data::is_companion(&existing);
        if !is_ours || others(users(project, namespace, K::KIND, name)?) || others(copied) {
            return Ok(());
        }
        let copies =
            self.hub.uncached().list::<WorkloadDeployment>(&ListOptions::within(hub_namespace)).await?;
        let refers = |copy: &WorkloadDeployment| {
            let references = referenced_data::references(&copy.spec.template.spec);
            copy.metadata.name.as_deref() != leaving
                && references.iter().any(|it| it.kind == K::KIND && it.companion() == name)
        };
        if !copies.iter().any(refers) {
            self.hub.delete(&existing, Preconditions::UidAndResourceVersion).await?;
        }
        Ok(())
    }

    /// Watches the kinds of sources that a deployment refers to.
    fn update_watches(&self, project: &Plane, references: &[Reference]) -> Result<(), Error> {
        for kind in DataKind::ALL {
            match references.iter().any(|reference| reference.kind == kind) {
                true => project.add_watch(watch(kind).metadata_only())?,
                false => self.end_unused_watch(project, kind)?,
            }
        }
        Ok(())
    }

    /// Ends the watches of the kinds that no deployment of a project refers to.
    pub(crate) fn end_unused_watches(&self, project: &Plane) -> Result<(), Error> {
        DataKind::ALL.into_iter().try_for_each(|kind| self.end_unused_watch(project, kind))
    }

    fn end_unused_watch(&self, project: &Plane, kind: DataKind) -> Result<(), Error> {
        let deployments = Kind::of::<WorkloadDeployment>();
        if project.untyped(&deployments).count(&by_companion(), kind.as_str())? == 0 {
            project.remove_watch(&kind_of(kind));
            self.known.forget(project.name(), kind);
        }
        Ok(())
    }
}

/// A companion that may be deleted.
pub(crate) struct Companion<'a> {
    /// The namespace in the project.
    pub(crate) namespace: &'a str,
    pub(crate) hub_namespace: &'a str,
    pub(crate) name: &'a str,
    /// A deployment that is being deleted: it does not need the companion any more.
    pub(crate) leaving: Option<&'a str>,
}

/// Where a source and its companion are.
struct Place<'a> {
    project: &'a Plane,
    namespace: &'a str,
    hub_namespace: &'a str,
    /// Whether the hub copy has not the spec of the deployment yet.
    is_new: bool,
}

fn resolve(references: &[Reference], observed: &[Observed]) -> Resolution {
    let sources: Vec<_> = observed.iter().map(|it| (it.state.clone(), it.existing.clone())).collect();
    referenced_data::resolve(references, &sources)
}

fn watch(kind: DataKind) -> Watch {
    Watch::kind(kind_of(kind))
}

fn kind_of(kind: DataKind) -> Kind {
    match kind {
        DataKind::ConfigMap => Kind::of::<ConfigMap>(),
        DataKind::Secret => Kind::of::<Secret>(),
    }
}

/// Maps a source to the deployments of its namespace that refer to it.
fn keys_of_source(
    known: &KnownSources,
    project: &Plane,
    change: &Change<'_>,
) -> Result<Vec<Key>, Unresolved> {
    let Some(kind) = DataKind::ALL.into_iter().find(|kind| kind_of(*kind) == *change.kind()) else {
        return Ok(Vec::new());
    };
    let (namespace, name) = (change.name().namespace.unwrap_or_default(), change.name().name);
    known.changed(&SourceId {
        plane: project.name().clone(),
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    });
    let users = users(project, namespace, kind, &polis_api::names::companion(kind.as_str(), name))?;
    Ok(users.iter().map(|user| Key::new(project.name().clone(), namespace, user)).collect())
}

/// Maps a companion to the deployments of its tenant that refer to its source; to a key of its own name if no
/// deployment does.
fn keys_of_companion<K: Object + DataObject>(
    (projects, unresolved): &(PlaneSet, UnresolvedObjects),
    hub: &Plane,
    companion: &K,
) -> Result<Vec<Key>, Unresolved> {
    let tenant = unresolved.tenant_of(hub, companion)?;
    let key = |name: &str| Key::new(&tenant.project, &tenant.namespace, name);
    let users = users(&projects.named(&tenant.project)?, &tenant.namespace, K::KIND, companion.name())?;
    let exists = hub.get::<K>((companion.namespace(), companion.name()))?.is_some();
    Ok(match users.is_empty() && exists {
        true => vec![key(companion.name())],
        false => users.iter().map(|user| key(user)).collect(),
    })
}

/// Maps a hub copy to the companions that it needs or needed, and that no deployment of the project refers
/// to.
fn keys_of_copy(
    (projects, unresolved): &(PlaneSet, UnresolvedObjects),
    hub: &Plane,
    copy: &WorkloadDeployment,
) -> Result<Vec<Key>, Unresolved> {
    let references = referenced_data::references(&copy.spec.template.spec);
    if references.is_empty() {
        return Ok(Vec::new());
    }
    let tenant = unresolved.tenant_of(hub, copy)?;
    let project = projects.named(&tenant.project)?;
    let mut keys = Vec::new();
    for reference in references {
        let companion = reference.companion();
        if users(&project, &tenant.namespace, reference.kind, &companion)?.is_empty() {
            keys.push(Key::new(&tenant.project, &tenant.namespace, &companion));
        }
    }
    Ok(keys)
}

/// The deployments of a project's namespace that need a companion. One that is being deleted needs it only as
/// long as its hub copy exists: if two that leave counted each other, neither would delete the companion.
fn users(
    project: &Plane,
    namespace: &str,
    kind: DataKind,
    companion: &str,
) -> Result<Vec<String>, polis_engine::Error> {
    let token = kind.token(companion);
    let mut users = Vec::new();
    for name in project.names_within::<WorkloadDeployment>(namespace, &by_companion(), &token)? {
        let deployment = project.get::<WorkloadDeployment>((namespace, name.as_str()))?;
        if deployment.is_some_and(|deployment| !deployment.is_deleting()) {
            users.push(name);
        }
    }
    Ok(users)
}

/// A source on the plane of a project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SourceId {
    plane: PlaneName,
    kind: DataKind,
    namespace: String,
    name: String,
}

/// What is known of the sources that deployments refer to, from the last read until the next event.
#[derive(Default)]
struct KnownSources(Mutex<BTreeMap<SourceId, KnownSource>>);

#[derive(Default)]
struct KnownSource {
    /// Number of events, so that a read that began before an event is not kept.
    changes: u64,
    facts: Option<SourceFacts>,
}

impl KnownSources {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SourceId, KnownSource>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What is known, and the number of events before a read.
    fn begin(&self, id: &SourceId) -> (u64, Option<SourceFacts>) {
        let mut known = self.lock();
        let source = known.entry(id.clone()).or_default();
        (source.changes, source.facts.clone())
    }

    /// Keeps the result of a read, unless an event has come since.
    fn set(&self, id: &SourceId, changes: u64, facts: SourceFacts) {
        if let Some(source) = self.lock().get_mut(id).filter(|source| source.changes == changes) {
            source.facts = Some(facts);
        }
    }

    fn changed(&self, id: &SourceId) {
        if let Some(source) = self.lock().get_mut(id) {
            source.changes += 1;
            source.facts = None;
        }
    }

    /// Forgets the sources of a kind in a project.
    fn forget(&self, plane: &PlaneName, kind: DataKind) {
        self.lock().retain(|id, _| id.plane != *plane || id.kind != kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_began_before_an_event_is_not_kept() {
        let known = KnownSources::default();
        let id = SourceId {
            plane: "acme".into(),
            kind: DataKind::Secret,
            namespace: "shop".into(),
            name: "db".into(),
        };
        let facts = SourceFacts::of(&Secret::default());
        let (changes, _) = known.begin(&id);
        known.changed(&id);
        known.set(&id, changes, facts.clone());
        assert_eq!(known.begin(&id).1, None);
        let (changes, _) = known.begin(&id);
        known.set(&id, changes, facts.clone());
        assert_eq!(known.begin(&id).1, Some(facts));
        known.forget(&"acme".into(), DataKind::ConfigMap);
        assert!(known.begin(&id).1.is_some());
        known.forget(&"acme".into(), DataKind::Secret);
        assert_eq!(known.begin(&id), (0, None));
    }
}
