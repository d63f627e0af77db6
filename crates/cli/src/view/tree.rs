//! Renders the tree of `polis status`: workload → city → instance.

use jiff::Timestamp;
use polis_api::ObjectExt;
use polis_api::conditions::AVAILABLE;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_core::{conditions, instances};

use super::snapshot::{self, WorkloadSnapshot};
use super::state::{self, ObjectState};
use super::table::Table;
use super::{Severity, age};

/// Renders the tree, and below it the messages of the rows that are not ok.
pub fn draw(snapshot: &WorkloadSnapshot, now: Timestamp, width: Option<u16>, wide: bool) -> String {
    let mut tree = Tree::new(now, wide);
    if let Some(workload) = &snapshot.workload {
        let status = workload.status.clone().unwrap_or_default();
        let available = conditions::find(&status.conditions, AVAILABLE);
        let (ready, wanted) = snapshot.ready_of_wanted();
        tree.add(Row {
            name: workload.name(),
            word: format!("{ready}/{wanted} ready"),
            made: made(&workload.metadata),
            ..Row::new(state::of_condition(&workload.metadata, available, "starting"))
        });
    }
    let sites = sites(snapshot);
    for (index, site) in sites.iter().enumerate() {
        tree.city(snapshot, site, index + 1 == sites.len());
    }
    tree.finish(width)
}

/// The sites of the workload, then those of deployments that are being deleted.
fn sites(snapshot: &WorkloadSnapshot) -> Vec<(String, String)> {
    let mut sites = snapshot.wanted_sites();
    for deployment in &snapshot.deployments {
        let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
        if !sites.contains(&site) {
            sites.push(site);
        }
    }
    sites
}

/// One line of the tree.
struct Row<'a> {
    branch: String,
    name: &'a str,
    word: String,
    reason: String,
    address: String,
    cell: String,
    made: Option<Timestamp>,
    state: ObjectState,
}

impl Row<'_> {
    /// A row without its texts. The reason is printed only if the state is not ok: a city with one ready
    /// instance is available, and its count shows the missing ones.
    fn new(state: ObjectState) -> Self {
        let reason = if state.severity == Severity::Ok { String::new() } else { state.reason.clone() };
        let (branch, word, address, cell) = Default::default();
        Row { branch, name: "", word, reason, address, cell, made: None, state }
    }
}

fn made(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.creation_timestamp.as_ref().map(|time| time.0)
}

/// The message of a row, printed below the tree.
struct Note {
    name: String,
    reason: String,
    message: String,
}

impl Note {
    /// Whether this message repeats another one: aggregated messages contain `name: Reason` of the objects
    /// they count.
    fn repeats(&self, other: &Note) -> bool {
        self.name != other.name && self.message.contains(&format!("{}: {}", other.name, other.reason))
    }
}

struct Tree {
    table: Table,
    notes: Vec<Note>,
    now: Timestamp,
    wide: bool,
}

impl Tree {
    fn new(now: Timestamp, wide: bool) -> Self {
        let heads: &[&str] = match wide {
            true => &["NAME", "STATE", "REASON", "ADDRESS", "AGE", "CELL", "MESSAGE"],
            false => &["NAME", "STATE", "REASON", "ADDRESS", "AGE"],
        };
        Tree { table: Table::new(heads, ""), notes: Vec::new(), now, wide }
    }

    fn city(&mut self, snapshot: &WorkloadSnapshot, site: &(String, String), last: bool) {
        let (branch, stem) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let name = match site.0.as_str() {
            "default" => site.1.clone(),
            placement => format!("{} ({placement})", site.1),
        };
        let (name, wanted) = (name.as_str(), snapshot.wanted_at(site));
        let Some(deployment) = snapshot.deployment_at(site) else {
            let word = format!("0/{wanted} ready");
            self.add(Row { branch: branch.into(), name, word, ..Row::new(missing(snapshot, site)) });
            return;
        };
        let status = deployment.status.clone().unwrap_or_default();
        let available = conditions::find(&status.conditions, AVAILABLE);
        let mine: Vec<_> = snapshot.instances_of(deployment).collect();
        let ready = mine.iter().filter(|instance| instances::is_ready(instance)).count();
        let lost = state::of_lost_contact(deployment);
        let word = match &lost {
            Some(lost) => lost.label(self.now),
            None => format!("{ready}/{wanted} ready"),
        };
        let own = lost.unwrap_or_else(|| state::of_condition(&deployment.metadata, available, "starting"));
        self.add(Row {
            branch: branch.into(),
            name,
            word,
            cell: status.cell.clone().unwrap_or_default(),
            made: made(&deployment.metadata),
            ..Row::new(own)
        });
        for (index, instance) in mine.iter().enumerate() {
            let twig = if index + 1 == mine.len() { "└─ " } else { "├─ " };
            let state = state::of_known_instance(instance, std::slice::from_ref(deployment));
            self.add(Row {
                branch: format!("{stem}{twig}"),
                name: instance.name(),
                word: state.label(self.now),
                reason: state.reason.clone(),
                address: snapshot::address(instance),
                made: made(&instance.metadata),
                ..Row::new(state)
            });
        }
    }

