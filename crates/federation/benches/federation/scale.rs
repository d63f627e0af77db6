//! Many members.

use std::time::Instant;

use serde_json::json;

use super::load::{Arrivals, POLICY, SHOP, burst, change};
use super::polis::{World, name};
use super::rows::{Better, Rows};

/// How many copies a second are made when objects go to many members.
pub(crate) async fn fan_out(rows: &mut Rows, members: usize, objects: usize) {
    let world = World::new(members).await;
    let seconds = spread(&world, objects).await;
    let measure = format!("a burst of objects to {members} members, copies");
    let rate = (members * objects) as f64 / seconds;
    rows.add(&measure, "1/s", rate, None, Some(1000.0), Better::Higher);
}

/// Makes objects and waits until every member has all of them; in seconds.
async fn spread(world: &World, objects: usize) -> f64 {
    let watched = watch(world).await;
    let begun = Instant::now();
    burst(&world.hub, "burst", objects).await;
    for arrivals in &watched {
        arrivals.until(|seen| seen.len() == objects).await;
    }
    begun.elapsed().as_secs_f64()
}

async fn watch(world: &World) -> Vec<Arrivals> {
    let mut watched = Vec::new();
    for member in &world.members {
        watched.push(Arrivals::on(member).await);
    }
    watched
}

/// A federation of the size that is asked for: what it holds, and how fast it is back.
pub(crate) async fn large(rows: &mut Rows, members: usize, objects: usize) {
    let size = format!("{members} members x {objects} objects");
    let empty = resident_mib();
    let mut world = World::new(members).await;
    let planes = resident_mib();
    let seconds = spread(&world, objects).await;
    let lower = Better::Lower;
    rows.add(&format!("{size}: until everything is everywhere"), "s", seconds, None, None, lower);
    let held = resident_mib();
    rows.add(&format!("{size}: memory, hub, members and federation"), "MiB", held - empty, None, None, lower);
    rows.add(
        &format!("{size}: memory of the empty planes among it"),
        "MiB",
        planes - empty,
        None,
        None,
        lower,
    );

    // A change that was made while nobody looked is on all members.
    world.end().await;
    change(&world.hub, "burst-0").await;
    let watched = watch(&world).await;
    let begun = Instant::now();
    world.start();
    for arrivals in &watched {
        arrivals.until(|seen| seen["burst-0"].1 == "second").await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    rows.add(&format!("{size}: a change is everywhere after a restart"), "s", seconds, None, None, lower);

    let begun = Instant::now();
    let mut policy = world.hub.get(&POLICY, SHOP, "p").await.expect("an answer").expect("the policy");
    policy["spec"]["placement"] = json!({"clusterAffinity": {"exclude": [name(0)]}});
    world.hub.replace(&POLICY, &policy).await.expect("changed");
    watched[0].until(|seen| seen.is_empty()).await;
    let seconds = begun.elapsed().as_secs_f64();
    rows.add(&format!("{size}: a policy has left out one member"), "s", seconds, None, None, lower);
}

fn resident_mib() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4096.0 / 1024.0 / 1024.0
}
