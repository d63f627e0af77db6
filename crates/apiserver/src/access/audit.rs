//! Audit log: one line of JSON for every write request, whether it succeeded or not.

use std::sync::Arc;

use http::{Response, request::Parts};
use serde_json::json;

use crate::{http::ResponseBody, status::StatusError, verbs::Call};

/// Receives audit lines, one per call, without the line break. It must not block.
pub type AuditSink = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) fn audit(call: &Call, parts: &Parts, result: &Result<Response<ResponseBody>, StatusError>) {
    let Some(sink) = &call.core.access.audit else { return };
    let (code, why) = match result {
        Ok(response) => (response.status().as_u16(), None),
        Err(failure) => (failure.code, Some(failure.message.as_str())),
    };
    let line = json!({
        "time": call.core.clock.now().to_string(),
        "plane": &*call.plane.name,
        "user": call.user.name,
        "groups": call.user.groups,
        "extra": call.user.extra,
        "verb": call.verb.as_str(),
        "uri": parts.uri.path_and_query().map(ToString::to_string),
        "resource": call.kind.plural,
        "group": call.kind.group,
        "namespace": call.namespace,
        "name": call.name,
        "code": code,
        "why": why,
    });
    sink(&line.to_string());
}
