//! What `polis up` is told on the command line, and what of it cannot be right.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use polis_api::names;
use polis_platform::networks::CITIES as ROOM;

use super::planes::HUB;

/// Cities of a new data directory when nobody names any.
const CITIES: [&str; 3] = ["dfw", "ord", "lhr"];

/// Planes that are no projects and have a context, beside the cells.
const OTHER_PLANES: [&str; 2] = [HUB, "platform"];

/// Start the whole federation in one process: projects, hub, a cell per city, and everything that runs on them.
///
/// Everything is kept in the data directory: a second start finds what the first one left.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  polis up                              three cities, one project called default
  polis up --cities dfw,ord,lhr,syd     one cell per city
  polis up --ephemeral                  keep nothing")]
pub struct Flags {
    /// Cities to have a cell in, by code [default: what the data directory has, or dfw,ord,lhr].
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub cities: Vec<String>,
    /// Projects to have. More can be made later: `kubectl create` a Project on the platform.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "default")]
    pub projects: Vec<String>,
    /// Where everything is kept [default: ~/.local/share/polis].
    #[arg(long, value_name = "FOLDER", env = "POLIS_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Keep nothing: planes in memory, files in a folder that goes with the process.
    #[arg(long, conflicts_with = "data_dir")]
    pub ephemeral: bool,
    /// Address to serve all planes on, with TLS. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// Also put the contexts into your own kubeconfig (`$KUBECONFIG`, or ~/.kube/config).
    #[arg(long)]
    pub merge_kubeconfig: bool,
    /// Leave instances running when told to stop; the next `polis up` takes them over.
    #[arg(long)]
    pub keep_instances: bool,
    /// Use this hub, a real Karmada, instead of the embedded one.
    #[arg(long, value_name = "KUBECONFIG")]
    pub federation_kubeconfig: Option<PathBuf>,
    /// Use this cluster as the cell of a city, instead of an embedded plane.
    #[arg(long = "cell", value_name = "CITY=KUBECONFIG", value_parser = real_cell)]
    pub cells: Vec<(String, PathBuf)>,
}

fn real_cell(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((city, path)) if !city.is_empty() && !path.is_empty() => Ok((city.to_owned(), path.into())),
        _ => Err("write it as CITY=KUBECONFIG, for example dfw=/etc/polis/dfw.kubeconfig".to_owned()),
    }
}

impl Flags {
    /// The cities to have, given those that the data directory knows; in the order named, the known ones after.
    pub fn all_cities(&self, known: &[String]) -> Result<Vec<String>> {
        let real = self.cells.iter().map(|(city, _)| city.clone());
        let named: Vec<String> = self.cities.iter().cloned().chain(real).collect();
        for (place, city) in named.iter().enumerate() {
            check_name("city", city)?;
            if named[..place].contains(city) {
                bail!("city {city} is named twice: name each city once in --cities and --cell");
            }
        }
        let mut all = named;
        all.extend(known.iter().filter(|city| !all.contains(city)).cloned().collect::<Vec<_>>());
        if all.is_empty() {
            all = CITIES.map(str::to_owned).to_vec();
        }
        if all.len() > usize::from(ROOM) {
            bail!(
                "{} cities are too many for one machine, which has loopback addresses for {ROOM}: name fewer in --cities, or start with another --data-dir",
                all.len()
            );
        }
        Ok(all)
    }

    /// What can be known to be wrong before anything is touched.
    pub fn check(&self) -> Result<()> {
        self.all_cities(&[])?;
        for (place, project) in self.projects.iter().enumerate() {
            check_name("project", project)?;
            if self.projects[..place].contains(project) {
                bail!("project {project} is named twice: name each project once in --projects");
            }
            if OTHER_PLANES.contains(&project.as_str()) || project.starts_with("cell-") {
                bail!(
                    "project {project} would be taken for another plane, whose context is polis-{project}: give it another name"
                );
            }
        }
        if self.federation_kubeconfig.is_some() && self.cells.is_empty() {
            bail!(
                "a real hub cannot reach embedded cells: name the clusters that are its members with --cell CITY=KUBECONFIG"
            );
        }
        Ok(())
    }
}

/// Names stand in paths, labels and names of objects with something before them.
fn check_name(what: &str, name: &str) -> Result<()> {
    if names::is_dns_label(name) && name.len() <= 50 {
        return Ok(());
    }
    bail!("{name:?} cannot be the name of a {what}: use up to 50 lower-case letters, digits and dashes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_flags(cities: &[&str]) -> Flags {
        Flags {
            cities: cities.iter().map(|city| (*city).to_owned()).collect(),
            projects: vec!["default".to_owned()],
            data_dir: None,
            ephemeral: false,
            listen: "127.0.0.1:0".parse().unwrap(),
            merge_kubeconfig: false,
            keep_instances: false,
            federation_kubeconfig: None,
            cells: Vec::new(),
        }
    }

    #[test]
    fn nobody_but_this_machine_is_served_unless_told_otherwise() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let flags = <Line as clap::Parser>::parse_from(["up"]).flags;
        assert_eq!(flags.listen.to_string(), "127.0.0.1:7443");
    }

    #[test]
    fn a_new_data_directory_has_three_cities() {
        assert_eq!(mk_flags(&[]).all_cities(&[]).unwrap(), ["dfw", "ord", "lhr"]);
    }

    #[test]
    fn a_city_that_is_known_stays_and_a_new_one_is_added() {
        let known = ["dfw".to_owned(), "ord".to_owned()];
        assert_eq!(mk_flags(&[]).all_cities(&known).unwrap(), ["dfw", "ord"]);
        assert_eq!(mk_flags(&["syd"]).all_cities(&known).unwrap(), ["syd", "dfw", "ord"]);
    }

    #[test]
    fn a_city_named_twice_or_badly_is_told_so() {
        for (cities, told) in
            [(["dfw", "dfw"], "city dfw is named twice"), (["dfw", "D F W"], "cannot be the name of a city")]
        {
            let error = mk_flags(&cities).check().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_project_named_twice_or_like_another_plane_is_told_so() {
        for (projects, told) in [
            (["shop", "shop"], "project shop is named twice"),
            (["shop", "hub"], "would be taken for another plane"),
            (["shop", "platform"], "polis-platform"),
            (["shop", "cell-dfw"], "polis-cell-dfw"),
            (["shop", "Shop"], "cannot be the name of a project"),
        ] {
            let flags = Flags { projects: projects.map(str::to_owned).to_vec(), ..mk_flags(&[]) };
            let error = flags.check().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn more_cities_than_a_machine_has_addresses_for_are_refused_before_any_is_made() {
        let cities: Vec<String> = (0..=ROOM).map(|number| format!("city-{number}")).collect();
        let names: Vec<&str> = cities.iter().map(String::as_str).collect();
        assert_eq!(mk_flags(&names[1..]).all_cities(&[]).unwrap().len(), usize::from(ROOM));
        assert!(mk_flags(&names).check().unwrap_err().to_string().contains("addresses for 1054"));
        let one_more = mk_flags(&["syd"]).all_cities(&cities[1..]).unwrap_err().to_string();
        assert!(one_more.contains("--data-dir"), "{one_more}");
    }

    #[test]
    fn a_real_hub_needs_real_cells() {
        let flags = Flags { federation_kubeconfig: Some("hub".into()), ..mk_flags(&[]) };
        assert!(flags.check().unwrap_err().to_string().contains("--cell"));
    }
}
