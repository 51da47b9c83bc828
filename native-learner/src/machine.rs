//! Cores, memory and name of this machine.

use std::num::NonZeroUsize;
use std::{fs, thread};

/// Cores that this process may use, 1 if the system does not say.
pub(crate) fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Memory that is free, in MiB; `None` where the system does not say (it does on Linux).
pub(crate) fn available_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1_024)
}

/// This machine's name, for people.
pub(crate) fn host_name() -> Option<String> {
    let name = fs::read_to_string("/etc/hostname").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
