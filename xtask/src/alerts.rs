//! `cargo xtask alerts`: the alert rules, held to `deploy/components/alerts/tests.yaml` by Prometheus' own promtool.
//!
//! promtool is the one on the PATH, or one that is built from the pins in `testbed/prometheus` and kept beside the programs
//! of the test bed. It has a cache of its own: the programs of the bed are not built anew for it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use polis_testbed::{go, pins::BUILD_ENV};
use serde_json::Value;

use crate::crds::root;
use crate::oci;

#[derive(clap::Args)]
pub(crate) struct Args {}

const PACKAGE: &str = "github.com/prometheus/prometheus/cmd/promtool";
/// Without what finds targets to scrape, which is most of Prometheus and no use here.
const TAGS: &str = "remove_all_sd";

pub(crate) fn run(_: Args) -> Result<()> {
    let promtool = match find()? {
        Some(promtool) => promtool,
        None => build()?,
    };
    check(&promtool)
}

/// A promtool that is there already.
pub(crate) fn find() -> Result<Option<PathBuf>> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = env::split_paths(&path).map(|folder| folder.join("promtool")).find(|file| file.is_file());
    Ok(match installed {
        Some(installed) => Some(installed),
        None => Some(cached()?).filter(|file| file.is_file()),
    })
}

/// Fails when a rule does not do what a case says. promtool itself says which.
pub(crate) fn check(promtool: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let rules: Value = serde_saphyr::from_str(&read("rules.yaml")?).context("rules.yaml")?;
    // The operator's object around them is not promtool's.
    fs::write(scratch.path().join("rules.yaml"), rules["spec"].to_string())?;
    fs::write(scratch.path().join("tests.yaml"), read("tests.yaml")?)?;
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]] {
        let status = Command::new(promtool)
            .args(arguments)
            .current_dir(scratch.path())
            .status()
            .with_context(|| format!("failed to start {}", promtool.display()))?;
        if !status.success() {
            bail!("promtool {} ended with {status}", arguments.join(" "));
        }
    }
    Ok(())
}

fn read(name: &str) -> Result<String> {
    let path = root().join("deploy/components/alerts").join(name);
    fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
}

fn pins() -> PathBuf {
    root().join("testbed/prometheus")
}

/// Where a built promtool is kept: another pin is another place.
fn cached() -> Result<PathBuf> {
    let pins = [fs::read(pins().join("go.mod"))?, fs::read(pins().join("go.sum"))?].concat();
    let key = oci::digest(&pins).replace("sha256:", "");
    Ok(polis_testbed::home::cache()?.join(format!("promtool-{}", &key[..16])).join("promtool"))
}

/// Builds one and keeps it.
pub(crate) fn build() -> Result<PathBuf> {
    let go = go::find()?;
    let place = cached()?;
    let folder = place.parent().context("it lies in a folder")?;
    fs::create_dir_all(folder)?;
    println!("building promtool: about three minutes on two cores, once");
    // Under another name until it is whole.
    let unfinished = tempfile::Builder::new().prefix(".promtool-").tempdir_in(folder)?;
    let made = unfinished.path().join("promtool");
    let status = Command::new(&go.path)
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-tags", TAGS, "-o"])
        .args([made.as_os_str(), PACKAGE.as_ref()])
        .envs(BUILD_ENV)
        .current_dir(pins())
        .status()
        .context("failed to start go")?;
    if !status.success() {
        bail!("go build ended with {status}");
    }
    fs::rename(&made, &place).with_context(|| format!("failed to write {}", place.display()))?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn each(list: &Value) -> impl Iterator<Item = &Value> {
        list.as_array().into_iter().flatten()
    }

    fn word(value: &Value) -> &str {
        value.as_str().unwrap_or_default()
    }

    #[test]
    fn every_alert_has_a_case_in_which_it_fires_and_then_is_over() {
        let rules: Value = serde_saphyr::from_str(&read("rules.yaml").unwrap()).unwrap();
        let alerts: BTreeSet<&str> = each(&rules["spec"]["groups"])
            .flat_map(|group| each(&group["rules"]))
            .map(|rule| word(&rule["alert"]))
            .collect();
        let tests: Value = serde_saphyr::from_str(&read("tests.yaml").unwrap()).unwrap();
        let mut shown = BTreeSet::new();
        for case in each(&tests["tests"]) {
            let mut course: BTreeMap<&str, Vec<(u64, bool)>> = BTreeMap::new();
            for look in each(&case["alert_rule_test"]) {
                let minute = word(&look["eval_time"]).trim_end_matches('m').parse().unwrap();
                let fires = each(&look["exp_alerts"]).next().is_some();
                course.entry(word(&look["alertname"])).or_default().push((minute, fires));
            }
            for (alert, mut course) in course {
                course.sort_unstable();
                if course.windows(2).any(|pair| pair[0].1 && !pair[1].1) {
                    shown.insert(alert);
                }
            }
        }
        assert!(alerts.len() > 10, "{alerts:?}");
        assert_eq!(alerts, shown);
    }
}
