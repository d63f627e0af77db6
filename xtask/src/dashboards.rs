//! `cargo xtask dashboards`: the JSON of the dashboards, from `deploy/components/dashboards/description.yaml`.

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
/// Rows of the grid that a panel takes.
const HEIGHT: usize = 8;

pub(crate) fn run(args: Args) -> Result<()> {
    if args.check { check() } else { write() }
}

/// Fails when a dashboard is not as the description says.
pub(crate) fn check() -> Result<()> {
    let drifted: Vec<String> = pages()?
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
    for (path, text) in pages()? {
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    root().join("deploy/components/dashboards")
}

fn description() -> Result<Description> {
    let path = folder().join("description.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
}

/// Each file with its text.
fn pages() -> Result<Vec<(PathBuf, String)>> {
    let page = |dashboard: &Dashboard| {
        let text = serde_json::to_string_pretty(&draw(dashboard))?;
        Ok((folder().join(format!("{}.json", dashboard.name)), text + "\n"))
    };
    description()?.dashboards.iter().map(page).collect()
}

fn draw(dashboard: &Dashboard) -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let mut panels = Vec::new();
    let mut y = 0;
    for row in &dashboard.rows {
        let id = panels.len() + 1;
        panels.push(json!({"id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}}));
        let width = COLUMNS / row.panels.len().clamp(1, 4);
        for (place, panel) in row.panels.iter().enumerate() {
            let targets = panel.queries.iter().zip('A'..).map(|(query, letter)| {
                json!({"refId": letter.to_string(), "expr": query.expr, "legendFormat": query.legend, "datasource": source})
            });
            let id = panels.len() + 1;
            panels.push(json!({"id": id, "type": "timeseries", "title": panel.title, "datasource": source,
                "gridPos": {"x": place * width, "y": y + 1, "w": width, "h": HEIGHT},
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

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// The metrics that the rooms of the manager register, read from their source: a family that has counted nothing yet is
    /// not on the page of a running manager.
    fn registered() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for room in ["engine", "management", "cell", "admission"] {
            for file in sources(&root().join(format!("crates/{room}/src"))) {
                let source = fs::read_to_string(file).unwrap();
                for call in source.split("registry.register(").skip(1) {
                    let name = call.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                    names.extend(name.map(|name| format!("polis_{name}")));
                }
            }
        }
        names
    }

    /// The metrics that a text names.
    fn named(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        words.filter(|word| word.starts_with("polis_")).map(str::to_owned).collect()
    }

    /// The name under which a metric is registered: what is scraped has endings, by type.
    fn family(metric: &str) -> &str {
        let endings = ["_total", "_bucket", "_count", "_sum"];
        endings.iter().find_map(|ending| metric.strip_suffix(ending)).unwrap_or(metric)
    }

    #[test]
    fn every_metric_of_the_manager_is_on_a_dashboard() {
        let drawn: String = pages().unwrap().into_iter().map(|(_, text)| text).collect();
        let drawn: BTreeSet<String> = named(&drawn).iter().map(|metric| family(metric).to_owned()).collect();
        let unseen: Vec<String> = registered().difference(&drawn).cloned().collect();
        assert!(unseen.is_empty(), "{unseen:?}");
    }

    #[test]
    fn every_metric_is_on_the_page_of_metrics_and_nothing_else_is() {
        let page = fs::read_to_string(root().join("docs/operations/metrics.md")).unwrap();
        let told: BTreeSet<String> = named(&page).iter().map(|metric| family(metric).to_owned()).collect();
        assert_eq!(told, registered());
    }

    #[test]
    fn the_files_are_as_the_description_says_and_all_of_them_are_applied() {
        if std::env::var_os("POLIS_WRITE_DOCS").is_some() {
            write().unwrap();
        }
        check().unwrap();
        let kustomization = fs::read_to_string(folder().join("kustomization.yaml")).unwrap();
        for (path, _) in pages().unwrap() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(kustomization.contains(&format!("- {name}\n")), "{name} is not in kustomization.yaml");
        }
    }

    #[test]
    fn panels_do_not_lie_on_each_other() {
        for dashboard in description().unwrap().dashboards {
            let page = draw(&dashboard);
            let mut cells = BTreeSet::new();
            for panel in page["panels"].as_array().unwrap() {
                let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
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
