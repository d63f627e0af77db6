//! Token controller: fills secrets of type `kubernetes.io/service-account-token`.
//!
//! Reads   Secret, ServiceAccount
//! Writes  Secret (data, uid annotation)

use std::sync::Arc;

use polis_apimachinery::object;
use serde_json::Value;

use super::StoreKey;
use crate::{
    access,
    server::Core,
    status::StatusError,
    store::{Collection, Event},
};

const KIND: &[u8] = b"\"kubernetes.io/service-account-token\"";
const ACCOUNT: &str = "kubernetes.io/service-account.name";

/// Whether a secret is of the token type and has no token yet.
pub(super) fn needs_token(event: &Event) -> bool {
    event.object.contains(KIND) && !event.object.contains(b"\"token\":")
}

/// Writes a token into a secret that names an existing service account.
pub(super) async fn fill(core: &Arc<Core>, (collection, path): &StoreKey) -> Result<(), StatusError> {
    let Some(plane) = core.plane(&collection.plane) else { return Ok(()) };
    let Some(stored) = core.store.view().get(collection, path) else { return Ok(()) };
    let secret = stored.value();
    let name = secret["metadata"]["annotations"][ACCOUNT].as_str().unwrap_or_default();
    let accounts = Collection::new(plane.name.clone(), "serviceaccounts");
    let Some(account) =
        core.store.view().get(&accounts, &format!("{}/{name}", object::meta(&secret, "namespace")))
    else {
        return Ok(());
    };
    let account = account.value();
    let data = access::fill_secret(core, &plane, &account);
    core.rewrite(collection, path, |secret| {
        secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"] =
            object::meta(&account, "uid").into();
        if !secret["data"].is_object() {
            secret["data"] = serde_json::json!({});
        }
        if let (Value::Object(held), Value::Object(data)) = (&mut secret["data"], &data) {
            held.extend(data.clone());
        }
    })
    .await
    .map(drop)
}
