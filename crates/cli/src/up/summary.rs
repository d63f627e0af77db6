//! What `polis up` says once it runs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What there is, for a person.
pub struct Summary {
    /// Where all planes are served.
    pub url: String,
    /// The projects.
    pub projects: Vec<String>,
    /// The cities.
    pub cities: Vec<String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_fits_a_terminal_of_80_columns_and_says_what_to_do_next() {
        let text = Summary {
            url: "https://127.0.0.1:7443".to_owned(),
            projects: vec!["default".to_owned()],
            cities: ["dfw", "ord", "lhr"].map(str::to_owned).to_vec(),
            data: Some("/home/user/.local/share/polis".into()),
            kubeconfig: "/home/user/.local/share/polis/kubeconfig".into(),
            took: Duration::from_millis(412),
        }
        .to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("polis deploy hello --image polis.local/hello --city dfw --city ord"));
        assert!(text.starts_with("Polis is up, after 412 ms."));
    }
}
