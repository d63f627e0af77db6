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

const ACCOUNT: &str = "kubernetes.io/service-account.name";

/// Whether a secret is of the token type and has no token of the current key. After a rotation of the keys
/// each secret gets a new token, before the old key is removed.
pub(super) fn needs_token(core: &Core, event: &Event) -> bool {
    event.object.contains(access::SECRET_TYPE) && access::needs_token(core, &event.object.value())
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
    core.rewrite(collection, path, |secret| {
        if !access::needs_token(core, secret) {
            return;
        }
        let data = access::fill_secret(core, &plane, &account, secret);
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
