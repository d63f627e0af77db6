//! The figures, as a table and as JSON.

use serde_json::{Value, json};

/// The rows so far.
#[derive(Default)]
pub struct Rows(Vec<Value>);

impl Rows {
    /// One more, shown at once.
    pub fn add(
        &mut self,
        measure: &str,
        unit: &str,
        polis: f64,
        beside: Option<(f64, &str)>,
        goal: Option<f64>,
    ) {
        let (peer, peer_name) = beside.unzip();
        let show = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.1}"));
        println!("{measure:64} {polis:>10.1} {unit:6} beside {:>8}  goal {:>8}", show(peer), show(goal));
        self.0.push(json!({"measure": measure, "unit": unit, "polis": polis, "peer": peer,
            "peer_name": peer_name, "goal": goal, "better": "lower"}));
    }

    /// Writes all of them to `target/bench/projects.json`.
    pub fn write(&self) {
        // Three levels up from `release/deps/projects-…`.
        let program = std::env::current_exe().expect("this program");
        let folder = program.ancestors().nth(3).expect("built by cargo").join("bench");
        std::fs::create_dir_all(&folder).expect("a folder for the figures");
        let text = serde_json::to_string_pretty(&self.0).expect("plain JSON");
        std::fs::write(folder.join("projects.json"), text + "\n").expect("the figures can be written");
    }
}
