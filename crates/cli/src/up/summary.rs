//! What `polis up` says once it runs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use polis_api::labels::TOPOLOGY_CITY_CODE;

/// What there is, for a person.
pub struct Summary {
    /// Where all planes are served.
    pub url: String,
    /// The projects.
    pub projects: Vec<String>,
    /// The cities.
    pub cities: Vec<String>,
    /// Those of them that no member of the hub serves yet.
    pub waiting: Vec<String>,
    /// Where everything is kept; none if nothing is.
    pub data: Option<PathBuf>,
    /// The kubeconfig.
    pub kubeconfig: PathBuf,
    /// From the start until everything was ready.
    pub took: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |items: &[String]| items.join(", ");
        writeln!(f, "Polis is up, after {} ms.", self.took.as_millis())?;
        writeln!(f)?;
        writeln!(f, "  planes      {}", self.url)?;
        writeln!(f, "  projects    {}", list(&self.projects))?;
        writeln!(f, "  cities      {}", list(&self.cities))?;
        for city in &self.waiting {
            writeln!(f, "  waiting     {city}, for a Cluster of the hub with the label")?;
            writeln!(f, "              {TOPOLOGY_CITY_CODE}={city}")?;
        }
        match &self.data {
            Some(path) => writeln!(f, "  kept in     {}", path.display())?,
            None => writeln!(f, "  kept        nowhere: all of it goes with this process")?,
        }
        writeln!(f, "  kubeconfig  {}", self.kubeconfig.display())?;
        writeln!(f)?;
        let cities: Vec<String> = self.cities.iter().take(2).map(|city| format!("--city {city}")).collect();
        writeln!(f, "Next, in another terminal:")?;
        writeln!(f)?;
        writeln!(f, "  export KUBECONFIG={}", self.kubeconfig.display())?;
        writeln!(f, "  polis deploy hello --image polis.local/hello {} --port 8080", cities.join(" "))?;
        writeln!(f, "  polis status hello")?;
        writeln!(f)?;
        write!(f, "Ctrl-C stops it.")
    }
}

/// What is said when it is told to stop: programs may take ten seconds to end.
pub fn farewell(keep_instances: bool) -> &'static str {
    match keep_instances {
        true => "Stopping. Instances go on running, and the next polis up takes them over.",
        false => "Stopping, and the instances with it.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_summary() -> Summary {
        Summary {
            url: "https://127.0.0.1:7443".to_owned(),
            projects: vec!["default".to_owned()],
            cities: ["dfw", "ord", "lhr"].map(str::to_owned).to_vec(),
            data: Some("/home/user/.local/share/polis".into()),
            kubeconfig: "/home/user/.local/share/polis/kubeconfig".into(),
            waiting: Vec::new(),
            took: Duration::from_millis(412),
        }
    }

    #[test]
    fn a_city_that_no_member_serves_is_told_with_what_it_waits_for() {
        assert!(!mk_summary().to_string().contains("waiting"));
        let text = Summary { waiting: vec!["lhr".to_owned()], ..mk_summary() }.to_string();
        assert!(text.contains("waiting     lhr, for a Cluster"), "{text}");
        assert!(text.contains("topology.datum.net/city-code=lhr"), "{text}");
    }

    #[test]
    fn a_summary_fits_a_terminal_of_80_columns_and_says_what_to_do_next() {
        let text = mk_summary().to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("polis deploy hello --image polis.local/hello --city dfw --city ord"));
        assert!(text.starts_with("Polis is up, after 412 ms."));
    }
}
