//! The result table of a benchmark: printed, and written to `target/bench/<name>.json`.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

/// The results of a benchmark, beside those of a peer and the goals.
#[derive(Debug, Default)]
pub struct BenchTable(Vec<BenchRow>);

/// One result of a benchmark.
#[derive(Debug, Serialize)]
pub struct BenchRow {
    measure: String,
    unit: String,
    polis: f64,
    peer: Option<f64>,
    peer_name: Option<String>,
    goal: Option<f64>,
    better: &'static str,
}

impl BenchTable {
    /// Adds a result and prints it. Lower is better, unless [`BenchRow::higher_is_better`] follows.
    pub fn add(&mut self, measure: impl Into<String>, unit: &str, polis: f64) -> &mut BenchRow {
        let (measure, polis) = (measure.into(), round(polis));
        println!("{measure}: {polis} {unit}");
        let unit = unit.to_owned();
        self.0.push(BenchRow {
            measure,
            unit,
            polis,
            peer: None,
            peer_name: None,
            goal: None,
            better: "lower",
        });
        self.0.last_mut().expect("a row was pushed")
    }

    /// Prints the table and writes `target/bench/<name>.json`.
    pub fn finish(&self, name: &str) {
        println!("\n{:<66} {:>12} {:>12} {:>12}  unit", "measure", "polis", "peer", "goal");
        for row in &self.0 {
            let number = |number: Option<f64>| number.map_or("-".to_owned(), |number| number.to_string());
            let (peer, goal) = (number(row.peer), number(row.goal));
            println!("{:<66} {:>12} {peer:>12} {goal:>12}  {}", row.measure, row.polis, row.unit);
        }
        let dir = bench_dir();
        fs::create_dir_all(&dir).expect("target/bench can be created");
        let file = dir.join(format!("{name}.json"));
        let json = serde_json::to_string_pretty(&self.0).expect("rows are plain data");
        fs::write(&file, json + "\n").expect("the results can be written");
        println!("\nwritten to {}", file.display());
    }
}

impl BenchRow {
    /// Sets the result of a peer, if it was measured.
    pub fn peer(&mut self, result: impl Into<Option<f64>>, name: &str) -> &mut Self {
        self.peer = result.into().map(round);
        self.peer_name = self.peer.map(|_| name.to_owned());
        self
    }

    /// Sets the goal, if there is one.
    pub fn goal(&mut self, goal: impl Into<Option<f64>>) -> &mut Self {
        self.goal = goal.into().map(round);
        self
    }

    /// Marks a result of which higher values are better.
    pub fn higher_is_better(&mut self) -> &mut Self {
        self.better = "higher";
        self
    }
}

/// The value below which this share of the samples lies; zero without samples.
pub fn percentile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// `target/bench`, from the path `target/release/deps/<bench>` of the running benchmark.
fn bench_dir() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.ancestors().nth(3).expect("cargo built this program").join("bench")
}

fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_nearest_sample() {
        let samples = [3.0, 1.0, 2.0, 5.0, 4.0];
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| percentile(&samples, share)), [1.0, 3.0, 5.0, 5.0]);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_row_has_a_peer_name_only_with_a_peer() {
        let mut table = BenchTable::default();
        table.add("latency", "ms", 1.23456).peer(None, "peer").goal(2.0);
        table.add("rate", "1/s", 7.0).peer(5.0, "peer").higher_is_better();
        let rows = serde_json::to_value(&table.0).unwrap();
        assert_eq!(rows[0]["polis"], 1.235);
        assert_eq!((&rows[0]["peer_name"], &rows[0]["better"]), (&serde_json::Value::Null, &"lower".into()));
        assert_eq!((&rows[1]["peer_name"], &rows[1]["better"]), (&"peer".into(), &"higher".into()));
    }
}
