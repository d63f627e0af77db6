//! The rows of the table, as they are printed and written.

use serde_json::{Value, json};

const PEER: &str = "Karmada 1.18.2 with its defaults, over kube-apiserver 1.35.4";

#[derive(Clone, Copy)]
pub(crate) enum Better {
    Lower,
    Higher,
}

#[derive(Default)]
pub(crate) struct Rows(Vec<Value>);

fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl Rows {
    pub(crate) fn add(
        &mut self,
        measure: &str,
        unit: &str,
        polis: f64,
        peer: Option<f64>,
        goal: Option<f64>,
        better: Better,
    ) {
        let better = match better {
            Better::Lower => "lower",
            Better::Higher => "higher",
        };
        println!("{measure}: {} {unit}", round(polis));
        self.0.push(json!({
            "measure": measure, "unit": unit, "polis": round(polis), "peer": peer.map(round),
            "peer_name": peer.map(|_| PEER), "goal": goal, "better": better,
        }));
    }

    /// Prints the table and writes `target/bench/<name>.json`.
    pub(crate) fn finish(self, name: &str) {
        println!("\n{:<62} {:>12} {:>12} {:>12}  unit", "measure", "polis", "peer", "goal");
        for row in &self.0 {
            let number =
                |field: &str| row[field].as_f64().map_or("-".to_owned(), |number| number.to_string());
            println!(
                "{:<62} {:>12} {:>12} {:>12}  {}",
                row["measure"].as_str().unwrap_or_default(),
                number("polis"),
                number("peer"),
                number("goal"),
                row["unit"].as_str().unwrap_or_default()
            );
        }
        // Three levels up from `release/deps/federation-…`.
        let program = std::env::current_exe().expect("this program");
        let folder = program.ancestors().nth(3).expect("built by cargo").join("bench");
        std::fs::create_dir_all(&folder).expect("target/bench");
        let file = folder.join(format!("{name}.json"));
        std::fs::write(&file, serde_json::to_string_pretty(&self.0).expect("plain data")).expect("written");
        println!("\nwritten to {}", file.display());
    }
}
