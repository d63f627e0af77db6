//! Selects the kubeconfig, the context and the server URL of a command.
//!
//! The kubeconfig is the first that exists of: `--kubeconfig`, `$KUBECONFIG`, the file that `polis up` writes
//! to its data directory, `~/.kube/config`. A project is either its own context (`polis-<project>`, as `polis
//! up` writes them) or a path below the server of the context, as Milo serves its projects.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use polis_api::kube::config::Kubeconfig;
use polis_api::milo;

use super::ConnectionFlags;
use crate::exit::{CliError, Exit, root_cause};

/// Prefix of the context names that `polis up` writes.
const CONTEXT_PREFIX: &str = "polis-";
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
    HomeDirectory(PathBuf),
}

impl Source {
    /// The path and where it comes from, for messages.
    pub fn describe(&self) -> String {
        match self {
            Source::Flag(path) => format!("{} (--kubeconfig)", path.display()),
            Source::Environment(paths) => format!("{} ($KUBECONFIG)", paths.to_string_lossy()),
            Source::DataDirectory(path) => format!("{} (of polis up)", path.display()),
            Source::HomeDirectory(path) => path.display().to_string(),
        }
    }
}

/// A kubeconfig that was read, and where it comes from.
#[derive(Clone, Debug)]
pub struct LoadedKubeconfig {
    /// Where it comes from.
    pub source: Source,
    /// Its content.
    pub kubeconfig: Kubeconfig,
}

/// Finds and reads the kubeconfig.
pub fn find(flag: Option<&Path>) -> Result<LoadedKubeconfig, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let data = std::env::var_os("POLIS_DATA_DIR").map(PathBuf::from);
    let data = data.or_else(crate::up::default_data_dir);
    let environment = std::env::var_os("KUBECONFIG");
    let source = choose(flag, environment.as_deref(), data.as_deref(), home.as_deref(), Path::is_file);
    let Some(source) = source else {
        return Err(CliError::new(
            Exit::Unreachable,
            "failed to find a kubeconfig",
            "--kubeconfig and $KUBECONFIG are not set, and neither `polis up` nor kubectl has written a kubeconfig",
            "start an installation with `polis up`, or set --kubeconfig",
        ));
    };
    let read = match &source {
        Source::Environment(_) => Kubeconfig::from_env().map(Option::unwrap_or_default),
        Source::Flag(path) | Source::DataDirectory(path) | Source::HomeDirectory(path) => {
            Kubeconfig::read_from(path)
        }
    };
    let kubeconfig = read.map_err(|error| {
        CliError::new(
            Exit::Unreachable,
            format!("failed to read the kubeconfig {}", source.describe()),
            root_cause(&error),
            "correct the file, or set --kubeconfig to another one",
        )
    })?;
    Ok(LoadedKubeconfig { source, kubeconfig })
}

/// The kubeconfig to read. `--kubeconfig` and `$KUBECONFIG` are not checked for existence: reading a missing
/// file returns the error.
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
    let local = data.map(|data| data.join("kubeconfig")).filter(|path| exists(path));
    let home_config = home.map(|home| home.join(".kube/config")).filter(|path| exists(path));
    local.map(Source::DataDirectory).or(home_config.map(Source::HomeDirectory))
}

/// The context and server URL that the connection flags select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The context.
    pub context: String,
    /// The server URL with the path of the project; `None` to use the URL of the context.
    pub server: Option<String>,
    /// The project, if the server URL or a flag names one.
    pub project: Option<String>,
}

/// Selects the context and server URL.
pub fn route(kubeconfig: &Kubeconfig, connection: &ConnectionFlags) -> Result<Route, CliError> {
    let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    let own = connection.project.as_ref().map(|project| format!("{CONTEXT_PREFIX}{project}"));
    // `polis-hub` is the hub and not a project with the name hub: the path of the server decides.
    let is_project = |own: &String| {
        server_of(kubeconfig, own).and_then(|server| project_of_path(&server)) == connection.project
    };
    let own = own.filter(|own| connection.context.is_none() && is_project(own));
    if let Some(context) = own {
        return Ok(Route { context, server: None, project: connection.project.clone() });
    }
    let current = kubeconfig.current_context.clone().filter(|current| !current.is_empty());
    let context = match (connection.context.clone().or(current), names.as_slice()) {
        (Some(context), _) => context,
        (None, [only]) => (*only).to_owned(),
        (None, _) => {
            return Err(CliError::new(
                Exit::Unreachable,
                "failed to select a context",
                "the kubeconfig has no current-context",
                format!("set --context to one of: {}", names.join(", ")),
            ));
        }
    };
    if !names.contains(&context.as_str()) {
        return Err(CliError::new(
            Exit::Unreachable,
            format!("failed to find context {context}"),
            "the kubeconfig has no context with this name",
            format!("set --context to one of: {}", names.join(", ")),
        ));
    }
    let server = server_of(kubeconfig, &context).unwrap_or_default();
    let project = project_of_path(&server);
    match &connection.project {
        Some(wanted) if project.as_ref() != Some(wanted) => Ok(Route {
            context,
            server: Some(project_server(&server, wanted)),
            project: Some(wanted.clone()),
        }),
        _ => Ok(Route { context, server: None, project }),
    }
}

