//! Which kubeconfig is read, which context of it is meant, and which path of its server.
//!
//! In this order: `--kubeconfig`; `$KUBECONFIG`; the one that `polis up` writes to its data directory, if there is one;
//! `~/.kube/config`. A project is a context of its own (`polis-<project>`, as `polis up` writes them), or a path of the
//! server behind the context, as Milo serves its projects.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use polis_api::kube::config::Kubeconfig;
use polis_api::milo;

use super::Place;
use crate::exit::{Exit, Fault, root_cause};

/// Prefix of the contexts that `polis up` writes.
const OURS: &str = "polis-";
/// The hub's context.
pub const HUB: &str = "polis-hub";
/// Prefix of the cells' contexts.
pub const CELL: &str = "polis-cell-";

/// Where a kubeconfig comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--kubeconfig`.
    Flag(PathBuf),
    /// `$KUBECONFIG`, which may name several files.
    Environment(OsString),
    /// The data directory of `polis up`.
    DataDirectory(PathBuf),
    /// The home directory.
    Home(PathBuf),
}

impl Source {
    /// For people.
    pub fn in_words(&self) -> String {
        match self {
            Source::Flag(path) => format!("{} (--kubeconfig)", path.display()),
            Source::Environment(paths) => format!("{} ($KUBECONFIG)", paths.to_string_lossy()),
            Source::DataDirectory(path) => format!("{} (of polis up)", path.display()),
            Source::Home(path) => path.display().to_string(),
        }
    }
}

/// A kubeconfig and where it comes from.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it comes from.
    pub source: Source,
    /// What it says.
    pub kubeconfig: Kubeconfig,
}

/// Finds and reads the kubeconfig.
pub fn find(flag: Option<&Path>) -> Result<Found, Fault> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let data = std::env::var_os("POLIS_DATA_DIR").map(PathBuf::from);
    let data = data.or_else(crate::up::usual_data_dir);
    let environment = std::env::var_os("KUBECONFIG");
    let source = choose(flag, environment.as_deref(), data.as_deref(), home.as_deref(), Path::is_file);
    let Some(source) = source else {
        return Err(Fault::new(
            Exit::Unreachable,
            "failed to find a kubeconfig",
            "neither --kubeconfig nor $KUBECONFIG is given, and neither polis up nor kubectl has left one",
            "start an installation with `polis up`, or name a file with --kubeconfig",
        ));
    };
    let read = match &source {
        Source::Environment(_) => Kubeconfig::from_env().map(Option::unwrap_or_default),
        Source::Flag(path) | Source::DataDirectory(path) | Source::Home(path) => Kubeconfig::read_from(path),
    };
    let kubeconfig = read.map_err(|error| {
        Fault::new(
            Exit::Unreachable,
            format!("failed to read the kubeconfig {}", source.in_words()),
            root_cause(&error),
            "check the file, or name another with --kubeconfig",
        )
    })?;
    Ok(Found { source, kubeconfig })
}

/// The kubeconfig that is meant. A file that is named counts even if it is missing: reading it tells so.
fn choose(
    flag: Option<&Path>,
    environment: Option<&OsStr>,
    data: Option<&Path>,
    home: Option<&Path>,
    exists: impl Fn(&Path) -> bool,
) -> Option<Source> {
    if let Some(flag) = flag {
        return Some(Source::Flag(flag.to_owned()));
    }
    if let Some(paths) = environment.filter(|paths| !paths.is_empty()) {
        return Some(Source::Environment(paths.to_owned()));
    }
    let ours = data.map(|data| data.join("kubeconfig")).filter(|path| exists(path));
    let theirs = home.map(|home| home.join(".kube/config")).filter(|path| exists(path));
    ours.map(Source::DataDirectory).or(theirs.map(Source::Home))
}

/// The context and path that a place means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The context.
    pub context: String,
    /// The server's address with the path of the project, where it differs from that of the context.
    pub server: Option<String>,
    /// The project, where one is known.
    pub project: Option<String>,
}

