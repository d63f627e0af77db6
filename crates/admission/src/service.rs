//! The webhooks over HTTP: the same for a socket and for a caller in this process.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};

use crate::judge::Webhook;
use crate::verdict::Refusal;

/// Path of the webhook that fills in.
pub const MUTATE: &str = "/mutate-compute-datumapis-com-v1alpha-workload";
/// Path of the webhook that judges.
pub const VALIDATE: &str = "/validate-compute-datumapis-com-v1alpha-workload";

/// Reviews of this size and above are not read. The largest object that can be stored has 1.5 MiB, and a review of a
/// change holds two.
const TOO_LARGE: usize = 3 << 20;
/// Time for a body to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for Webhook
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Display,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        let webhook = self.clone();
        Box::pin(async move {
            let answer = webhook.handle(request).await;
            Ok(match answer {
                Ok(review) => respond(StatusCode::OK, review),
                Err(refusal) => {
                    let code =
                        StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                    let status = serde_json::to_vec(&refusal.status()).unwrap_or_default();
                    respond(code, status.into())
                }
            })
        })
    }
}

impl Webhook {
    async fn handle<B>(&self, request: Request<B>) -> Result<Bytes, Refusal>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Display,
    {
        if request.method() != Method::POST {
            return Err(Refusal::method_not_allowed());
        }
        let (parts, body) = request.into_parts();
        let reading = Limited::new(body, TOO_LARGE - 1).collect();
        let body = match tokio::time::timeout(PATIENCE, reading).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Refusal::too_large(TOO_LARGE)),
            Ok(Err(error)) => return Err(Refusal::bad_request(format!("the review broke off: {error}"))),
            Err(_) => {
                let within = PATIENCE.as_secs();
                return Err(Refusal::bad_request(format!("the review did not arrive within {within} s")));
            }
        };
        self.answer(parts.uri.path(), &body).await
    }
}

fn respond(code: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
