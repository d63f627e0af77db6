//! `cargo xtask dashboards`: writes the JSON of the dashboards from
//! `deploy/components/dashboards/description.yaml`.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::crds::root;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare instead of writing; a difference is an error that names the file.
    #[arg(long)]
    check: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    dashboards: Vec<Dashboard>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dashboard {
    name: String,
    title: String,
    says: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: String,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    unit: String,
    queries: Vec<Query>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    expr: String,
    legend: String,
}

/// Columns of Grafana's grid.
const COLUMNS: usize = 24;
/// Height of a panel in grid rows.
const HEIGHT: usize = 8;

pub(crate) fn run(args: Args) -> Result<()> {
    if args.check { check() } else { write() }
}

/// Fails when a dashboard differs from its description.
pub(crate) fn check() -> Result<()> {
    let drifted: Vec<String> = files()?
        .into_iter()
        .filter(|(path, text)| fs::read_to_string(path).ok().as_ref() != Some(text))
        .map(|(path, _)| path.display().to_string())
        .collect();
    if !drifted.is_empty() {
        bail!("dashboards have drifted, run `cargo xtask dashboards`: {}", drifted.join(", "));
    }
    Ok(())
}

fn write() -> Result<()> {
    for (path, text) in files()? {
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn dir() -> PathBuf {
    root().join("deploy/components/dashboards")
}

fn description() -> Result<Description> {
    let path = dir().join("description.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
}

/// The files and their content.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let file = |dashboard: &Dashboard| {
        let text = serde_json::to_string_pretty(&render(dashboard))?;
        Ok((dir().join(format!("{}.json", dashboard.name)), text + "\n"))
    };
    description()?.dashboards.iter().map(file).collect()
}

fn render(dashboard: &Dashboard) -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let mut panels = Vec::new();
    let mut y = 0;
    for row in &dashboard.rows {
        let id = panels.len() + 1;
        panels.push(json!({"id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}}));
        let width = COLUMNS / row.panels.len().clamp(1, 4);
        for (column, panel) in row.panels.iter().enumerate() {
            let targets = panel.queries.iter().zip('A'..).map(|(query, letter)| {
                json!({"refId": letter.to_string(), "expr": query.expr, "legendFormat": query.legend, "datasource": source})
            });
            let id = panels.len() + 1;
            panels.push(json!({"id": id, "type": "timeseries", "title": panel.title, "datasource": source,
                "gridPos": {"x": column * width, "y": y + 1, "w": width, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": targets.collect::<Vec<_>>()}));
        }
        y += 1 + HEIGHT;
    }
    json!({"uid": format!("polis-{}", dashboard.name), "title": dashboard.title, "description": dashboard.says,
        "tags": ["polis"], "schemaVersion": 39, "editable": false, "refresh": "30s", "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"},
            {"name": "namespace", "label": "Namespace", "type": "query", "datasource": source, "includeAll": true, "multi": true,
                "query": "label_values(polis_leader, namespace)", "refresh": 2, "current": {"text": "All", "value": "$__all"}},
        ]},
        "panels": panels})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn sources(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// The metrics that the crates of the manager register, from their source: a running manager does not
    /// export a family without samples.
    fn registered() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for name in ["engine", "management", "cell", "admission"] {
            for file in sources(&root().join(format!("crates/{name}/src"))) {
                let source = fs::read_to_string(file).unwrap();
                for call in source.split("registry.register(").skip(1) {
                    let name = call.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                    names.extend(name.map(|name| format!("polis_{name}")));
                }
            }
        }
        names
    }

    /// The metrics in a text.
    fn named(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        words.filter(|word| word.starts_with("polis_")).map(str::to_owned).collect()
    }

    /// The name under which a metric is registered, without the suffixes of scraped samples.
    fn family(metric: &str) -> &str {
        let endings = ["_total", "_bucket", "_count", "_sum"];
        endings.iter().find_map(|ending| metric.strip_suffix(ending)).unwrap_or(metric)
    }

    #[test]
    fn every_metric_of_the_manager_is_on_a_dashboard() {
        let shown: String = files().unwrap().into_iter().map(|(_, text)| text).collect();
        let shown: BTreeSet<String> = named(&shown).iter().map(|metric| family(metric).to_owned()).collect();
        let missing: Vec<String> = registered().difference(&shown).cloned().collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_metrics_page_has_exactly_the_registered_metrics() {
        let file = fs::read_to_string(root().join("docs/operations/metrics.md")).unwrap();
        // The embedded API server has a registry of its own.
        let sections = file.split("\n## ").filter(|section| !section.starts_with("The embedded API server"));
        let documented: BTreeSet<String> =
            sections.flat_map(named).map(|metric| family(&metric).to_owned()).collect();
        assert_eq!(documented, registered());
    }

    #[test]
    fn the_files_match_the_description_and_are_in_the_kustomization() {
        if std::env::var_os("POLIS_WRITE_DOCS").is_some() {
            write().unwrap();
        }
        check().unwrap();
        let kustomization = fs::read_to_string(dir().join("kustomization.yaml")).unwrap();
        for (path, _) in files().unwrap() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(kustomization.contains(&format!("- {name}\n")), "{name} is not in kustomization.yaml");
        }
    }

    #[test]
    fn panels_do_not_overlap() {
        for dashboard in description().unwrap().dashboards {
            let file = render(&dashboard);
            let mut cells = BTreeSet::new();
            for panel in file["panels"].as_array().unwrap() {
                let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
                for (x, y) in (at("x")..at("x") + at("w"))
                    .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
                {
                    assert!(
                        x < COLUMNS as u64 && cells.insert((x, y)),
                        "{}: {}",
                        dashboard.name,
                        panel["title"]
                    );
                }
            }
        }
    }
}
