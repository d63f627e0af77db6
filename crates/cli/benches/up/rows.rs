//! The rows of the table, as they are printed and written.

use serde_json::{Value, json};

pub(crate) const LOWER: &str = "lower";
pub(crate) const HIGHER: &str = "higher";

#[derive(Default)]
pub(crate) struct Rows(Vec<Value>);

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

impl Rows {
    /// A figure that no peer has.
    pub(crate) fn alone(&mut self, measure: &str, unit: &str, polis: f64, goal: Option<f64>, better: &str) {
        self.beside(measure, unit, polis, (None, None), goal, better);
    }

    /// A figure, with the peer's where it was to be had, and the peer's name.
    pub(crate) fn beside(
        &mut self,
        measure: &str,
        unit: &str,
        polis: f64,
        (peer, peer_name): (Option<f64>, Option<&str>),
        goal: Option<f64>,
        better: &str,
    ) {
        let row = json!({
            "measure": measure, "unit": unit, "polis": round(polis), "peer": peer.map(round), "peer_name": peer_name,
            "goal": goal, "better": better,
        });
        println!("  {measure}: {} {unit}", round(polis));
        self.0.push(row);
    }

    /// Prints the table and writes `target/bench/<name>.json`.
    pub(crate) fn finish(self, name: &str) {
        println!("\n{:<62} {:>10} {:>10} {:>10}  unit", "measure", "polis", "peer", "goal");
        for row in &self.0 {
            let number =
                |field: &str| row[field].as_f64().map_or("-".to_owned(), |number| number.to_string());
            println!(
                "{:<62} {:>10} {:>10} {:>10}  {}",
                row["measure"].as_str().unwrap_or_default(),
                number("polis"),
                number("peer"),
                number("goal"),
                row["unit"].as_str().unwrap_or_default()
            );
        }
        // Three levels up from `release/deps/up-…`.
        let program = std::env::current_exe().expect("this program");
        let folder = program.ancestors().nth(3).expect("built by cargo").join("bench");
        std::fs::create_dir_all(&folder).expect("target/bench");
        let file = folder.join(format!("{name}.json"));
        std::fs::write(&file, serde_json::to_string_pretty(&self.0).expect("plain data")).expect("written");
        println!("\nwritten to {}", file.display());
    }
}
