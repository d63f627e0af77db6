//! Runs many cases on one federation, a few concurrently.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};

use crate::suite::fixture::TestFederation;

/// A case with its name.
pub type Case = (&'static str, fn(Arc<TestFederation>) -> Pin<Box<dyn Future<Output = ()> + Send>>);

/// Defines the shared cases as a list.
#[macro_export]
macro_rules! as_list {
    ($($module:ident::$case:ident),* $(,)?) => {
        fn cases() -> Vec<$crate::runner::Case> {
            vec![$((stringify!($case), |federation| Box::pin(async move { $crate::suite::$module::$case(&federation).await }))),*]
        }
    };
}

/// Runs the cases and panics with the names of those that fail. `POLIS_CASES` selects the cases whose name
/// contains it.
pub async fn run(federation: TestFederation, cases: Vec<Case>) {
    let federation = Arc::new(federation);
    let wanted = std::env::var("POLIS_CASES").unwrap_or_default();
    let (serial, runner): (Vec<Case>, Vec<Case>) = cases
        .into_iter()
        .filter(|(name, _)| name.contains(&wanted))
        .partition(|(name, _)| name.contains("taint"));
    let run = |(name, case): Case| {
        let federation = federation.clone();
        async move {
            let passed = AssertUnwindSafe(case(federation)).catch_unwind().await.is_ok();
            println!("{name} ... {}", if passed { "ok" } else { "FAILED" });
            (name, passed)
        }
    };
    let mut outcomes: Vec<(&str, bool)> =
        futures::stream::iter(runner).map(run).buffer_unordered(6).collect().await;
    // A taint would affect the objects of every other case.
    for case in serial {
        outcomes.push(run(case).await);
    }
    let failed: Vec<&str> = outcomes.iter().filter(|(_, passed)| !passed).map(|(name, _)| *name).collect();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), outcomes.len());
}
