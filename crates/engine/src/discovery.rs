//! API discovery: which kinds a plane serves.
//!
//! A kind that is not served is not watched. Discovery is repeated in three cases: while a kind is missing
//! (after 0.5 s at first, then up to every 30 s per group and version, however many planes share the result);
//! when a watched CustomResourceDefinition changes (and often soon afterwards, because a server takes
//! seconds, and a busy one many, to serve a new definition); and when a watch returns 404. While no kind is
//! missing, no request is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use crate::plane::{Call, JSON};
use crate::signal::{Signal, Subscription};
use crate::{Error, Kind, Plane, ResourceScope, UncachedReader};

/// How long the result "not served" is cached: minimum and maximum. In between it is 1/4 of the time since
/// the last invalidation, so that the delay until a new kind is found is in proportion to the time that the
/// server took.
const NEGATIVE_TTL_MIN: Duration = Duration::from_millis(500);
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(30);
const NEGATIVE_TTL_DIVISOR: u32 = 4;

/// The cached discovery results of the planes behind one host.
#[derive(Debug)]
pub(crate) struct Discovery {
    results: Mutex<Results>,
    /// Changes when the cached results may be out of date.
    invalidations: Signal,
}

#[derive(Debug)]
struct Results {
    /// When the results were last invalidated.
    invalidated: Instant,
    /// The results, by the path of group and version.
    by_root: BTreeMap<String, ServedKinds>,
    /// The server does not support streaming lists (`sendInitialEvents`).
    no_streaming: bool,
}

#[derive(Debug)]
struct ServedKinds {
    plurals: BTreeSet<String>,
    /// Until when a kind that is not in `plurals` counts as not served.
    negative_until: Instant,
}

impl Results {
    fn negative_ttl(&self) -> Duration {
        (self.invalidated.elapsed() / NEGATIVE_TTL_DIVISOR).clamp(NEGATIVE_TTL_MIN, NEGATIVE_TTL_MAX)
    }
}

impl Default for Discovery {
    fn default() -> Self {
        let results = Results { invalidated: Instant::now(), by_root: BTreeMap::new(), no_streaming: false };
        Self { results: Mutex::new(results), invalidations: Signal::default() }
    }
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

#[derive(Deserialize, Default)]
struct GroupList {
    #[serde(default)]
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

/// Uncached discovery.
impl UncachedReader<'_> {
    /// The kind with this name in a group and version; none if the plane does not serve it.
    pub async fn find_kind(&self, api_version: &str, kind: &str) -> Result<Option<Kind>, Error> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let served = self.kinds_of(group, version).await?;
        Ok(served.into_iter().find(|served| served.kind == kind))
    }

    /// All kinds that the plane serves, in all versions.
    pub async fn kinds(&self) -> Result<Vec<Kind>, Error> {
        let groups: GroupList = discover(self.plane(), "/apis", "the API groups").await?.unwrap_or_default();
        let mut kinds = self.kinds_of("", "v1").await?;
        for group in groups.groups {
            for GroupVersion { version } in group.versions {
                kinds.extend(self.kinds_of(&group.name, &version).await?);
            }
        }
        Ok(kinds)
    }

    async fn kinds_of(&self, group: &str, version: &str) -> Result<Vec<Kind>, Error> {
        let named = Kind {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: "".into(),
            kind: "".into(),
            scope: ResourceScope::Cluster,
        };
        let about = format!("the kinds of {}", named.api_version());
        let list: Option<ResourceList> = discover(self.plane(), &named.root(), &about).await?;
        let served = list.into_iter().flat_map(|list| list.resources);
        let kind = |served: ServedResource| Kind {
            plural: served.name.into(),
            kind: served.kind.into(),
            scope: if served.namespaced { ResourceScope::Namespaced } else { ResourceScope::Cluster },
            ..named.clone()
        };
        Ok(served.filter(|served| !served.name.contains('/')).map(kind).collect())
    }
}

/// The discovery document at a path; none if the server returns 404.
async fn discover<T: serde::de::DeserializeOwned>(
    plane: &Plane,
    path: &str,
    about: &str,
) -> Result<Option<T>, Error> {
    let call = Call {
        verb: "discover",
        method: Method::GET,
        path: path.to_owned(),
        accept: JSON,
        content_type: None,
        content: Bytes::new(),
        idempotent: false,
        about,
    };
    let content = match plane.call(call).await {
        Ok(content) => content,
        Err(error) if error.code() == Some(404) => return Ok(None),
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&content).map(Some).map_err(|error| {
        let why = error.to_string().into();
        let source = crate::transport::TransportError::InvalidResponse { why };
        plane.unreachable(format!("discover {about}"), source)
    })
}

impl Discovery {
    /// Whether a kind is served: from the cached results, or with a request through `plane`.
    pub(crate) async fn serves(&self, plane: &Plane, kind: &Kind) -> Result<bool, Error> {
        let root = kind.root();
        if let Some(served) = self.cached(&root, kind) {
            return Ok(served);
        }
        let about = format!("the kinds of {}", kind.api_version());
        let list: Option<ResourceList> = discover(plane, &root, &about).await?;
        let resources = list.into_iter().flat_map(|list| list.resources);
        let plurals: BTreeSet<String> = resources.map(|resource| resource.name).collect();
        let served = plurals.contains(&*kind.plural);
        let mut results = self.results.lock();
        let negative_until = Instant::now() + results.negative_ttl();
        results.by_root.insert(root, ServedKinds { plurals, negative_until });
        Ok(served)
    }

    /// The cached result. "Served" is valid until a watch returns 404, "not served" for a limited time.
    fn cached(&self, root: &str, kind: &Kind) -> Option<bool> {
        let results = self.results.lock();
        let kinds = results.by_root.get(root)?;
        let served = kinds.plurals.contains(&*kind.plural);
        (served || Instant::now() < kinds.negative_until).then_some(served)
    }

    /// When to repeat discovery of a kind that is not served.
    pub(crate) fn retry_after(&self) -> Duration {
        self.results.lock().negative_ttl()
    }

    /// Drops the cached result of a kind whose watch returned 404.
    pub(crate) fn invalidate_kind(&self, kind: &Kind) {
        self.results.lock().by_root.remove(&kind.root());
    }

    /// Drops all cached results, because a CustomResourceDefinition has changed.
    pub(crate) fn invalidate(&self) {
        let mut results = self.results.lock();
        results.by_root.clear();
        results.invalidated = Instant::now();
        drop(results);
        self.invalidations.send();
    }

    /// Notified by [`Discovery::invalidate`].
    pub(crate) fn invalidations(&self) -> Subscription {
        self.invalidations.subscribe()
    }

    pub(crate) fn can_stream_lists(&self) -> bool {
        !self.results.lock().no_streaming
    }

    pub(crate) fn disable_streaming_lists(&self) {
        self.results.lock().no_streaming = true;
    }
}
