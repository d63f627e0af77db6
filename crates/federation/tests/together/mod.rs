//! Runs many cases in one world, a few at a time.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};

use crate::suite::world::World;

/// A case by its name.
pub type Case = (&'static str, fn(Arc<World>) -> Pin<Box<dyn Future<Output = ()> + Send>>);

/// The shared cases as a list.
#[macro_export]
macro_rules! as_list {
    ($($room:ident::$case:ident),* $(,)?) => {
        fn cases() -> Vec<$crate::together::Case> {
            vec![$((stringify!($case), |world| Box::pin(async move { $crate::suite::$room::$case(&world).await }))),*]
        }
    };
}

/// Runs the cases and fails with the names of those that do not hold. `POLIS_CASES` narrows the run to cases whose name
/// contains it.
pub async fn run(world: World, cases: Vec<Case>) {
    let world = Arc::new(world);
    let wanted = std::env::var("POLIS_CASES").unwrap_or_default();
    let (alone, together): (Vec<Case>, Vec<Case>) = cases
        .into_iter()
        .filter(|(name, _)| name.contains(&wanted))
        .partition(|(name, _)| name.contains("taint"));
    let run = |(name, case): Case| {
        let world = world.clone();
        async move {
            let held = AssertUnwindSafe(case(world)).catch_unwind().await.is_ok();
            println!("{name} ... {}", if held { "ok" } else { "FAILED" });
            (name, held)
        }
    };
    let mut outcomes: Vec<(&str, bool)> =
        futures::stream::iter(together).map(run).buffer_unordered(6).collect().await;
    // A taint keeps the objects of every other case away.
    for case in alone {
        outcomes.push(run(case).await);
    }
    let failed: Vec<&str> = outcomes.iter().filter(|(_, held)| !held).map(|(name, _)| *name).collect();
    assert!(failed.is_empty(), "{} of {} cases do not hold: {failed:#?}", failed.len(), outcomes.len());
}
