//! Get and list.
//!
//! A list is one consistent revision: the present one, one asked for, or the one in which a chunked list began.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, filter::Filter, present::metadata_only};
use crate::{
    http::{Body, Projection},
    schema::FieldError,
    status::{About, Failure},
    store::{Page, Range, Revision, Stored},
};

/// Where a chunked list goes on.
#[derive(Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
struct Continue {
    v: String,
    /// −1 goes on in the present instead of the revision in which the list began.
    rv: i64,
    start: String,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";

const TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

impl Continue {
    fn parse(token: &str) -> Result<Self, Failure> {
        let invalid = |why: &str| {
            Failure::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
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

/// What a list's options ask for.
struct Wanted {
    at: Option<Revision>,
    from: String,
    limit: usize,
}

impl Call {
    pub(crate) fn get(&self) -> Result<Response<Body>, Failure> {
        let asked =
            parse_version(&self.options.resource_version).map_err(|why| Failure::new(500, "", why))?;
        let current = self.core.store.view().revision();
        if asked.is_some_and(|asked| asked > current) {
            return Err(Failure::too_new(asked.unwrap_or(0), current));
        }
        Ok(self.answer(200, &self.current()?))
    }

    pub(crate) fn list(&self) -> Result<Response<Body>, Failure> {
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
            let items: Vec<Stored> = page.items.iter().map(|(_, stored)| self.present(stored)).collect();
            let head = format!(
                "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
                json!(self.kind.list_kind),
                json!(self.version.api_version)
            );
            // Built-in kinds name their type once, in the list; custom ones in every item too.
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
                Body::list(head.into(), items, lead, Bytes::from_static(b"]}")),
            ));
        }
        let objects: Vec<Value> = page.items.iter().map(|(_, stored)| self.present_value(stored)).collect();
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

    /// The page that the options ask for, and the token for the next one.
    fn page(&self, filter: &Filter) -> Result<(Page, Option<String>), Failure> {
        let wanted = self.wanted()?;
        let view = self.core.store.view();
        let prefix = filter.prefix();
        let too_old = |_| {
            if self.options.continue_token.is_empty() {
                Failure::expired(format!(
                    "The resourceVersion for the provided list is too old: {}",
                    self.options.resource_version
                ))
            } else {
                Failure::expired(TOO_OLD).with_continue(Continue::encode(-1, wanted.from.clone()))
            }
        };
        let range = Range { prefix: &prefix, from: &wanted.from, limit: usize::MAX, at: wanted.at };
        if !filter.is_selective() {
            let page =
                view.range(&self.collection(), &Range { limit: wanted.limit, ..range }).map_err(too_old)?;
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
        // More objects follow, whether or not they match: only looking at them will tell.
        let remaining = rest.len();
        let page = Page { items, revision, remaining };
        let token = self.next_token(&page, remaining > 0);
        Ok((page, token))
    }

    fn next_token(&self, page: &Page, more: bool) -> Option<String> {
        let (last, _) = page.items.last().filter(|_| more)?;
        Some(Continue::encode(i64::try_from(page.revision).unwrap_or(i64::MAX), format!("{last}\0")))
    }

    fn wanted(&self) -> Result<Wanted, Failure> {
        let options = &self.options;
        let current = self.core.store.view().revision();
        let limit = if options.limit == 0 { usize::MAX } else { options.limit };
        if options.send_initial_events.is_some() {
            let error = FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
            return Err(Failure::invalid(&About::new("meta.k8s.io", "ListOptions"), "", &[error]));
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
                return Err(Failure::too_new(at, current));
            }
            return Ok(Wanted { at, from: token.start, limit });
        }
        let asked = parse_version(&options.resource_version)
            .map_err(|why| Failure::bad_request(format!("invalid resource version: {why}")))?;
        if let Some(asked) = asked.filter(|asked| *asked > current) {
            return Err(Failure::too_new(asked, current));
        }
        let exact = options.resource_version_match == "Exact"
            || (options.resource_version_match.is_empty() && options.limit > 0);
        let at = asked.filter(|asked| *asked > 0 && exact);
        // A list at "any" revision comes whole: Kubernetes gives it from a cache that knows no chunks.
        let limit = if asked == Some(0) { usize::MAX } else { limit };
        Ok(Wanted { at, from: String::new(), limit })
    }
}

/// A resource version in a query; `None` when it is not given.
pub(super) fn parse_version(text: &str) -> Result<Option<Revision>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        FieldError::invalid(
            "resourceVersion",
            text,
            format!("strconv.ParseUint: parsing {}: invalid syntax", json!(text)),
        )
        .to_string()
    })
}

/// Which options may stand together.
fn check_list_options(version: &str, matching: &str, token: &str) -> Result<(), Failure> {
    let mut errors = Vec::new();
    match matching {
        "" => {}
        "Exact" | "NotOlderThan" => {
            if version.is_empty() {
                errors.push(FieldError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !token.is_empty() {
                errors.push(FieldError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if matching == "Exact" && version == "0" {
                errors.push(FieldError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        other => {
            errors.push(FieldError::not_supported(
                "resourceVersionMatch",
                other,
                ["Exact", "NotOlderThan", ""],
            ));
        }
    }
    if !errors.is_empty() {
        return Err(Failure::invalid(&About::new("meta.k8s.io", "ListOptions"), "", &errors));
    }
    if !token.is_empty() && !version.is_empty() && version != "0" {
        return Err(Failure::bad_request("specifying resource version is not allowed when using continue"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_survives_the_round_trip_and_forgeries_are_refused() {
        let token = Continue::encode(7, "ns/a\0".into());
        assert_eq!(
            Continue::parse(&token).expect("reads"),
            Continue { v: CONTINUE_VERSION.into(), rv: 7, start: "ns/a\0".into() }
        );
        for forged in [
            "",
            "%%%",
            "e30",
            &URL_SAFE_NO_PAD.encode(br#"{"v":"x","rv":1,"start":"a"}"#),
            &URL_SAFE_NO_PAD.encode(br#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
        ] {
            assert_eq!(Continue::parse(forged).expect_err(forged).code, 400);
        }
    }
}
