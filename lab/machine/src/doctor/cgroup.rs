//! Where the limits of this process's control groups are: version 1, version 2, or both at once.

use super::tree::{Tree, Unseen};

const OWN: &str = "proc/self/cgroup";
const MOUNTS: &str = "proc/self/mountinfo";

/// The directories of one controller, the process's own first, then those above it that can be seen:
/// a limit of any of them holds.
#[derive(Debug, PartialEq)]
pub(super) struct Group {
    pub(super) is_v2: bool,
    pub(super) directories: Vec<String>,
}

impl Group {
    /// That of `controller`, such as `cpu`. In a hybrid set-up it is where version 1 has it, if it has.
    pub(super) fn of(tree: &Tree, controller: &str) -> Result<Self, Unseen> {
        let (own, mounts) = (tree.read(OWN)?, tree.read(MOUNTS)?);
        let v1 =
            own.lines().find_map(|line| path_of(line, |names| names.split(',').any(|n| n == controller)));
        let v2 = || own.lines().find_map(|line| path_of(line, str::is_empty));
        let (is_v2, path) = match v1 {
            Some(path) => (false, path),
            None => (true, v2().ok_or_else(|| Unseen::unknown(OWN, &own))?),
        };
        let holds = |mount: &Mount<'_>| match is_v2 {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller),
        };
        let mount = mounts.lines().filter_map(Mount::of).find(holds);
        let mount = mount.ok_or_else(|| Unseen::unknown(MOUNTS, "no control groups mounted, which"))?;
        Ok(Group { is_v2, directories: up(&mount, path) })
    }

    /// The text of `name` in each directory that has it, with the file's path; own first.
    pub(super) fn texts(&self, tree: &Tree, name: &str) -> Vec<(String, String)> {
        let file = |directory: &String| {
            let path = format!("{directory}/{name}");
            Some((tree.read(&path).ok()?, path))
        };
        self.directories.iter().filter_map(file).map(|(text, path)| (path, text)).collect()
    }
}

/// The path in a line `ID:CONTROLLERS:PATH`, if the controllers are right.
fn path_of(line: &str, is_right: impl Fn(&str) -> bool) -> Option<&str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    is_right(controllers).then_some(path)
}

struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of mountinfo: what is before and after ` - `.
    fn of(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let (root, point, kind) = (before.next()?, before.next()?, after.next()?);
        Some(Mount { root, point, kind, options: after.nth(1)? })
    }
}

/// From the group at `path` up to the top of what is mounted. A container sees its own group as the top
/// of the mount, by whatever name the host has for it.
fn up(mount: &Mount<'_>, path: &str) -> Vec<String> {
    let top = mount.point.trim_start_matches('/');
    let inside = match mount.root {
        "/" => path,
        root => path.strip_prefix(root).unwrap_or(""),
    };
    let mut names: Vec<_> = inside.split('/').filter(|name| !name.is_empty()).collect();
    if names.contains(&"..") {
        names.clear();
    }
    let mut directories = Vec::with_capacity(names.len() + 1);
    loop {
        directories.push([&[top], names.as_slice()].concat().join("/"));
        if names.pop().is_none() {
            return directories;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn group(own: &str, mounts: &str, controller: &str) -> Result<Group, Unseen> {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("proc/self")).unwrap();
        fs::write(place.path().join(OWN), own).unwrap();
        fs::write(place.path().join(MOUNTS), mounts).unwrap();
        Group::of(&Tree::at(place.path()), controller)
    }

    const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn version_1_version_2_and_both() {
        let one = group("4:cpu,cpuacct:/job/step\n", V1, "cpu").unwrap();
        let top = "sys/fs/cgroup/cpu,cpuacct";
        assert_eq!(one.directories, [format!("{top}/job/step"), format!("{top}/job"), top.to_owned()]);
        let two = group("0::/user.slice\n", V2, "cpu").unwrap();
        assert!(two.is_v2 && !one.is_v2);
        assert_eq!(two.directories, ["sys/fs/cgroup/user.slice", "sys/fs/cgroup"]);
        let both = format!("{V1}\n{}", V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "));
        let own = "4:cpu,cpuacct:/\n0::/x\n";
        assert!(!group(own, &both, "cpu").unwrap().is_v2);
        assert_eq!(
            group(own, &both, "io").unwrap().directories,
            ["sys/fs/cgroup/unified/x", "sys/fs/cgroup/unified"]
        );
    }

    #[test]
    fn a_container_is_at_the_top_of_what_it_sees() {
        let mounts = V1.replace(" / ", " /docker/7f ");
        assert_eq!(
            group("4:cpu,cpuacct:/docker/7f\n", &mounts, "cpu").unwrap().directories,
            ["sys/fs/cgroup/cpu,cpuacct"]
        );
        assert_eq!(group("0::/../../x\n", V2, "cpu").unwrap().directories, ["sys/fs/cgroup"]);
    }

    #[test]
    fn no_control_groups_are_named_as_such() {
        let why = group("", V2, "cpu").expect_err("the process is in none").to_string();
        assert!(why.starts_with("/proc/self/cgroup: "), "{why}");
        let why = group("0::/\n", "", "cpu").expect_err("none is mounted").to_string();
        assert!(why.contains("no control groups mounted"), "{why}");
    }
}
