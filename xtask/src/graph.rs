//! `cargo xtask graph`: writes the dependency graph of the crates into `docs/dev/architecture.md`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::crds::root;
use crate::test::metadata;

const BEGIN: &str = "<!-- graph: written by `cargo xtask graph` -->\n";
const END: &str = "<!-- end of graph -->";

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> Result<()> {
    let page = fs::read_to_string(path()).context("failed to read the page of the graph")?;
    fs::write(path(), with_graph(&page, &mermaid(&metadata()?))?)
        .context("failed to write the page of the graph")
}

/// Fails when the graph on the page is not the graph of the manifests.
pub(crate) fn check() -> Result<()> {
    let page = fs::read_to_string(path()).context("failed to read the page of the graph")?;
    if with_graph(&page, &mermaid(&metadata()?))? != page {
        bail!("the dependency graph in {} is out of date: run `cargo xtask graph`", path().display());
    }
    Ok(())
}

fn path() -> PathBuf {
    root().join("docs/dev/architecture.md")
}

fn with_graph(page: &str, graph: &str) -> Result<String> {
    let (before, rest) =
        page.split_once(BEGIN).context("the page has no marker for the start of the graph")?;
    let (_, after) = rest.split_once(END).context("the page has no marker for the end of the graph")?;
    Ok(format!("{before}{BEGIN}\n{graph}\n{END}{after}"))
}

/// The normal dependencies between the crates of the workspace, as a Mermaid diagram. An edge that a longer
/// path implies is left out.
fn mermaid(metadata: &Value) -> String {
    let each = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages = each(&metadata["packages"]);
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let members: Vec<String> = packages.iter().map(name).collect();
    let graph: BTreeMap<String, Vec<String>> = packages
        .iter()
        .map(|package| {
            let normal =
                each(&package["dependencies"]).into_iter().filter(|dependency| dependency["kind"].is_null());
            let mut needs: Vec<String> = normal.map(|dependency| name(&dependency)).collect();
            needs.retain(|needed| members.contains(needed));
            needs.sort();
            needs.dedup();
            (name(package), needs)
        })
        .collect();
    let mut lines = vec!["```mermaid".to_owned(), "graph TD".to_owned()];
    for (name, needs) in &graph {
        let implied =
            |needed: &String| needs.iter().any(|other| other != needed && reaches(&graph, other, needed));
        lines.extend(
            needs.iter().filter(|needed| !implied(needed)).map(|needed| format!("  {name} --> {needed}")),
        );
    }
    lines.push("```".to_owned());
    lines.join("\n")
}

fn reaches(graph: &BTreeMap<String, Vec<String>>, from: &str, to: &str) -> bool {
    graph.get(from).is_some_and(|needs| needs.iter().any(|needed| needed == to || reaches(graph, needed, to)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_edge_that_a_longer_path_implies_is_left_out_and_a_dev_dependency_is_no_edge() {
        let metadata = json!({"packages": [
            {"name": "a", "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": null}]},
            {"name": "b", "dependencies": [{"name": "c", "kind": null}, {"name": "serde", "kind": null}]},
            {"name": "c", "dependencies": [{"name": "a", "kind": "dev"}]},
        ]});
        assert_eq!(mermaid(&metadata), "```mermaid\ngraph TD\n  a --> b\n  b --> c\n```");
    }

    #[test]
    fn the_text_around_the_graph_stays() {
        let page = format!("before\n{BEGIN}old{END}\nafter");
        assert_eq!(with_graph(&page, "new").unwrap(), format!("before\n{BEGIN}\nnew\n{END}\nafter"));
    }
}
