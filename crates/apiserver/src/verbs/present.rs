//! From what is stored to what a client sees: the version it asked for, under the schema of today.

use serde_json::{Value, json};

use super::Call;
use crate::{
    events,
    http::Projection,
    kinds::{Kind, Version},
    service::Shows,
    status::Failure,
    store::{Draft, Stored},
};

/// Whether the bytes can be given as they are.
fn is_current(kind: &Kind, version: &Version, stored: &Stored) -> bool {
    let lead = stored
        .json()
        .strip_prefix(b"{\"apiVersion\":\"")
        .and_then(|rest| rest.strip_prefix(version.api_version.as_bytes()));
    stored.revision() > kind.schema_revision && lead.is_some_and(|rest| rest.first() == Some(&b'"'))
}

/// An object in the given version.
pub(crate) fn present(kind: &Kind, version: &Version, stored: &Stored) -> Stored {
    if is_current(kind, version, stored) {
        return stored.clone();
    }
    Draft::encode(&present_value(kind, version, stored)).finish(stored.revision())
}

/// An object in the given version, as values.
pub(crate) fn present_value(kind: &Kind, version: &Version, stored: &Stored) -> Value {
    let mut object = stored.value();
    if is_current(kind, version, stored) {
        return object;
    }
    if kind.is("events.k8s.io", "events") {
        events::to_new(&mut object);
    }
    object["apiVersion"] = version.api_version.clone().into();
    if stored.revision() <= kind.schema_revision {
        version.form.reshape(&mut object);
    }
    object
}

/// Type and metadata of an object.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

impl Call {
    pub(crate) fn present(&self, stored: &Stored) -> Stored {
        present(&self.kind, &self.version, stored)
    }

    pub(crate) fn present_value(&self, stored: &Stored) -> Value {
        present_value(&self.kind, &self.version, stored)
    }

    /// One object as the client wants to see it.
    pub(crate) fn answer(&self, code: u16, stored: &Stored) -> http::Response<crate::http::Body> {
        let mut response = match self.output.projection {
            Projection::Full if !self.output.yaml => {
                crate::http::json_bytes(code, self.present(stored).json().clone())
            }
            _ => self.answer_value(code, &self.present_value(stored)),
        };
        response.extensions_mut().insert(Shows(stored.revision()));
        response
    }

    /// One object that is not stored (a dry run), as the client wants to see it.
    pub(crate) fn answer_value(&self, code: u16, object: &Value) -> http::Response<crate::http::Body> {
        let shown = match self.output.projection {
            Projection::Full => return crate::http::object(code, object, self.output),
            Projection::Metadata => metadata_only(object),
            Projection::Table => self.table(object),
        };
        crate::http::object(code, &shown, self.output)
    }

    /// An object or a list of them as rows.
    pub(crate) fn table(&self, shown: &Value) -> Value {
        self.version.columns.table(shown, self.options.include_object, true, self.core.clock.now())
    }

    /// The object of the path, or why there is none.
    pub(crate) fn current(&self) -> Result<Stored, Failure> {
        let name = self.target()?;
        self.core.store.view().get(&self.collection(), &self.path(name)).ok_or_else(|| self.not_found(name))
    }
}
