//! The credential of a request whose response goes on: a watch, or the log of an instance.
//!
//! Such a response ends with its credential. It is checked before each piece of the stream, and at once after
//! a revocation or at the time when the credential expires, so that an idle stream ends too.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};

use super::{certificates::ClientCertificate, tokens::Claims};
use crate::server::Core;

/// The credential that authenticated a request over the network.
#[derive(Clone)]
pub(crate) enum Session {
    Certificate(Arc<ClientCertificate>),
    /// A service account token on the plane of its issuer.
    Token {
        plane: Arc<str>,
        token: Arc<str>,
        claims: Box<Claims>,
    },
}

impl Session {
    fn is_valid(&self, core: &Core) -> bool {
        match self {
            Self::Certificate(certificate) => certificate.authenticate(core).is_some(),
            Self::Token { plane, token, claims } => claims.check(core, plane, token).is_ok(),
        }
    }

    /// When the credential expires, in seconds since 1970.
    fn expires(&self) -> Option<i64> {
        match self {
            Self::Certificate(certificate) => Some(certificate.expires),
            Self::Token { claims, .. } => claims.exp,
        }
    }
}

/// Waits for the end of a credential.
pub(crate) struct SessionEnd {
    core: Arc<Core>,
    session: Session,
    ended: BoxFuture<'static, ()>,
}

impl SessionEnd {
    pub(crate) fn of(core: &Arc<Core>, session: Session) -> Self {
        Self { core: core.clone(), ended: ended(core.clone(), session.clone()).boxed(), session }
    }

    /// Ready when the credential is no longer valid.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.ended.poll_unpin(context) {
            Poll::Pending if self.session.is_valid(&self.core) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

/// Completes after a revocation of the credential, or when it expires.
async fn ended(core: Arc<Core>, session: Session) {
    let mut revocations = core.credentials.subscribe();
    while session.is_valid(&core) {
        let expired = async {
            match session.expires() {
                Some(end) => {
                    let left = end.saturating_sub(core.clock.now().as_second()).max(1).unsigned_abs();
                    tokio::time::sleep(Duration::from_secs(left)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender lives as long as `core`.
            _ = revocations.changed() => {}
            () = expired => {}
        }
    }
}