/// Finds the context and path.
pub fn route(kubeconfig: &Kubeconfig, place: &Place) -> Result<Route, Fault> {
    let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    let own = place.project.as_ref().map(|project| format!("{OURS}{project}"));
    // `polis-hub` is the hub, and no project called hub: the path of the server decides.
    let is_project = |own: &String| {
        server_of(kubeconfig, own).and_then(|server| project_of_path(&server)) == place.project
    };
    let own = own.filter(|own| place.context.is_none() && is_project(own));
    if let Some(context) = own {
        return Ok(Route { context, server: None, project: place.project.clone() });
    }
    let current = kubeconfig.current_context.clone().filter(|current| !current.is_empty());
    let context = match (place.context.clone().or(current), names.as_slice()) {
        (Some(context), _) => context,
        (None, [only]) => (*only).to_owned(),
        (None, _) => {
            return Err(Fault::new(
                Exit::Unreachable,
                "failed to choose a context",
                "the kubeconfig has no current context",
                format!("choose one with --context: {}", names.join(", ")),
            ));
        }
    };
    if !names.contains(&context.as_str()) {
        return Err(Fault::new(
            Exit::Unreachable,
            format!("failed to find context {context}"),
            "the kubeconfig has no such context",
            format!("it has: {}", names.join(", ")),
        ));
    }
    let server = server_of(kubeconfig, &context).unwrap_or_default();
    let project = project_of_path(&server);
    match &place.project {
        Some(wanted) if project.as_ref() != Some(wanted) => Ok(Route {
            context,
            server: Some(project_server(&server, wanted)),
            project: Some(wanted.clone()),
        }),
        _ => Ok(Route { context, server: None, project }),
    }
}

/// The address of a context's server.
pub fn server_of(kubeconfig: &Kubeconfig, context: &str) -> Option<String> {
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?;
    cluster.cluster.as_ref()?.server.clone()
}

/// The plane that holds the projects: the server without the path of a project.
pub fn root_server(server: &str) -> &str {
    let root = server.find(&prefix()).or_else(|| {
        // The short form of the embedded server.
        project_of_path(server).and_then(|_| server.find("/projects/"))
    });
    root.map_or(server.trim_end_matches('/'), |end| &server[..end])
}

fn project_server(server: &str, project: &str) -> String {
    format!("{}{}{project}/control-plane", root_server(server), prefix())
}

fn prefix() -> String {
    format!("/apis/{}/{}/projects/", milo::GROUP, milo::VERSION)
}

fn project_of_path(server: &str) -> Option<String> {
    let (_, rest) = server.split_once("/projects/")?;
    let (project, _) = rest.split_once("/control-plane")?;
    (!project.is_empty() && !project.contains('/')).then(|| project.to_owned())
}

/// The projects that have a context of their own: name and context.
pub fn project_contexts(kubeconfig: &Kubeconfig) -> Vec<(String, String)> {
    let contexts = kubeconfig.contexts.iter().map(|context| context.name.as_str());
    contexts
        .filter_map(|context| {
            let server = server_of(kubeconfig, context).unwrap_or_default();
            Some((project_of_path(&server)?, context.to_owned()))
        })
        .collect()
}

