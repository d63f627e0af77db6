//! The conformance cases on the embedded federation over embedded planes, in this process; its request
//! budget; crashes after every write; and its probes, metrics and leader election.

mod crash;
mod fixture;
mod lifecycles;
mod operations;
mod request_budget;
#[path = "../suite/mod.rs"]
mod suite;

use fixture::federation;

macro_rules! as_tests {
    ($($module:ident::$case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                suite::$module::$case(&federation().await).await;
            }
        )*
    };
}

shared_cases!(as_tests);
embedded_cases!(as_tests);