    fn add(&mut self, row: Row) {
        let word = if row.state.word == "stopping" { "stopping".to_owned() } else { row.word };
        // Non-breaking spaces keep the branch and the name on one line in a narrow column.
        let name = format!("{}{}", row.branch.replace(' ', "\u{a0}"), row.name);
        let mut cells = vec![name, word, row.reason, row.address, age::since_or_dash(row.made, self.now)];
        if self.wide {
            cells.extend([row.cell, row.state.message]);
        } else if row.state.severity != Severity::Ok && !row.state.message.is_empty() {
            let ObjectState { reason, message, .. } = row.state;
            self.notes.push(Note { name: row.name.to_owned(), reason, message });
        }
        self.table.row(cells);
    }

    fn finish(self, width: Option<u16>) -> String {
        let table = self.table.draw(width).replace('\u{a0}', " ");
        // The message of an instance is not repeated by its city and its workload.
        let own = |note: &&Note| !self.notes.iter().any(|other| note.repeats(other));
        let notes: Vec<String> =
            (self.notes.iter().filter(own)).map(|note| format!("{}: {}", note.name, note.message)).collect();
        if notes.is_empty() { table } else { format!("{table}\n\n{}", notes.join("\n")) }
    }
}

/// The state of a site without a deployment, from the Available condition of its placement.
pub fn missing(snapshot: &WorkloadSnapshot, site: &(String, String)) -> ObjectState {
    placement_state(snapshot, site, AVAILABLE)
}

/// The state that one condition of a site's placement reports, if the condition is not True.
pub fn placement_state(snapshot: &WorkloadSnapshot, site: &(String, String), kind: &str) -> ObjectState {
    let meta = snapshot.workload.as_ref().map(|workload| workload.metadata.clone()).unwrap_or_default();
    let status = snapshot.workload.as_ref().and_then(|workload| workload.status.as_ref());
    let placements = status.iter().flat_map(|status| &status.placements);
    let condition = placements
        .filter(|placement| placement.name == site.0)
        .find_map(|placement| conditions::find(&placement.conditions, kind))
        .filter(|condition| condition.status != "True");
    state::of_condition(&meta, condition, "starting")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{mk_blocked, mk_condition, mk_instance, mk_snapshot, mk_starting, now};

    #[test]
    fn a_workload_that_is_ready_everywhere() {
        insta::assert_snapshot!(draw(&mk_snapshot(&["dfw", "ord"], 2), now(65), Some(80), false));
    }

    #[test]
    fn the_message_of_a_blocked_instance_is_below_the_tree() {
        let mut snapshot = mk_snapshot(&["dfw", "ord"], 1);
        let words = "nothing is known about image nginx: use polis.local/hello";
        snapshot.instances[1] = mk_blocked(mk_instance("ord", 0), "ImageUnavailable", words);
        let status = snapshot.deployments[1].status.as_mut().unwrap();
        status.conditions = vec![mk_condition("Available", "False", "ProvisioningInstances", "", 5)];
        insta::assert_snapshot!(draw(&snapshot, now(65), Some(80), false));
    }

    #[test]
    fn messages_of_cities_and_workloads_that_repeat_an_instance_are_left_out() {
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        snapshot.instances[0] =
            mk_blocked(mk_instance("dfw", 0), "InstanceCrashing", "it ends again and again");
        let instance = snapshot.instances[0].name().to_owned();
        let passed_on = format!("no instance is ready; {instance}: InstanceCrashing");
        let condition =
            |words: &str| vec![mk_condition("Available", "False", "ProvisioningInstances", words, 5)];
        snapshot.deployments[0].status.as_mut().unwrap().conditions = condition(&passed_on);
        snapshot.workload.as_mut().unwrap().status.as_mut().unwrap().conditions =
            condition("the network is missing");
        let text = draw(&snapshot, now(65), Some(80), false);
        let (_, notes) = text.split_once("\n\n").unwrap();
        assert_eq!(notes, format!("web: the network is missing\n{instance}: it ends again and again"));
    }

    #[test]
    fn a_city_without_a_deployment_shows_the_condition_of_its_placement() {
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        let workload = snapshot.workload.as_mut().unwrap();
        workload.spec.placements[0].city_codes.push("xyz".into());
        let status = workload.status.as_mut().unwrap();
        status.placements = vec![Default::default()];
        status.placements[0].name = "default".into();
        status.placements[0].conditions =
            vec![mk_condition("Available", "False", "NoMatchingLocations", "no location serves xyz", 3)];
        insta::assert_snapshot!(draw(&snapshot, now(65), Some(80), false));
    }

    #[test]
    fn a_wide_tree_has_columns_for_cell_and_message() {
        let mut snapshot = mk_snapshot(&["dfw"], 2);
        snapshot.instances[1] = mk_starting(mk_instance("dfw", 1));
        insta::assert_snapshot!(draw(&snapshot, now(65), None, true));
    }

    #[test]
    fn no_line_is_longer_than_eighty_columns() {
        let mut snapshot = mk_snapshot(&["dfw"], 2);
        snapshot.instances[0].metadata.name = Some("x".repeat(63));
        let text = draw(&snapshot, now(65), Some(80), false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
