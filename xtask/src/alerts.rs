//! `cargo xtask alerts`: checks the alert rules against the cases in `deploy/components/alerts/tests.yaml`,
//! with promtool.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::crds::root;
use crate::go_tool::{self, GoTool};

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) const PROMTOOL: GoTool = GoTool {
    name: "promtool",
    module: "prometheus",
    package: "github.com/prometheus/prometheus/cmd/promtool",
    // Without service discovery, which is most of Prometheus and not needed here.
    tags: "remove_all_sd",
    takes: "three minutes",
};

pub(crate) fn run(_: Args) -> Result<()> {
    check()
}

/// Fails when a rule does not behave as a case expects. promtool prints which.
pub(crate) fn check() -> Result<()> {
    let promtool = PROMTOOL.find_or_build()?;
    let scratch = tempfile::tempdir()?;
    let rules: Value = serde_saphyr::from_str(&read("rules.yaml")?).context("rules.yaml")?;
    // promtool reads the rules without the PrometheusRule object around them.
    fs::write(scratch.path().join("rules.yaml"), rules["spec"].to_string())?;
    fs::write(scratch.path().join("tests.yaml"), read("tests.yaml")?)?;
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]] {
        go_tool::run(&promtool, &arguments, scratch.path())?;
    }
    Ok(())
}

fn read(name: &str) -> Result<String> {
    let path = root().join("deploy/components/alerts").join(name);
    fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn items(list: &Value) -> impl Iterator<Item = &Value> {
        list.as_array().into_iter().flatten()
    }

    fn text(value: &Value) -> &str {
        value.as_str().unwrap_or_default()
    }

    #[test]
    fn every_alert_has_a_case_in_which_it_fires_and_resolves() {
        let rules: Value = serde_saphyr::from_str(&read("rules.yaml").unwrap()).unwrap();
        let alerts: BTreeSet<&str> = items(&rules["spec"]["groups"])
            .flat_map(|group| items(&group["rules"]))
            .map(|rule| text(&rule["alert"]))
            .collect();
        let tests: Value = serde_saphyr::from_str(&read("tests.yaml").unwrap()).unwrap();
        let mut covered = BTreeSet::new();
        for case in items(&tests["tests"]) {
            let mut results: BTreeMap<&str, Vec<(u64, bool)>> = BTreeMap::new();
            for point in items(&case["alert_rule_test"]) {
                let minute = text(&point["eval_time"]).trim_end_matches('m').parse().unwrap();
                let fires = items(&point["exp_alerts"]).next().is_some();
                results.entry(text(&point["alertname"])).or_default().push((minute, fires));
            }
            for (alert, mut results) in results {
                results.sort_unstable();
                if results.windows(2).any(|pair| pair[0].1 && !pair[1].1) {
                    covered.insert(alert);
                }
            }
        }
        assert!(alerts.len() > 10, "{alerts:?}");
        assert_eq!(alerts, covered);
    }
}
