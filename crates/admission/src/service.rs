//! The webhooks as a tower service over HTTP, for a socket and for callers in the same process.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};

use crate::error::AdmissionError;
use crate::webhook::Webhook;

/// Path of the defaulting webhook.
pub const MUTATE_PATH: &str = "/mutate-compute-datumapis-com-v1alpha-workload";
/// Path of the validating webhook.
pub const VALIDATE_PATH: &str = "/validate-compute-datumapis-com-v1alpha-workload";

/// Reviews of this size or larger are rejected. The largest stored object has 1.5 MiB, and the review of an
/// update contains two.
const TOO_LARGE: usize = 3 << 20;

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for Webhook
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Display,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let webhook = self.clone();
        Box::pin(async move {
            let result = webhook.handle(request).await;
            Ok(match result {
                Ok(review) => respond(StatusCode::OK, review),
                Err(error) => {
                    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                    let status = serde_json::to_vec(&error.status()).unwrap_or_default();
                    respond(code, status.into())
                }
            })
        })
    }
}

impl Webhook {
    async fn handle<B>(&self, request: Request<B>) -> Result<Bytes, AdmissionError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Display,
    {
        if request.method() != Method::POST {
            return Err(AdmissionError::method_not_allowed());
        }
        let (parts, body) = request.into_parts();
        let body = match Limited::new(body, TOO_LARGE - 1).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(AdmissionError::too_large(TOO_LARGE));
            }
            Err(error) => {
                return Err(AdmissionError::bad_request(format!("failed to read the request body: {error}")));
            }
        };
        self.review(parts.uri.path(), &body).await
    }
}

fn respond(code: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
