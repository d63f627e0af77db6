//! TokenRequest: a create on the subresource `serviceaccounts/token`.

use http::Response;
use parking_lot::Mutex;
use polis_apimachinery::{ValidationError, object, time};
use serde_json::{Value, json};

use super::{Call, Payload};
use crate::{
    access::{self, TokenRequest},
    admission,
    http::ResponseBody,
    kinds::token_request,
    ownership,
    status::{GroupResource, StatusError},
};

/// Shortest and longest lifetime that kube-apiserver accepts, in seconds.
const SECONDS_MIN: i64 = 600;
const SECONDS_MAX: i64 = 1 << 32;
/// Default of `spec.expirationSeconds`.
const SECONDS_DEFAULT: i64 = 3600;

impl Call {
    pub(crate) async fn create_token(
        &self,
        payload: &Payload,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let call = self.of_token_request();
        let mut request = call.read_object(payload)?;
        let result = call.issue(&mut request).await;
        self.warnings.lock().append(&mut call.warnings.lock());
        result.map(|()| crate::http::object(201, &request, self.output))
    }

    /// The same call with the kind of its body.
    fn of_token_request(&self) -> Self {
        let kind = token_request().clone();
        Self {
            core: self.core.clone(),
            plane: self.plane.clone(),
            kinds: self.kinds.clone(),
            version: kind.storage_version().clone(),
            kind,
            verb: self.verb,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            subresource: self.subresource,
            user: self.user.clone(),
            caller: self.caller.clone(),
            options: self.options.clone(),
            output: self.output,
            read_uncommitted: self.read_uncommitted,
            agent: self.agent.clone(),
            deadline: self.deadline,
            warnings: Mutex::default(),
        }
    }

    /// Completes a TokenRequest with a token. The steps and their order are those of kube-apiserver.
    async fn issue(&self, request: &mut Value) -> Result<(), StatusError> {
        let name = self.target()?;
        ownership::on_write(self, None, request);
        admission::namespace_accepts(self, request)?;
        admission::mutate(self, request, None).await?;
        let invalid = |name: &str, error: ValidationError| {
            let about = GroupResource::new("authentication.k8s.io", "TokenRequest");
            StatusError::invalid(&about, name, &[error])
        };
        let own = object::meta(request, "name");
        if !own.is_empty() && own != name {
            let why = "must match the service account name if specified";
            return Err(invalid(name, ValidationError::invalid("metadata.name", own, why)));
        }
        let account = self.current()?.value();
        let now = self.core.clock.now();
        if object::strings(&request["spec"]["audiences"]).is_empty() {
            request["spec"]["audiences"] = json!([access::issuer(&self.plane.name)]);
        }
        let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(SECONDS_DEFAULT);
        request["spec"]["expirationSeconds"] = seconds.into();
        object::set_meta(request, "name", Some(name.into()));
        object::set_meta(request, "creationTimestamp", Some(time::timestamp(now).into()));
        if let Value::Object(fields) = request {
            fields.remove("status");
        }
        let why = match seconds {
            ..SECONDS_MIN => Some("may not specify a duration less than 10 minutes"),
            SECONDS_MIN..=SECONDS_MAX => None,
            _ => Some("may not specify a duration larger than 2^32 seconds"),
        };
        if let Some(why) = why {
            return Err(invalid("", ValidationError::invalid("spec.expirationSeconds", seconds, why)));
        }
        admission::validate(self, Some(request), None).await?;
        let bound = access::bound_object(self, request)?;
        if seconds > access::TOKEN_LIFE_MAX {
            let most = access::TOKEN_LIFE_MAX;
            self.warn(format!("requested expiration of {seconds} seconds shortened to {most} seconds"));
            request["spec"]["expirationSeconds"] = most.into();
        }
        if request["spec"]["boundObjectRef"].is_null() {
            request["spec"]["boundObjectRef"] = Value::Null;
        }
        let issued = TokenRequest {
            account: &account,
            audiences: object::strings(&request["spec"]["audiences"]),
            seconds: seconds.min(access::TOKEN_LIFE_MAX),
            bound,
        };
        request["status"] = access::issue_token(self, now, issued).await?;
        Ok(())
    }
}
