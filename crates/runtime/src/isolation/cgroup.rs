//! Control groups: the limits of memory, CPU and processes of an instance as a whole.
//!
//! All containers of an instance are in one group, named after its UID. With version 2 it is below the
//! nearest group that this process may divide; with version 1 it is in each hierarchy that root may write to.
//! The shim creates the group and removes it when the last container ends. If the shim is killed, the next
//! inspection of the container removes it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The prefix of the names of groups.
const PREFIX: &str = "polis-";
/// The folder of all groups where root may create it at the top.
const FOLDER: &str = "polis";
/// Controllers of the limits.
const MEMORY: &str = "memory";
const PIDS: &str = "pids";
const CPU: &str = "cpu";
/// The period of CPU limits, in microseconds.
const CPU_PERIOD: u64 = 100_000;

/// Where the groups of instances are created: a folder for each controller that this machine gives. With
/// version 2 all controllers have the same folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupRoot {
    unified: bool,
    folders: BTreeMap<String, PathBuf>,
}

/// The limits of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupLimits {
    /// Memory including the page cache, in bytes.
    pub(crate) memory: Option<u64>,
    /// Processes and threads.
    pub(crate) pids: Option<u64>,
    /// CPU time, in thousandths of a CPU.
    pub(crate) millicores: Option<u64>,
}

/// The group of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    pub(crate) root: CgroupRoot,
    /// UID of the instance.
    pub(crate) instance: String,
    pub(crate) limits: CgroupLimits,
}

impl CgroupRoot {
    /// The root on this machine. It may lack controllers.
    pub(crate) fn detect() -> Self {
        let (Ok(mounts), Ok(own)) =
            (fs::read_to_string("/proc/self/mountinfo"), fs::read_to_string("/proc/self/cgroup"))
        else {
            return CgroupRoot::default();
        };
        let hierarchies = hierarchies(&mounts);
        let unified = hierarchies.iter().find_map(|(mount, controllers)| match controllers {
            None => unified_folder(mount, &own),
            Some(_) => None,
        });
        if let Some(folder) = unified {
            let given = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
            let folders =
                [MEMORY, PIDS, CPU].into_iter().filter(|name| given.split(' ').any(|g| g.trim() == *name));
            let folders = folders.map(|name| (name.to_owned(), folder.clone())).collect();
            return CgroupRoot { unified: true, folders };
        }
        let mut folders = BTreeMap::new();
        for controller in [MEMORY, PIDS, CPU] {
            let mount = hierarchies.iter().find(|(_, controllers)| {
                controllers.as_ref().is_some_and(|controllers| controllers.iter().any(|c| c == controller))
            });
            if let Some((mount, _)) = mount
                && fs::create_dir_all(mount.join(FOLDER)).is_ok()
                && can_create_in(&mount.join(FOLDER))
            {
                folders.insert(controller.to_owned(), mount.join(FOLDER));
            }
        }
        CgroupRoot { unified: false, folders }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.folders.is_empty()
    }

    /// Whether all memory of an instance is limited.
    pub(crate) fn limits_memory(&self) -> bool {
        self.folders.contains_key(MEMORY)
    }

    /// The controllers that this machine does not give.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        [MEMORY, PIDS, CPU].into_iter().filter(|name| !self.folders.contains_key(*name)).collect()
    }

    /// Removes the group of an instance, unless a process is in it.
    pub(crate) fn remove(&self, instance: &str) {
        for folder in self.groups(instance).into_values() {
            _ = fs::remove_dir(folder);
        }
    }

    /// The folders of a group, by controller.
    fn groups(&self, instance: &str) -> BTreeMap<&str, PathBuf> {
        let name = format!("{PREFIX}{instance}");
        self.folders.iter().map(|(controller, folder)| (controller.as_str(), folder.join(&name))).collect()
    }
}

