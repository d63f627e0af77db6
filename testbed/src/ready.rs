//! Readiness of a component: its process runs, listens on its ports, and its readiness URL returns 200.
//!
//! The HTTP response alone is not enough: with two test clusters on one machine, a component of the other one
//! may have taken the port and respond instead.

use std::time::{Duration, Instant};

use kube::{Client, Config, config::KubeConfigOptions, config::Kubeconfig};

use crate::{
    Error, ProgressFn,
    pki::{MASTERS, Pki},
    port,
    process::{ComponentRecord, ProcessState, Processes},
};

/// Timeout for one component; long enough for a machine that builds at the same time.
pub const READY_TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of the progress messages while waiting.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// The error of Go's net package for a port that is taken.
const ADDRESS_IN_USE: &str = "address already in use";

/// Waits until the component is ready; returns the time that it took.
pub async fn wait(
    processes: &Processes,
    pki: &Pki,
    record: &ComponentRecord,
    progress: &ProgressFn,
) -> Result<Duration, Error> {
    let start = Instant::now();
    let client = client(pki, &base(&record.spec.ready), "admin", &[MASTERS]).await?;
    let mut reported = start;
    loop {
        let last = match check(processes, record, &client).await? {
            None => return Ok(start.elapsed()),
            Some(why) => why,
        };
        if start.elapsed() > READY_TIMEOUT {
            return Err(Error::NotReady {
                name: record.spec.name.clone(),
                seconds: READY_TIMEOUT.as_secs(),
                why: last,
                log: processes.log(record),
                tail: processes.tail(record),
            });
        }
        if reported.elapsed() > PROGRESS_INTERVAL {
            reported = Instant::now();
            // A component that this one depends on may have exited.
            if let Some(exited) =
                processes.first_exited()?.filter(|exited| !processes.output(exited).contains(ADDRESS_IN_USE))
            {
                return Err(processes.exit_error(&exited));
            }
            progress(&format!("  waiting for {} at {}: {last}", record.spec.name, record.spec.ready));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// `None` when the component is ready, else the missing condition; an error if it cannot become ready.
async fn check(
    processes: &Processes,
    record: &ComponentRecord,
    client: &Client,
) -> Result<Option<String>, Error> {
    let spec = &record.spec;
    let exited = record.process.state() == ProcessState::Dead;
    let all_held = spec.ports.iter().all(|&port| port::is_held_by(record.process.pid, port));
    if (exited || !all_held) && processes.output(record).contains(ADDRESS_IN_USE) {
        return Err(Error::PortTaken { name: spec.name.clone(), ports: spec.ports.clone() });
    }
    if exited {
        return Err(processes.exit_error(record));
    }
    if !all_held {
        return Ok(Some("it does not listen on its ports yet".to_owned()));
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
        Err(_) => Err("no response within 2 s".to_owned()),
    }
}

/// The URL without its path.
fn base(url: &str) -> String {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let end = url[after_scheme..].find('/').map_or(url.len(), |at| after_scheme + at);
    url[..end].to_owned()
}

/// A client of the server for a user with these groups.
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
    fn the_base_of_a_url_is_scheme_and_authority() {
        assert_eq!(base("https://127.0.0.1:8443/readyz/"), "https://127.0.0.1:8443");
        assert_eq!(base("http://127.0.0.1:2379"), "http://127.0.0.1:2379");
    }
}
