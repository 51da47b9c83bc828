//! Memory available to a process, on the machine and within the limits of its container.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the memory that this process can still allocate, in bytes: the minimum of the machine's available memory
/// and the remaining limits of all control groups that contain the process. Returns `None` on systems that do not
/// report it; Linux does.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    available_below(Path::new("/"))
}

/// Returns [`available_bytes`] for a file system that is rooted at `root`.
fn available_below(root: &Path) -> Option<u64> {
    let machine = meminfo(&root.join("proc/meminfo"));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().flat_map(|line| remaining_in_groups(root, line));
    machine.into_iter().chain(of_groups).min()
}

fn meminfo(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}

/// Names of the memory files of a control group, in one version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Key in `memory.stat` for cached files, which the kernel drops before it runs out of memory.
    cached: &'static str,
}

const V1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cached: "total_inactive_file" };
const V2: Files = Files { limit: "memory.max", used: "memory.current", cached: "inactive_file" };

/// Returns the remaining memory, in bytes, of each control group with a limit: of the group that `line` names, and of
/// those that contain it. `line` is `0::PATH` or `NUMBER:CONTROLLERS:PATH`.
fn remaining_in_groups(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':');
    let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Vec::new();
    };
    let (mounts, files): (&[&str], _) = match number == "0" && controllers.is_empty() {
        true => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], V2),
        false if controllers.split(',').any(|name| name == "memory") => (&["sys/fs/cgroup/memory"], V1),
        false => return Vec::new(),
    };
    let folders = mounts.iter().flat_map(|mount| folders(&root.join(mount), path));
    folders.filter_map(|folder| remaining(&folder, &files)).collect()
}

/// Returns the folders of a group and of all groups that contain it. In a container the path may be that of the host.
/// Then only `mount`, the container's own group, exists.
fn folders(mount: &Path, path: &str) -> Vec<PathBuf> {
    let names = Path::new(path).components();
    let names = names.filter(|name| matches!(name, std::path::Component::Normal(_)));
    let mut folders = vec![mount.to_owned()];
    for name in names {
        let inner = folders.last().map(|folder| folder.join(name)).unwrap_or_default();
        folders.push(inner);
    }
    folders
}

/// Returns the remaining memory of the group in `folder` in bytes, if the group has a limit.
fn remaining(folder: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // Version 2 writes `max` for a group without a limit.
    let limit = number(files.limit)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(files.cached)?.trim().parse::<u64>().ok());
    let used = number(files.used).unwrap_or(0).saturating_sub(cached.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns the available memory in bytes of a system with these files.
    fn available(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        available_below(root.path())
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable:    8192 kB\nSwapFree: 0 kB\n");

    #[test]
    fn available_memory_of_a_machine() {
        assert_eq!(available(&[MEMINFO]), Some(8 * MIB));
        assert_eq!(available(&[]), None);
        let unlimited = ("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(available(&[MEMINFO, ("proc/self/cgroup", "0::/\n"), unlimited]), Some(8 * MIB));
    }

    /// Goal: a container's own group is the root of its file system, and cached files are not used memory.
    #[test]
    fn available_memory_of_a_container_follows_its_limit() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "4194304\n"),
            ("sys/fs/cgroup/memory.current", "3145728\n"),
        ];
        assert_eq!(available(&files), Some(MIB));
        let cached = ("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 2097152\nactive_file 5\n");
        assert_eq!(available(&[&files[..], &[cached]].concat()), Some(3 * MIB));
    }

    /// Goal: the limit of the slice that contains a service also applies.
    #[test]
    fn limits_of_enclosing_groups_apply() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/syncer.service\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "2097152\n"),
            ("sys/fs/cgroup/system.slice/memory.current", "1048576\n"),
            ("sys/fs/cgroup/system.slice/syncer.service/memory.max", "6291456\n"),
            ("sys/fs/cgroup/system.slice/syncer.service/memory.current", "1048576\n"),
        ];
        assert_eq!(available(&files), Some(MIB));
    }

    /// Goal: version 1 of control groups is supported. It has a folder for each controller, and its paths are those
    /// of the host.
    #[test]
    fn control_groups_version_1_are_supported() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n1:name=systemd:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5242880\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4194304\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n"),
        ];
        assert_eq!(available(&files), Some(2 * MIB));
        let unlimited = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(available(&[files[0], files[1], unlimited]), Some(8 * MIB));
        let nested = ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "3145728\n");
        assert_eq!(available(&[files[0], files[1], unlimited, nested]), Some(3 * MIB));
        let above = ("sys/fs/cgroup/memory.max", "1\n");
        assert_eq!(available(&[files[0], ("proc/self/cgroup", "nonsense\n"), above]), Some(8 * MIB));
    }
}
