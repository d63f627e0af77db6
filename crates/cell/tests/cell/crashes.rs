//! A process may end after any of its writes. Whoever starts next ends in the same state.

use crate::world::{Setup, World, mk_deployment, mk_template, names};

/// Runs a story with a process that ends after its n-th write, for every n, and another one that finishes it.
async fn after_every_write(
    setup: Setup,
    story: impl AsyncFn(&mut World),
    ending: impl AsyncFn(&World),
) -> u32 {
    let mut crash = 0;
    loop {
        let mut world = World::new(setup).await;
        world.provider();
        world.fuse.after(crash);
        world.start();
        story(&mut world).await;
        // Until it is dead, or has nothing more to do.
        world.quiet(std::time::Duration::from_secs(120)).await;
        let died = world.fuse.is_burnt();
        world.stop().await;
        world.fuse.mend();
        world.start();
        ending(&world).await;
        if !died {
            return crash;
        }
        crash += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn making_instances_survives_a_crash_after_every_write() {
    let writes = after_every_write(
        Setup::default(),
        async |world| world.deploy(&mk_deployment("web", 2)).await,
        async |world| {
            world.until_ready(&["web-0", "web-1"]).await;
            assert_eq!((names(&world.instances().await).len(), names(&world.copies().await).len()), (2, 2));
        },
    )
    .await;
    assert!(writes > 10, "{writes}");
}

#[tokio::test(start_paused = true)]
async fn replacing_and_scaling_down_survives_a_crash_after_every_write() {
    after_every_write(
        Setup::default(),
        async |world| {
            world.deploy(&mk_deployment("web", 2)).await;
            world.quiet(std::time::Duration::from_secs(10)).await;
            world
                .change("web", |deployment| {
                    deployment.spec.template = mk_template("app:2");
                    deployment.spec.scale_settings.min_replicas = 1;
                })
                .await;
        },
        async |world| {
            world.until_rolled_out("web", 1).await;
            world.until("one copy", async || (names(&world.copies().await) == ["web-0"]).then_some(())).await;
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn taking_everything_away_survives_a_crash_after_every_write() {
    after_every_write(
        Setup::default(),
        async |world| {
            world.deploy(&mk_deployment("web", 2)).await;
            world.quiet(std::time::Duration::from_secs(10)).await;
            world.undeploy("web").await;
        },
        async |world| world.until_empty().await,
    )
    .await;
}
