//! Cores, memory and name of this machine.

use std::num::NonZeroUsize;
use std::{fs, thread};

/// Returns the number of cores that this process may use, 1 if the system does not report it.
pub(crate) fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Returns the memory that this process may still take, in MiB, or `None` on systems that do not report it. Linux does.
pub(crate) fn available_mib() -> Option<u64> {
    archipelago_cli::available_bytes().map(|bytes| bytes >> 20)
}

/// Returns this machine's name, for display.
pub(crate) fn host_name() -> Option<String> {
    let name = fs::read_to_string("/etc/hostname").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
