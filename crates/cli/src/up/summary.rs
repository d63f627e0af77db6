//! The messages of `polis up` after the start and before the exit.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use polis_api::labels::TOPOLOGY_CITY_CODE;

/// The summary that is printed when the installation is ready.
pub struct Summary {
    /// URL of the API server of all planes.
    pub url: String,
    /// Names of the projects.
    pub projects: Vec<String>,
    /// City codes.
    pub cities: Vec<String>,
    /// The cities without a Cluster on the hub.
    pub waiting: Vec<String>,
    /// The planes whose own admission is switched off.
    pub suspended: Vec<String>,
    /// The data directory; `None` with `--ephemeral`.
    pub data: Option<PathBuf>,
    /// Path of the kubeconfig.
    pub kubeconfig: PathBuf,
    /// Time from the start until the installation was ready.
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
            writeln!(f, "  waiting     {city}, for a Cluster on the hub with the label")?;
            writeln!(f, "              {TOPOLOGY_CITY_CODE}={city}")?;
        }
        if !self.suspended.is_empty() {
            writeln!(f, "  suspended   admission of {}", list(&self.suspended))?;
        }
        match &self.data {
            Some(path) => writeln!(f, "  data        {}", path.display())?,
            None => writeln!(f, "  data        not stored (--ephemeral)")?,
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

/// The message after SIGINT or SIGTERM. Instances may take ten seconds to stop.
pub fn stopping_message(keep_instances: bool) -> &'static str {
    match keep_instances {
        true => "Stopping. Instances keep running; the next polis up adopts them.",
        false => "Stopping Polis and its instances.",
    }
}

/// The message after a rotation of the key that encrypts Secrets.
pub fn rotated_message(id: &str) -> String {
    format!(
        "Every Secret is encrypted with the key {id} now. Remove the older keys from the key file\nwhen no copy of the store needs them, and start without --rotate-encryption-key."
    )
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
            suspended: Vec::new(),
            took: Duration::from_millis(412),
        }
    }

    #[test]
    fn a_city_without_a_cluster_is_printed_with_the_label_it_waits_for() {
        assert!(!mk_summary().to_string().contains("waiting"));
        let text = Summary { waiting: vec!["lhr".to_owned()], ..mk_summary() }.to_string();
        assert!(text.contains("waiting     lhr, for a Cluster"), "{text}");
        assert!(text.contains("topology.datum.net/city-code=lhr"), "{text}");
    }

    #[test]
    fn a_plane_with_suspended_admission_is_printed() {
        assert!(!mk_summary().to_string().contains("suspended"));
        let text = Summary { suspended: vec!["default".to_owned()], ..mk_summary() }.to_string();
        assert!(text.contains("  suspended   admission of default\n"), "{text}");
    }

    #[test]
    fn a_summary_fits_80_columns_and_prints_the_next_commands() {
        let text = mk_summary().to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("polis deploy hello --image polis.local/hello --city dfw --city ord"));
        assert!(text.starts_with("Polis is up, after 412 ms."));
    }
}
