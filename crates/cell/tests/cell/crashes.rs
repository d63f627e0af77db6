//! Crash tests: the process may crash after any of its writes, and the next process reaches the same state.
use polis_testing::builders::mk_template;
use polis_testing::eventually;

use crate::env::{Setup, TestEnv, mk_deployment, names};

/// Runs a scenario with a process that crashes after its n-th write, for every n, and a second process that
/// completes it. Returns the number of crash points.
async fn after_every_write(
    setup: Setup,
    scenario: impl AsyncFn(&mut TestEnv),
    check: impl AsyncFn(&TestEnv),
) -> usize {
    let mut crash = 0;
    loop {
        let mut env = TestEnv::new(setup).await;
        env.provider();
        let log = env.cluster.proxy.requests().clone();
        let fault = log.crash_after_writes(crash, |_| true);
        env.start();
        scenario(&mut env).await;
        // Until it has crashed or is idle.
        env.idle(std::time::Duration::from_secs(120)).await;
        let crashed = log.is_triggered(fault);
        env.stop().await;
        log.clear_faults();
        env.start();
        check(&env).await;
        if !crashed {
            return crash;
        }
        crash += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn creating_instances_survives_a_crash_after_every_write() {
    let writes = after_every_write(
        Setup::default(),
        async |env| env.deploy(&mk_deployment("web", 2)).await,
        async |env| {
            env.until_ready(&["web-0", "web-1"]).await;
            assert_eq!((names(&env.instances().await).len(), names(&env.copies().await).len()), (2, 2));
        },
    )
    .await;
    assert!(writes > 10, "{writes}");
}

#[tokio::test(start_paused = true)]
async fn replacing_and_scaling_down_survives_a_crash_after_every_write() {
    after_every_write(
        Setup::default(),
        async |env| {
            env.deploy(&mk_deployment("web", 2)).await;
            env.idle(std::time::Duration::from_secs(10)).await;
            env.change("web", |deployment| {
                deployment.spec.template = mk_template("app:2");
                deployment.spec.scale_settings.min_replicas = 1;
            })
            .await;
        },
        async |env| {
            env.until_rolled_out("web", 1).await;
            eventually("one copy", async || (names(&env.copies().await) == ["web-0"]).then_some(())).await;
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn deleting_a_deployment_survives_a_crash_after_every_write() {
    after_every_write(
        Setup::default(),
        async |env| {
            env.deploy(&mk_deployment("web", 2)).await;
            env.idle(std::time::Duration::from_secs(10)).await;
            env.undeploy("web").await;
        },
        async |env| env.until_empty().await,
    )
    .await;
}
