//! Reads that ask the server, now.
//!
//! The cache is a moment behind. Where a decision must not rest on that (deleting because something is *not* there), read
//! live: the answer is evidence, and the call site says so.

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cache::decode;
use crate::plane::{Call, about};
use crate::{Error, Kind, Object, Place, Plane};

/// Objects per page of a list.
pub(crate) const PAGE: usize = 500;

/// What to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
}

impl Query {
    /// Every object of the kind.
    pub fn all() -> Self {
        Self::default()
    }

    /// The objects of one namespace.
    pub fn within(namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..Self::default() }
    }

    /// Only those whose labels match the selector, such as `app=web,tier!=test`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only those whose fields match the selector, such as `metadata.name=web`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    pub(crate) fn path(&self, kind: &Kind) -> String {
        with_selectors(kind.path(self.namespace.as_deref()), self.labels.as_deref(), self.fields.as_deref())
    }
}

/// `path?labelSelector=…&fieldSelector=…`, ready for more parameters to be appended with `&`.
pub(crate) fn with_selectors(mut path: String, labels: Option<&str>, fields: Option<&str>) -> String {
    path.push('?');
    for (name, value) in [("labelSelector", labels), ("fieldSelector", fields)] {
        if let Some(value) = value {
            path.push_str(name);
            path.push('=');
            escape(value, &mut path);
            path.push('&');
        }
    }
    path
}

/// Percent-encodes a value of a query.
pub(crate) fn escape(value: &str, into: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                into.push(char::from(byte))
            }
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Live reads of one plane. Made by [`Plane::live`].
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    plane: &'a Plane,
}

impl<'a> Live<'a> {
    pub(crate) fn new(plane: &'a Plane) -> Self {
        Self { plane }
    }

    /// The object, or none if the server says it is not there.
    pub async fn get<'p, K: Object>(&self, place: impl Into<Place<'p>>) -> Result<Option<K>, Error> {
        let (kind, place) = (Kind::of::<K>(), place.into());
        match self.get_bytes(&kind, place).await? {
            Some(content) => decode(self.plane, &kind, &place.to_string(), &content).map(Some),
            None => Ok(None),
        }
    }

    /// The objects that match, read in pages.
    pub async fn list<K: Object>(&self, query: &Query) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        let mut objects = Vec::new();
        self.pages(&kind, query, |item| {
            objects.push(decode(self.plane, &kind, "(of a list)", item.get().as_bytes())?);
            Ok(())
        })
        .await?;
        Ok(objects)
    }

    /// An object of a kind that is only known at run time.
    pub async fn get_value<'p>(
        &self,
        kind: &Kind,
        place: impl Into<Place<'p>>,
    ) -> Result<Option<serde_json::Value>, Error> {
        let place = place.into();
        match self.get_bytes(kind, place).await? {
            Some(content) => {
                crate::cache::decode_any(self.plane, kind, &place.to_string(), &content).map(Some)
            }
            None => Ok(None),
        }
    }

    /// The objects of a kind that is only known at run time.
    pub async fn list_values(&self, kind: &Kind, query: &Query) -> Result<Vec<serde_json::Value>, Error> {
        let mut objects = Vec::new();
        self.pages(kind, query, |item| {
            objects.push(crate::cache::decode_any(self.plane, kind, "(of a list)", item.get().as_bytes())?);
            Ok(())
        })
        .await?;
        Ok(objects)
    }

    async fn get_bytes(&self, kind: &Kind, place: Place<'_>) -> Result<Option<Vec<u8>>, Error> {
        let about = about(kind, place);
        let call = Call {
            verb: "get",
            method: Method::GET,
            path: kind.path_of(place),
            content_type: None,
            content: Bytes::new(),
            guarded: false,
            about: &about,
        };
        match self.plane.call(call).await {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pages(
        &self,
        kind: &Kind,
        query: &Query,
        mut each: impl FnMut(&RawValue) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut next: Option<String> = None;
        loop {
            let page = page(self.plane, kind, &query.path(kind), next.as_deref()).await?;
            let page = Page::parse(self.plane, kind, &page)?;
            for item in &page.items {
                each(item)?;
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(token) => next = Some(token),
                None => return Ok(()),
            }
        }
    }
}

/// One page of a list, as bytes.
pub(crate) async fn page(
    plane: &Plane,
    kind: &Kind,
    path: &str,
    next: Option<&str>,
) -> Result<Vec<u8>, Error> {
    let mut path = format!("{path}limit={PAGE}");
    if let Some(next) = next {
        path.push_str("&continue=");
        escape(next, &mut path);
    }
    let about = kind.to_string();
    let call = Call {
        verb: "list",
        method: Method::GET,
        path,
        content_type: None,
        content: Bytes::new(),
        guarded: false,
        about: &about,
    };
    plane.call(call).await
}

/// A page of a list, its items still bytes.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    pub(crate) metadata: PageMeta,
    #[serde(borrow, default)]
    pub(crate) items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageMeta {
    #[serde(default)]
    pub(crate) resource_version: String,
    #[serde(default, rename = "continue")]
    pub(crate) next: Option<String>,
}

impl<'a> Page<'a> {
    pub(crate) fn parse(plane: &Plane, kind: &Kind, content: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(content).map_err(|error| {
            plane.unreachable(
                format!("list {kind}"),
                crate::transport::TransportError::Garbage { why: error.to_string().into() },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::k8s_openapi::api::core::v1::ConfigMap;

    #[test]
    fn selectors_are_escaped() {
        let query = Query::within("shop").labels("a in (b,c)").fields("metadata.name=x");
        assert_eq!(
            query.path(&Kind::of::<ConfigMap>()),
            "/api/v1/namespaces/shop/configmaps?labelSelector=a%20in%20%28b%2Cc%29&fieldSelector=metadata.name%3Dx&"
        );
    }
}
