//! The system's limit on open files and sockets of a process.

/// File descriptors reserved for the run's own files, its pages, and the owner's access.
const KEPT: u64 = 64;

/// Raises the limit as far as possible without privileges. Returns the new limit, or `None` if the system has no such
/// limit or does not report it.
#[must_use]
pub fn raise() -> Option<u64> {
    platform::raise()
}

/// Returns the limit that [`raise`] would set, or `None` if the system has no such limit or does not report it.
#[must_use]
pub fn limit() -> Option<u64> {
    platform::limit()
}

/// Returns the number of connections that fit under a limit of `descriptors` next to the run's own files: 1 to
/// `connections_max`.
#[must_use]
pub fn connections(descriptors: Option<u64>, connections_max: u32) -> u32 {
    let room = descriptors.map_or(u64::from(connections_max), |most| most.saturating_sub(KEPT).max(1));
    u32::try_from(room).unwrap_or(u32::MAX).min(connections_max)
}

#[cfg(unix)]
mod platform {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    pub fn raise() -> Option<u64> {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current == maximum {
            return current;
        }
        match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => maximum,
            Err(error) => {
                tracing::warn!(%error, ?current, "cannot raise the limit of open files and sockets");
                current
            }
        }
    }

    pub fn limit() -> Option<u64> {
        getrlimit(Resource::Nofile).maximum
    }
}

#[cfg(not(unix))]
mod platform {
    pub fn raise() -> Option<u64> {
        None
    }

    pub fn limit() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_keeps_some_of_what_the_system_allows() {
        assert_eq!(connections(Some(1_024), 8_192), 960);
        assert_eq!(connections(Some(1 << 20), 8_192), 8_192);
        assert_eq!(connections(None, 8_192), 8_192);
        // `doctor` warns about so low a limit. The program still serves one connection.
        assert_eq!(connections(Some(10), 8_192), 1);
    }
}
