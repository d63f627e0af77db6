//! Get and list.
//!
//! A list shows one revision: the current one, the requested one, or that of the first chunk of a chunked
//! list.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::Response;
use polis_apimachinery::ValidationError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, convert::metadata_only, filter::Filter};
use crate::{
    http::{Projection, ResponseBody},
    status::{GroupResource, StatusError},
    store::{Page, RangeOptions, Revision, Stored},
};

/// The continue token of a chunked list.
#[derive(Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
struct Continue {
    v: String,
    /// The revision of the list; −1 continues at the current revision.
    rv: i64,
    start: String,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";

const TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

impl Continue {
    fn parse(token: &str) -> Result<Self, StatusError> {
        let invalid = |why: &str| {
            StatusError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|error| invalid(&error.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|error| invalid(&error.to_string()))?;
        if token.v != CONTINUE_VERSION {
            return Err(invalid(&format!("server does not recognize this encoded version \"{}\"", token.v)));
        }
        if token.rv == 0 {
            return Err(invalid("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if token.start.is_empty() {
            return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
        }
        Ok(token)
    }

    fn encode(revision: i64, start: String) -> String {
        let token = Self { v: CONTINUE_VERSION.into(), rv: revision, start };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }
}

/// The range that the options of a list select.
struct ListRange {
    at: Option<Revision>,
    from: String,
    limit: usize,
}

impl Call {
    pub(crate) fn get(&self) -> Result<Response<ResponseBody>, StatusError> {
        let requested =
            parse_version(&self.options.resource_version).map_err(|why| StatusError::new(500, "", why))?;
        let current = self.core.store.view().revision();
        if requested.is_some_and(|requested| requested > current) {
            return Err(StatusError::too_new(requested.unwrap_or(0), current));
        }
        Ok(self.respond(200, &self.current()?))
    }

    pub(crate) fn list(&self) -> Result<Response<ResponseBody>, StatusError> {
        let filter = Filter::of(self)?;
        let (page, continued) = self.page(&filter)?;
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if self.kind.is_custom() && self.output.projection == Projection::Full {
            metadata["continue"] = "".into();
        }
        if let Some(token) = continued {
            metadata["continue"] = token.into();
            if !filter.is_selective() {
                metadata["remainingItemCount"] = page.remaining.into();
            }
        }
        if self.output.projection == Projection::Full && !self.output.yaml {
            let items: Vec<Stored> = page.items.iter().map(|(_, stored)| self.convert(stored)).collect();
            let head = format!(
                "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
                json!(self.kind.list_kind),
                json!(self.version.api_version)
            );
            // Items of built-in kinds have no apiVersion and kind; custom items do, as in Kubernetes.
            let lead = if self.kind.is_custom() {
                0
            } else {
                format!(
                    "{{\"apiVersion\":{},\"kind\":{},",
                    json!(self.version.api_version),
                    json!(self.kind.kind)
                )
                .len()
            };
            return Ok(crate::http::respond_json(
                200,
                ResponseBody::list(head.into(), items, lead, Bytes::from_static(b"]}")),
            ));
        }
        let objects: Vec<Value> = page.items.iter().map(|(_, stored)| self.convert_value(stored)).collect();
        let list = match self.output.projection {
            Projection::Table => self.table(&json!({"metadata": metadata, "items": objects})),
            Projection::Metadata => {
                let items: Vec<Value> = objects.iter().map(metadata_only).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
            }
            Projection::Full => {
                json!({"kind": self.kind.list_kind, "apiVersion": self.version.api_version, "metadata": metadata, "items": objects})
            }
        };
        Ok(crate::http::object(200, &list, self.output))
    }

    /// The requested page, and the continue token of the next one.
    fn page(&self, filter: &Filter) -> Result<(Page, Option<String>), StatusError> {
        let wanted = self.list_range()?;
        let view = self.core.store.view();
        let prefix = filter.prefix();
        let too_old = |_| {
            if self.options.continue_token.is_empty() {
                StatusError::expired(format!(
                    "The resourceVersion for the provided list is too old: {}",
                    self.options.resource_version
                ))
            } else {
                StatusError::expired(TOO_OLD).with_continue(Continue::encode(-1, wanted.from.clone()))
            }
        };
        let range = RangeOptions { prefix: &prefix, from: &wanted.from, limit: usize::MAX, at: wanted.at };
        if !filter.is_selective() {
            let page = view
                .range(&self.collection(), &RangeOptions { limit: wanted.limit, ..range })
                .map_err(too_old)?;
            let token = self.next_token(&page, page.remaining > 0);
            return Ok((page, token));
        }
        let whole = view.range(&self.collection(), &range).map_err(too_old)?;
        let revision = whole.revision;
        let mut rest = whole.items.into_iter();
        let mut items = Vec::new();
        while items.len() < wanted.limit {
            match rest.next() {
                Some((path, stored)) if filter.accepts(&path, &stored) => items.push((path, stored)),
                Some(_) => {}
                None => break,
            }
        }
        // The remaining objects are not filtered yet, so the next page may be empty.
        let remaining = rest.len();
        let page = Page { items, revision, remaining };
        let token = self.next_token(&page, remaining > 0);
        Ok((page, token))
    }

    fn next_token(&self, page: &Page, more: bool) -> Option<String> {
        let (last, _) = page.items.last().filter(|_| more)?;
        Some(Continue::encode(i64::try_from(page.revision).unwrap_or(i64::MAX), format!("{last}\0")))
    }

    fn list_range(&self) -> Result<ListRange, StatusError> {
        let options = &self.options;
        let current = self.core.store.view().revision();
        let limit = if options.limit == 0 { usize::MAX } else { options.limit };
        if options.send_initial_events.is_some() {
            let error =
                ValidationError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
            return Err(StatusError::invalid(
                &GroupResource::new("meta.k8s.io", "ListOptions"),
                "",
                &[error],
            ));
        }
        check_list_options(
            options.resource_version.as_str(),
            &options.resource_version_match,
            &options.continue_token,
        )?;
        if !options.continue_token.is_empty() {
            let token = Continue::parse(&options.continue_token)?;
            let at = Revision::try_from(token.rv).ok();
            if let Some(at) = at.filter(|at| *at > current) {
                return Err(StatusError::too_new(at, current));
            }
            return Ok(ListRange { at, from: token.start, limit });
        }
        let requested = parse_version(&options.resource_version)
            .map_err(|why| StatusError::bad_request(format!("invalid resource version: {why}")))?;
        if let Some(requested) = requested.filter(|requested| *requested > current) {
            return Err(StatusError::too_new(requested, current));
        }
        let exact = options.resource_version_match == "Exact"
            || (options.resource_version_match.is_empty() && options.limit > 0);
        let at = requested.filter(|requested| *requested > 0 && exact);
        // A list at resourceVersion 0 ignores the limit: Kubernetes serves it from its watch cache.
        let limit = if requested == Some(0) { usize::MAX } else { limit };
        Ok(ListRange { at, from: String::new(), limit })
    }
}

/// Parses the resourceVersion option; `None` if it is empty.
pub(super) fn parse_version(text: &str) -> Result<Option<Revision>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        ValidationError::invalid(
            "resourceVersion",
            text,
            format!("strconv.ParseUint: parsing {}: invalid syntax", json!(text)),
        )
        .to_string()
    })
}

/// Checks the combination of list options.
fn check_list_options(version: &str, matching: &str, token: &str) -> Result<(), StatusError> {
    let mut errors = Vec::new();
    match matching {
        "" => {}
        "Exact" | "NotOlderThan" => {
            if version.is_empty() {
                errors.push(ValidationError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !token.is_empty() {
                errors.push(ValidationError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if matching == "Exact" && version == "0" {
                errors.push(ValidationError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        other => {
            errors.push(ValidationError::not_supported(
                "resourceVersionMatch",
                other,
                ["Exact", "NotOlderThan", ""],
            ));
        }
    }
    if !errors.is_empty() {
        return Err(StatusError::invalid(&GroupResource::new("meta.k8s.io", "ListOptions"), "", &errors));
    }
    if !token.is_empty() && !version.is_empty() && version != "0" {
        return Err(StatusError::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_round_trips_and_an_invalid_token_is_refused() {
        let token = Continue::encode(7, "ns/a\0".into());
        assert_eq!(
            Continue::parse(&token).expect("reads"),
            Continue { v: CONTINUE_VERSION.into(), rv: 7, start: "ns/a\0".into() }
        );
        for invalid in [
            "",
            "%%%",
            "e30",
            &URL_SAFE_NO_PAD.encode(br#"{"v":"x","rv":1,"start":"a"}"#),
            &URL_SAFE_NO_PAD.encode(br#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
        ] {
            assert_eq!(Continue::parse(invalid).expect_err(invalid).code, 400);
        }
    }
}
