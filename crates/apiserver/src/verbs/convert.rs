//! Converts stored objects to the requested version, under the current schema, and builds responses from
//! them.

use serde_json::{Value, json};

use super::Call;
use crate::{
    events,
    http::Projection,
    kinds::{Kind, Version},
    service::ShownRevision,
    status::StatusError,
    store::{EncodedObject, Stored},
};

/// Whether the stored bytes need no conversion.
fn is_current(kind: &Kind, version: &Version, stored: &Stored) -> bool {
    let lead = stored
        .json()
        .strip_prefix(b"{\"apiVersion\":\"")
        .and_then(|rest| rest.strip_prefix(version.api_version.as_bytes()));
    stored.revision() > kind.schema_revision && lead.is_some_and(|rest| rest.first() == Some(&b'"'))
}

/// An object in the given version.
pub(crate) fn convert(kind: &Kind, version: &Version, stored: &Stored) -> Stored {
    if is_current(kind, version, stored) {
        return stored.clone();
    }
    EncodedObject::encode(&convert_value(kind, version, stored)).with_revision(stored.revision())
}

/// An object in the given version, decoded.
pub(crate) fn convert_value(kind: &Kind, version: &Version, stored: &Stored) -> Value {
    let mut object = stored.value();
    if is_current(kind, version, stored) {
        return object;
    }
    if kind.is("events.k8s.io", "events") {
        events::to_events_v1(&mut object);
    }
    object["apiVersion"] = version.api_version.clone().into();
    if stored.revision() <= kind.schema_revision {
        version.versioned_schema.prune_and_default_stored(&mut object);
    }
    object
}

/// The `PartialObjectMetadata` of an object.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

impl Call {
    pub(crate) fn convert(&self, stored: &Stored) -> Stored {
        convert(&self.kind, &self.version, stored)
    }

    pub(crate) fn convert_value(&self, stored: &Stored) -> Value {
        convert_value(&self.kind, &self.version, stored)
    }

    /// Responds with a stored object in the negotiated format.
    pub(crate) fn respond(&self, code: u16, stored: &Stored) -> http::Response<crate::http::ResponseBody> {
        let mut response = match self.output.projection {
            Projection::Full if !self.output.yaml => {
                crate::http::json_bytes(code, self.convert(stored).json().clone())
            }
            _ => self.respond_value(code, &self.convert_value(stored)),
        };
        response.extensions_mut().insert(ShownRevision(stored.revision()));
        response
    }

    /// Responds with an object that is not stored (a dry run) in the negotiated format.
    pub(crate) fn respond_value(
        &self,
        code: u16,
        object: &Value,
    ) -> http::Response<crate::http::ResponseBody> {
        let shown = match self.output.projection {
            Projection::Full => return crate::http::object(code, object, self.output),
            Projection::Metadata => metadata_only(object),
            Projection::Table => self.table(object),
        };
        crate::http::object(code, &shown, self.output)
    }

    /// An object or a list as a `Table`.
    pub(crate) fn table(&self, shown: &Value) -> Value {
        self.version.columns.table(shown, self.options.include_object, true, self.core.clock.now())
    }

    /// The object that the request names, or 404.
    pub(crate) fn current(&self) -> Result<Stored, StatusError> {
        let name = self.target()?;
        self.core.store.view().get(&self.collection(), &self.path(name)).ok_or_else(|| self.not_found(name))
    }
}
