//! Random authorization against a model of RBAC, without kube-apiserver: 4,000 verdicts, or
//! `POLIS_DIFFERENTIAL_VERDICTS`, from the seed `POLIS_DIFFERENTIAL_SEED` on. The suite `differential` asks
//! kube-apiserver for the same verdicts.

mod common;
#[path = "differential/authorization.rs"]
mod random;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test]
async fn random_requests_are_authorized_as_the_rules_say() {
    let server = polis_apiserver::Server::builder().build().await.expect("a server");
    let client = common::mk_client(&server, "");
    let wanted = number("POLIS_DIFFERENTIAL_VERDICTS").unwrap_or(4000);
    let first = number("POLIS_DIFFERENTIAL_SEED").unwrap_or(1);
    random::compare(&client, None, first, wanted as usize).await;
}
