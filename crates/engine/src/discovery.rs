//! Which kinds a plane serves.
//!
//! A kind that is not served is not watched. It is asked for again while it is missing (soon at first, then once in half a
//! minute per group and version, however many planes share the answer), at once when a CustomResourceDefinition changes in sight
//! (and often soon after: a server takes seconds from a definition to serving it, and a busy one many), and when a watch is told
//! 404. While nothing is missing nothing is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::plane::Call;
use crate::{Error, Kind, Plane};

/// How long "not served" is believed: at first, and at most. In between, for this share of the time since the last doubt, so
/// that a kind is noticed soon after it is served in proportion to how long that took.
const BELIEVED_FIRST: Duration = Duration::from_millis(500);
const BELIEVED_LAST: Duration = Duration::from_secs(30);
const BELIEVED_SHARE: u32 = 4;

/// What is known about the kinds of the planes behind one host.
#[derive(Debug)]
pub(crate) struct Discovery {
    known: Mutex<Known>,
    /// Moves when what is known may be out of date.
    doubts: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    /// When there was last reason to doubt what is known.
    doubted: Instant,
    /// By the path of group and version.
    answers: BTreeMap<String, Answer>,
    /// The server said that it cannot stream lists.
    no_streaming: bool,
}

#[derive(Debug)]
struct Answer {
    plurals: BTreeSet<String>,
    /// Until when it is believed of what it does not name.
    believed: Instant,
}

impl Known {
    fn belief(&self) -> Duration {
        (self.doubted.elapsed() / BELIEVED_SHARE).clamp(BELIEVED_FIRST, BELIEVED_LAST)
    }
}

impl Default for Discovery {
    fn default() -> Self {
        let known = Known { doubted: Instant::now(), answers: BTreeMap::new(), no_streaming: false };
        Self { known: Mutex::new(known), doubts: watch::Sender::new(0) }
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
}

impl Discovery {
    /// Whether a kind is served, from what is known or by asking through `plane`.
    pub(crate) async fn serves(&self, plane: &Plane, kind: &Kind) -> Result<bool, Error> {
        let root = kind.root();
        if let Some(known) = self.recall(&root, kind) {
            return Ok(known);
        }
        let about = format!("the kinds of {}", kind.api_version());
        let call = Call {
            verb: "discover",
            method: Method::GET,
            path: root.clone(),
            content_type: None,
            content: Bytes::new(),
            guarded: false,
            about: &about,
        };
        let plurals: BTreeSet<String> = match plane.call(call).await {
            Ok(content) => {
                let list: ResourceList = serde_json::from_slice(&content).map_err(|error| {
                    let why = error.to_string().into();
                    plane.unreachable(
                        format!("discover {about}"),
                        crate::transport::TransportError::Garbage { why },
                    )
                })?;
                list.resources.into_iter().map(|resource| resource.name).collect()
            }
            Err(error) if error.code() == Some(404) => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        let served = plurals.contains(&*kind.plural);
        let mut known = self.known.lock();
        let believed = Instant::now() + known.belief();
        known.answers.insert(root, Answer { plurals, believed });
        Ok(served)
    }

    /// A yes stays true until a watch says otherwise; a no is believed for a while.
    fn recall(&self, root: &str, kind: &Kind) -> Option<bool> {
        let known = self.known.lock();
        let answer = known.answers.get(root)?;
        let served = answer.plurals.contains(&*kind.plural);
        (served || Instant::now() < answer.believed).then_some(served)
    }

    /// When to ask again for what is not served.
    pub(crate) fn ask_again_after(&self) -> Duration {
        self.known.lock().belief()
    }

    /// A watch was told that the kind is not there, whatever was known. Ask again the next time.
    pub(crate) fn contradicted(&self, kind: &Kind) {
        self.known.lock().answers.remove(&kind.root());
    }

    /// A definition changed: everything that was missing may be there now.
    pub(crate) fn doubt(&self) {
        let mut known = self.known.lock();
        known.answers.clear();
        known.doubted = Instant::now();
        drop(known);
        self.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// Wakes when there is reason to ask again.
    pub(crate) fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    pub(crate) fn can_stream_lists(&self) -> bool {
        !self.known.lock().no_streaming
    }

    pub(crate) fn cannot_stream_lists(&self) {
        self.known.lock().no_streaming = true;
    }
}