impl Cgroup {
    /// Creates the group with its limits, and moves a process into it.
    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        for (controller, folder) in self.root.groups(&self.instance) {
            let set = |file: &str, value: &str| {
                fs::write(folder.join(file), value).map_err(|error| {
                    let path = folder.join(file);
                    io::Error::new(
                        error.kind(),
                        format!("failed to write {value} to {}: {error}", path.display()),
                    )
                })
            };
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display())));
                }
                _ => {}
            }
            for (file, value, required) in settings(self.root.unified, controller, &self.limits) {
                match set(file, &value) {
                    Err(error) if required => return Err(error),
                    _ => {}
                }
            }
            set("cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// How often the kernel has killed a process of the group because of its memory limit.
    pub(crate) fn oom_kills(&self) -> u64 {
        let groups = self.root.groups(&self.instance);
        let file = if self.root.unified { "memory.events" } else { "memory.oom_control" };
        let text = groups.get(MEMORY).and_then(|folder| fs::read_to_string(folder.join(file)).ok());
        text.as_deref().and_then(oom_kills).unwrap_or(0)
    }

    /// Removes the group, unless another container is in it. A process that was just killed stays in its
    /// group for a moment.
    pub(crate) fn remove(&self) {
        for _ in 0..20 {
            self.root.remove(&self.instance);
            if self.root.groups(&self.instance).values().all(|folder| !folder.exists() || in_use(folder)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn in_use(folder: &Path) -> bool {
    fs::read_to_string(folder.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty())
}

/// Files and values of the limits that a controller enforces, and whether they must exist.
fn settings(unified: bool, controller: &str, limits: &CgroupLimits) -> Vec<(&'static str, String, bool)> {
    let CgroupLimits { memory, pids, millicores } = limits;
    let quota = |millicores: &u64| (millicores * CPU_PERIOD / 1000).max(1000);
    match (controller, unified) {
        (MEMORY, true) => memory
            .iter()
            .flat_map(|bytes| {
                [("memory.max", bytes.to_string(), true), ("memory.swap.max", "0".to_owned(), false)]
            })
            .collect(),
        // The limit with swap cannot be below the limit without, so that it is set again after it.
        (MEMORY, false) => memory
            .iter()
            .flat_map(|bytes| {
                [
                    ("memory.limit_in_bytes", bytes.to_string(), true),
                    ("memory.memsw.limit_in_bytes", bytes.to_string(), false),
                ]
            })
            .collect(),
        (PIDS, _) => pids.iter().map(|pids| ("pids.max", pids.to_string(), true)).collect(),
        (CPU, true) => {
            let max = |millicores| ("cpu.max", format!("{} {CPU_PERIOD}", quota(millicores)), true);
            millicores.iter().map(max).collect()
        }
        (CPU, false) => {
            let max = |millicores| ("cpu.cfs_quota_us", quota(millicores).to_string(), false);
            millicores.iter().map(max).collect()
        }
        _ => Vec::new(),
    }
}

/// Mounted hierarchies in the text of `mountinfo`, with their controllers; `None` for version 2.
fn hierarchies(mounts: &str) -> Vec<(PathBuf, Option<Vec<String>>)> {
    let hierarchy = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let path = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        match after.next()? {
            "cgroup2" => Some((path, None)),
            "cgroup" => {
                let options = after.nth(1)?;
                Some((path, Some(options.split(',').map(str::to_owned).collect())))
            }
            _ => None,
        }
    };
    mounts.lines().filter_map(hierarchy).collect()
}

/// Whether this process may create groups in a folder, which another user may have created.
fn can_create_in(folder: &Path) -> bool {
    let probe = folder.join(format!("{PREFIX}probe-{}", std::process::id()));
    // Another thread may try at the same time.
    let created = match fs::create_dir(&probe) {
        Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
        Ok(()) => true,
    };
    _ = fs::remove_dir(&probe);
    created
}

/// The folder of version 2 in which this process may create groups with limits of memory and processes.
fn unified_folder(mount: &Path, own: &str) -> Option<PathBuf> {
    let controls = |folder: &Path| {
        let given = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
        let given: Vec<&str> = given.split_whitespace().collect();
        given.contains(&MEMORY) && given.contains(&PIDS)
    };
    let enable = |folder: &Path| {
        for controller in [MEMORY, PIDS, CPU] {
            _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        controls(folder)
    };
    // Root divides the top group, as container engines do.
    let top = mount.join(FOLDER);
    if rustix::process::geteuid().is_root()
        && enable(mount)
        && fs::create_dir_all(&top).is_ok()
        && enable(&top)
    {
        return Some(top);
    }
    // Otherwise a group that was delegated to this user, for example by systemd.
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder = mount.join(own);
    while folder.starts_with(mount) {
        if controls(&folder) && can_create_in(&folder) {
            return Some(folder);
        }
        folder = folder.parent()?.to_owned();
    }
    None
}

/// The count in the text of `memory.events` or `memory.oom_control`.
fn oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "27 21 0:23 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            30 27 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
            31 27 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            36 27 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let of = |path: &str, controllers: &[&str]| {
            (PathBuf::from(path), Some(controllers.iter().map(|&c| c.to_owned()).collect::<Vec<_>>()))
        };
        assert_eq!(
            hierarchies(mounts),
            [
                of("/sys/fs/cgroup/memory", &["rw", "memory"]),
                of("/sys/fs/cgroup/cpu,cpuacct", &["rw", "cpu", "cpuacct"]),
                ("/sys/fs/cgroup/unified".into(), None),
            ]
        );
    }

    #[test]
    fn limits_are_written_in_the_form_of_each_version() {
        let limits = CgroupLimits { memory: Some(64 << 20), pids: Some(100), millicores: Some(1500) };
        let values = |unified, controller| -> Vec<(&str, String)> {
            settings(unified, controller, &limits).into_iter().map(|(file, value, _)| (file, value)).collect()
        };
        assert_eq!(values(true, CPU), [("cpu.max", "150000 100000".to_owned())]);
        assert_eq!(values(false, CPU), [("cpu.cfs_quota_us", "150000".to_owned())]);
        assert_eq!(values(true, MEMORY)[0], ("memory.max", "67108864".to_owned()));
        assert_eq!(values(false, MEMORY)[0], ("memory.limit_in_bytes", "67108864".to_owned()));
        assert_eq!(values(false, PIDS), [("pids.max", "100".to_owned())]);
        assert_eq!(settings(true, MEMORY, &CgroupLimits::default()), []);
    }

    #[test]
    fn a_folder_of_another_user_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        assert!(can_create_in(dir.path()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!can_create_in(&dir.path().join("missing")));
    }

    #[test]
    fn kills_are_counted_in_the_files_of_both_versions() {
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), Some(2));
        assert_eq!(oom_kills("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(oom_kills("under_oom 0"), None);
    }
}
