//! The suite on the embedded federation, over planes of the embedded API server, all in this process; what it costs;
//! and that it may end at any write.

mod cost;
mod crash;
mod lives;
#[path = "../suite/mod.rs"]
mod suite;
mod world;

use world::world;

macro_rules! as_tests {
    ($($room:ident::$case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                suite::$room::$case(&world().await).await;
            }
        )*
    };
}

shared_cases!(as_tests);
embedded_cases!(as_tests);
