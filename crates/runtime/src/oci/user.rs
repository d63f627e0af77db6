//! The user of an image: `user[:group]` by name or number, as `/etc/passwd` and `/etc/group` of the image
//! say.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use super::ImageError;

/// Size of a file of users or groups at most.
const MAX_FILE: u64 = 1 << 20;

/// User, group, further groups, and home of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: Option<String>,
}

/// The user of an image with these layers, lowest first.
pub(crate) fn identity(user: Option<&str>, layers: &[PathBuf]) -> Result<User, ImageError> {
    let user = user.filter(|user| !user.is_empty()).unwrap_or("0");
    resolve(user, &find(layers, "etc/passwd"), &find(layers, "etc/group"))
}

/// The text of a file in the uppermost layer that has it.
fn find(layers: &[PathBuf], path: &str) -> String {
    layers.iter().rev().find_map(|layer| read(layer, path)).unwrap_or_default()
}

/// Reads a file of a layer, whose links cannot lead out of it.
fn read(layer: &Path, path: &str) -> Option<String> {
    let root = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = fs::File::from(openat2(root, path, flags, Mode::empty(), resolve).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn resolve(user: &str, passwd: &str, group: &str) -> Result<User, ImageError> {
    let (user, wanted_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let accounts: Vec<Vec<String>> = passwd.lines().map(fields).filter(|fields| fields.len() >= 6).collect();
    let groups: Vec<Vec<String>> = group.lines().map(fields).filter(|fields| fields.len() >= 3).collect();
    let account = accounts.iter().find(|account| account[0] == user || account[2] == user);
    let missing =
        |what: &str, name: &str| ImageError::new(format!("its {what} {name:?} does not exist in it"));
    let number = match (account, user.parse::<u32>()) {
        (Some(account), _) => account[2].parse().map_err(|_| missing("user", user))?,
        (None, Ok(number)) => number,
        (None, Err(_)) => return Err(missing("user", user)),
    };
    let main_group = match wanted_group {
        Some(name) => match (groups.iter().find(|group| group[0] == name), name.parse()) {
            (Some(group), _) => group[2].parse().map_err(|_| missing("group", name))?,
            (None, Ok(number)) => number,
            (None, Err(_)) => return Err(missing("group", name)),
        },
        None => account.and_then(|account| account[3].parse().ok()).unwrap_or(0),
    };
    let is_member = |group: &&Vec<String>| {
        let name = account.map(|account| account[0].as_str());
        group.get(3).is_some_and(|members| members.split(',').any(|member| Some(member) == name))
    };
    let others = groups.iter().filter(is_member).filter_map(|group| group[2].parse().ok()).collect();
    let home = account.map(|account| account[5].clone()).filter(|home| home.starts_with('/'));
    Ok(User { user: number, group: main_group, groups: others, home })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:web:/var/web:/bin/false\nbroken\n";
    const GROUP: &str = "root:x:0:\nweb:x:102:\nlogs:x:200:web,other\n";

    #[test]
    fn users_are_found_by_name_or_number() {
        let user = |text| resolve(text, PASSWD, GROUP).unwrap();
        let web = User { user: 101, group: 102, groups: vec![200], home: Some("/var/web".into()) };
        assert_eq!(user("web"), web);
        assert_eq!(user("101"), web);
        assert_eq!(user("web:logs").group, 200);
        assert_eq!(user("web:7").group, 7);
        assert_eq!(user("4711"), User { user: 4711, group: 0, groups: vec![], home: None });
        assert_eq!(user("0").home.as_deref(), Some("/root"));
    }

    #[test]
    fn a_user_that_the_image_lacks_is_named() {
        for (user, named) in
            [("absent", "user \"absent\""), ("web:nope", "group \"nope\""), ("-1", "user \"-1\"")]
        {
            let error = resolve(user, PASSWD, GROUP).unwrap_err().to_string();
            assert!(error.contains(named), "{user}: {error}");
        }
    }

    #[test]
    fn a_link_in_a_layer_does_not_lead_to_the_host() {
        let layer = tempfile::tempdir().unwrap();
        fs::create_dir(layer.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", layer.path().join("etc/group")).unwrap();
        assert_eq!(read(layer.path(), "etc/group"), None, "the layer has no etc/passwd");
    }
}