/// The server URL of a context.
pub fn server_of(kubeconfig: &Kubeconfig, context: &str) -> Option<String> {
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?;
    cluster.cluster.as_ref()?.server.clone()
}

/// The URL of the platform plane, which has the Project objects: the server URL without the path of a
/// project.
pub fn root_server(server: &str) -> &str {
    let root = server.find(&prefix()).or_else(|| {
        // The embedded API server also serves the short path `/projects/<name>/control-plane`.
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

/// Name and context of every project that has its own context.
pub fn project_contexts(kubeconfig: &Kubeconfig) -> Vec<(String, String)> {
    let contexts = kubeconfig.contexts.iter().map(|context| context.name.as_str());
    contexts
        .filter_map(|context| {
            let server = server_of(kubeconfig, context).unwrap_or_default();
            Some((project_of_path(&server)?, context.to_owned()))
        })
        .collect()
}

/// Whether `polis up` wrote the context. Then the contexts of the hub and the cells are in the same file.
pub fn is_local_installation(context: &str) -> bool {
    context.starts_with(CONTEXT_PREFIX)
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

    fn mk_connection(project: Option<&str>, context: Option<&str>) -> ConnectionFlags {
        ConnectionFlags {
            project: project.map(Into::into),
            context: context.map(Into::into),
            ..Default::default()
        }
    }

    #[test]
    fn flag_then_environment_then_data_directory_then_home_select_the_kubeconfig() {
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
            Some(Source::HomeDirectory("/h/.kube/config".into()))
        );
        assert_eq!(choice(None, None, &|_| false), None);
    }

    #[test]
    fn a_project_with_its_own_context_uses_that_context() {
        let config = mk_kubeconfig(
            Some("polis-default"),
            &[("polis-default", "https://a/1"), ("polis-shop", &format!("{MILO}{PATH}"))],
        );
        let route = route(&config, &mk_connection(Some("shop"), None)).unwrap();
        assert_eq!(route, Route { context: "polis-shop".into(), server: None, project: Some("shop".into()) });
    }

    #[test]
    fn a_project_without_a_context_is_a_path_of_the_server() {
        for server in
            [MILO.to_owned(), format!("{MILO}/"), format!("{MILO}{}", PATH.replace("shop", "other"))]
        {
            let config = mk_kubeconfig(Some("milo"), &[("milo", &server)]);
            let route = route(&config, &mk_connection(Some("shop"), None)).unwrap();
            assert_eq!(route.server, Some(format!("{MILO}{PATH}")), "{server}");
        }
    }

    #[test]
    fn a_context_that_already_points_to_the_project_keeps_its_server() {
        let config = mk_kubeconfig(Some("milo"), &[("milo", &format!("{MILO}{PATH}"))]);
        let route = route(&config, &mk_connection(Some("shop"), None)).unwrap();
        assert_eq!((route.server, route.project), (None, Some("shop".into())));
    }

    #[test]
    fn the_project_is_read_from_the_path_of_the_server() {
        let project = |name: &str, server: &str| {
            route(&mk_kubeconfig(Some(name), &[(name, server)]), &ConnectionFlags::default()).unwrap().project
        };
        assert_eq!(project("x", &format!("{MILO}{PATH}")), Some("shop".into()));
        assert_eq!(project("x", "https://a/projects/shop/control-plane"), Some("shop".into()));
        assert_eq!(project("polis-platform", "https://a"), None);
        assert_eq!(project("polis-hub", "https://a/planes/hub"), None);
        assert_eq!(project("polis-cell-dfw", "https://a/planes/dfw"), None);
        assert_eq!(project("kind", "https://a"), None);
    }

    #[test]
    fn the_error_about_a_missing_context_lists_the_existing_ones() {
        let config = mk_kubeconfig(None, &[("a", MILO), ("b", MILO)]);
        assert!(route(&config, &mk_connection(None, Some("c"))).unwrap_err().next.contains("a, b"));
        assert!(route(&config, &ConnectionFlags::default()).unwrap_err().next.contains("a, b"));
        assert_eq!(
            route(&mk_kubeconfig(None, &[("a", MILO)]), &ConnectionFlags::default()).unwrap().context,
            "a"
        );
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
    fn the_root_server_is_the_server_without_the_project_path() {
        assert_eq!(root_server(&format!("{MILO}{PATH}")), MILO);
        assert_eq!(root_server("https://a/projects/shop/control-plane"), "https://a");
        assert_eq!(root_server("https://a/"), "https://a");
    }
}