/// Whether a context was written by `polis up`: hub and cells of the same file belong to it.
pub fn is_ours(context: &str) -> bool {
    context.starts_with(OURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILO: &str = "https://api.example.com";
    const PATH: &str = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop/control-plane";

    fn mk_kubeconfig(current: Option<&str>, contexts: &[(&str, &str)]) -> Kubeconfig {
        let mut text = String::from("apiVersion: v1\nkind: Config\n");
        if let Some(current) = current {
            text.push_str(&format!("current-context: {current}\n"));
        }
        text.push_str("clusters:\n");
        for (name, server) in contexts {
            text.push_str(&format!("- name: {name}\n  cluster: {{server: \"{server}\"}}\n"));
        }
        text.push_str("contexts:\n");
        for (name, _) in contexts {
            text.push_str(&format!("- name: {name}\n  context: {{cluster: {name}, user: u}}\n"));
        }
        Kubeconfig::from_yaml(&text).unwrap()
    }

    fn mk_place(project: Option<&str>, context: Option<&str>) -> Place {
        Place { project: project.map(Into::into), context: context.map(Into::into), ..Default::default() }
    }

    #[test]
    fn the_nearest_kubeconfig_wins() {
        let (flag, data, home) = (Path::new("/f"), Path::new("/d"), Path::new("/h"));
        let all = |_: &Path| true;
        let set = OsStr::new("/e");
        let choice = |flag, environment, exists: &dyn Fn(&Path) -> bool| {
            choose(flag, environment, Some(data), Some(home), exists)
        };
        assert_eq!(choice(Some(flag), Some(set), &all), Some(Source::Flag("/f".into())));
        assert_eq!(choice(None, Some(set), &all), Some(Source::Environment("/e".into())));
        assert_eq!(
            choice(None, Some(OsStr::new("")), &all),
            Some(Source::DataDirectory("/d/kubeconfig".into()))
        );
        assert_eq!(
            choice(None, None, &|p| p.starts_with("/h")),
            Some(Source::Home("/h/.kube/config".into()))
        );
        assert_eq!(choice(None, None, &|_| false), None);
    }

    #[test]
    fn a_project_with_a_context_of_its_own_is_that_context() {
        let config = mk_kubeconfig(
            Some("polis-default"),
            &[("polis-default", "https://a/1"), ("polis-shop", &format!("{MILO}{PATH}"))],
        );
        let route = route(&config, &mk_place(Some("shop"), None)).unwrap();
        assert_eq!(route, Route { context: "polis-shop".into(), server: None, project: Some("shop".into()) });
    }

    #[test]
    fn any_other_project_is_a_path_of_the_server() {
        for server in
            [MILO.to_owned(), format!("{MILO}/"), format!("{MILO}{}", PATH.replace("shop", "other"))]
        {
            let config = mk_kubeconfig(Some("milo"), &[("milo", &server)]);
            let route = route(&config, &mk_place(Some("shop"), None)).unwrap();
            assert_eq!(route.server, Some(format!("{MILO}{PATH}")), "{server}");
        }
    }

    #[test]
    fn a_context_that_is_the_project_already_is_left_as_it_is() {
        let config = mk_kubeconfig(Some("milo"), &[("milo", &format!("{MILO}{PATH}"))]);
        let route = route(&config, &mk_place(Some("shop"), None)).unwrap();
        assert_eq!((route.server, route.project), (None, Some("shop".into())));
    }

    #[test]
    fn the_project_is_read_from_the_path_of_the_server() {
        let project = |name: &str, server: &str| {
            route(&mk_kubeconfig(Some(name), &[(name, server)]), &Place::default()).unwrap().project
        };
        assert_eq!(project("x", &format!("{MILO}{PATH}")), Some("shop".into()));
        assert_eq!(project("x", "https://a/projects/shop/control-plane"), Some("shop".into()));
        assert_eq!(project("polis-platform", "https://a"), None);
        assert_eq!(project("polis-hub", "https://a/planes/hub"), None);
        assert_eq!(project("polis-cell-dfw", "https://a/planes/dfw"), None);
        assert_eq!(project("kind", "https://a"), None);
    }

    #[test]
    fn a_context_that_is_missing_is_told_with_those_that_are_there() {
        let config = mk_kubeconfig(None, &[("a", MILO), ("b", MILO)]);
        assert!(route(&config, &mk_place(None, Some("c"))).unwrap_err().next.contains("a, b"));
        assert!(route(&config, &Place::default()).unwrap_err().next.contains("a, b"));
        assert_eq!(route(&mk_kubeconfig(None, &[("a", MILO)]), &Place::default()).unwrap().context, "a");
    }

    #[test]
    fn projects_are_found_among_the_contexts() {
        let config = mk_kubeconfig(
            None,
            &[
                ("polis-default", "https://a/projects/default/control-plane"),
                ("polis-platform", "https://a"),
                ("polis-hub", "https://a/2"),
                ("polis-cell-dfw", "https://a/3"),
                ("milo", &format!("{MILO}{PATH}")),
            ],
        );
        let found =
            [("default".to_owned(), "polis-default".to_owned()), ("shop".to_owned(), "milo".to_owned())];
        assert_eq!(project_contexts(&config), found);
    }

    #[test]
    fn the_root_is_the_server_without_the_project() {
        assert_eq!(root_server(&format!("{MILO}{PATH}")), MILO);
        assert_eq!(root_server("https://a/projects/shop/control-plane"), "https://a");
        assert_eq!(root_server("https://a/"), "https://a");
    }
}
