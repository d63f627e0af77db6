//! Waiting until a component is ready: it lives, it holds its ports itself, and it answers.
//!
//! An answer alone would not do. With two beds on one machine, the component of the other may have taken the
//! port and answer in the name of ours, which is about to die of it.

use std::time::{Duration, Instant};

use kube::{Client, Config, config::KubeConfigOptions, config::Kubeconfig};

use crate::{
    Error, Say,
    pki::{MASTERS, Pki},
    port,
    process::{Condition, Processes, Record},
};

/// Given to each component. A machine that builds at the same time is slow; one that needs longer is stuck.
pub const WITHIN: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is said what is being waited for.
const REMIND: Duration = Duration::from_secs(5);
/// What Go's net package says when a port is taken.
const TAKEN: &str = "address already in use";

/// Waits until the component is ready.
pub async fn wait(processes: &Processes, pki: &Pki, record: &Record, say: &Say) -> Result<Duration, Error> {
    let start = Instant::now();
    let client = client(pki, &base(&record.spec.ready), "admin", &[MASTERS]).await?;
    let mut reminded = start;
    loop {
        let last = match look(processes, record, &client).await? {
            None => return Ok(start.elapsed()),
            Some(why) => why,
        };
        if start.elapsed() > WITHIN {
            return Err(Error::NotReady {
                name: record.spec.name.clone(),
                seconds: WITHIN.as_secs(),
                why: last,
                log: processes.log(record),
                tail: processes.tail(record),
            });
        }
        if reminded.elapsed() > REMIND {
            reminded = Instant::now();
            // What it waits for itself may be what has died.
            if let Some(dead) = processes.first_dead()?.filter(|dead| !processes.said(dead).contains(TAKEN)) {
                return Err(processes.death(&dead));
            }
            say(&format!("  waiting for {} at {}: {last}", record.spec.name, record.spec.ready));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// None when the component is ready, else what is missing; an error when waiting longer is in vain.
async fn look(processes: &Processes, record: &Record, client: &Client) -> Result<Option<String>, Error> {
    let spec = &record.spec;
    let dead = record.identity.condition() == Condition::Dead;
    let all_held = spec.ports.iter().all(|&port| port::is_held_by(record.identity.pid, port));
    if (dead || !all_held) && processes.said(record).contains(TAKEN) {
        return Err(Error::PortTaken { name: spec.name.clone(), ports: spec.ports.clone() });
    }
    if dead {
        return Err(processes.death(record));
    }
    if !all_held {
        return Ok(Some("it does not listen yet".to_owned()));
    }
    match get(client, &spec.ready).await {
        Ok(()) => Ok(None),
        Err(why) => Ok(Some(why)),
    }
}

async fn get(client: &Client, url: &str) -> Result<(), String> {
    let path = &url[base(url).len()..];
    let request = http::Request::get(path).body(Vec::new()).map_err(|err| err.to_string())?;
    match tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(err)) => Err(err.to_string().lines().next().unwrap_or_default().to_owned()),
        Err(_) => Err("no answer within 2 s".to_owned()),
    }
}

/// The address without its path.
fn base(url: &str) -> String {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let end = url[after_scheme..].find('/').map_or(url.len(), |at| after_scheme + at);
    url[..end].to_owned()
}

/// A client that is the user, with these groups, at the server.
pub async fn client(pki: &Pki, server: &str, user: &str, groups: &[&str]) -> Result<Client, Error> {
    let failed = |why: String| Error::Client { server: server.to_owned(), why };
    let config = Kubeconfig::from_yaml(&pki.kubeconfig(server, user, groups)?)
        .map_err(|err| failed(err.to_string()))?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .map_err(|err| failed(err.to_string()))?;
    Client::try_from(config).map_err(|err| failed(err.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_of_an_address_is_scheme_and_authority() {
        assert_eq!(base("https://127.0.0.1:8443/readyz/"), "https://127.0.0.1:8443");
        assert_eq!(base("http://127.0.0.1:2379"), "http://127.0.0.1:2379");
    }
}
