//! Uncached reads: GET and LIST requests to the API server, like controller-runtime's `APIReader`.
//!
//! The cache may be stale. A decision that a stale read would make wrong, such as a delete because an object
//! does *not* exist, needs an uncached read. [`Plane::uncached`] marks these reads at the call site.

use bytes::Bytes;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cache::decode;
use crate::plane::{Call, JSON, about};
use crate::{Error, Kind, NamespacedName, Object, Plane};

/// The media types of a response that may be text.
const ANY: &str = "application/json, */*";
/// Objects per page of a list.
pub(crate) const PAGE: usize = 500;

/// Namespace, label selector and field selector of a list request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
}

impl ListOptions {
    /// Every object of the kind.
    pub fn all() -> Self {
        Self::default()
    }

    /// The objects of one namespace.
    pub fn within(namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..Self::default() }
    }

    /// Only objects whose labels match the selector, such as `app=web,tier!=test`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only objects whose fields match the selector, such as `metadata.name=web`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    pub(crate) fn path(&self, kind: &Kind) -> String {
        with_selectors(kind.path(self.namespace.as_deref()), self.labels.as_deref(), self.fields.as_deref())
    }
}

/// `path?labelSelector=…&fieldSelector=…&`, to which the caller appends further parameters.
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

/// Every byte that RFC 3986 does not call unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a value of a query string.
pub(crate) fn escape(value: &str, into: &mut String) {
    into.extend(utf8_percent_encode(value, RESERVED));
}

/// Reads objects of one plane from its API server, bypassing the cache. Made by [`Plane::uncached`].
#[derive(Clone, Copy, Debug)]
pub struct UncachedReader<'a> {
    plane: &'a Plane,
}

impl<'a> UncachedReader<'a> {
    pub(crate) fn new(plane: &'a Plane) -> Self {
        Self { plane }
    }

    pub(crate) fn plane(&self) -> &'a Plane {
        self.plane
    }

    /// The object, or none if the server returns 404.
    pub async fn get<'p, K: Object>(&self, name: impl Into<NamespacedName<'p>>) -> Result<Option<K>, Error> {
        let (kind, name) = (Kind::of::<K>(), name.into());
        match self.get_bytes(&kind, name).await? {
            Some(content) => decode(self.plane, &kind, &name.to_string(), &content).map(Some),
            None => Ok(None),
        }
    }

    /// The response to a GET of this path, like `kubectl get --raw`. Not retried: the caller asks for the
    /// state of the server now, for example on `/readyz`.
    pub async fn raw(&self, path: &str) -> Result<Vec<u8>, Error> {
        let call = Call {
            verb: "get",
            method: Method::GET,
            path: path.to_owned(),
            accept: ANY,
            content_type: None,
            content: Bytes::new(),
            idempotent: true,
            about: path,
        };
        self.plane.call_once(call).await
    }

    /// The objects that match, read in pages of 500.
    pub async fn list<K: Object>(&self, options: &ListOptions) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        let mut objects = Vec::new();
        self.pages(&kind, options, |item| {
            objects.push(decode(self.plane, &kind, "(in a list)", item.get().as_bytes())?);
            Ok(())
        })
        .await?;
        Ok(objects)
    }

    pub(crate) async fn get_bytes(
        &self,
        kind: &Kind,
        name: NamespacedName<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let about = about(kind, name);
        let call = Call {
            verb: "get",
            method: Method::GET,
            path: kind.path_of(name),
            accept: JSON,
            content_type: None,
            content: Bytes::new(),
            idempotent: false,
            about: &about,
        };
        match self.plane.call(call).await {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn pages(
        &self,
        kind: &Kind,
        options: &ListOptions,
        mut each: impl FnMut(&RawValue) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut next: Option<String> = None;
        loop {
            let page = page(self.plane, kind, &options.path(kind), JSON, next.as_deref()).await?;
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
    accept: &'static str,
    next: Option<&str>,
) -> Result<Vec<u8>, Error> {
    let mut path = format!("{path}limit={PAGE}");
    if let Some(next) = next {
        path.push_str("&continue=");
        escape(next, &mut path);
    }
    one(plane, kind, path, accept).await
}

/// One LIST request.
pub(crate) async fn one(
    plane: &Plane,
    kind: &Kind,
    path: String,
    accept: &'static str,
) -> Result<Vec<u8>, Error> {
    let about = kind.to_string();
    let call = Call {
        verb: "list",
        method: Method::GET,
        path,
        accept,
        content_type: None,
        content: Bytes::new(),
        idempotent: false,
        about: &about,
    };
    plane.call(call).await
}

/// A page of a list, with undecoded items.
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
                crate::transport::TransportError::InvalidResponse { why: error.to_string().into() },
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
        let options = ListOptions::within("shop").labels("a in (b,c)").fields("metadata.name=x");
        assert_eq!(
            options.path(&Kind::of::<ConfigMap>()),
            "/api/v1/namespaces/shop/configmaps?labelSelector=a%20in%20%28b%2Cc%29&fieldSelector=metadata.name%3Dx&"
        );
    }
}
