//! Errors of services, with their remedies for the operator.

/// Reason why a service failed. Each message has the place, the finding and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No answer in time, so the operation may or may not have been done. Drivers retry.
    #[error(
        "{place} does not answer ({detail}): check that it runs and can be reached; the request is repeated"
    )]
    Silent {
        /// Service and its address.
        place: String,
        /// Finding.
        detail: String,
    },
    /// The server is running, but lacks the required object.
    #[error("{place} does not exist ({detail}): create it, or correct its name")]
    Missing {
        /// Missing object.
        place: String,
        /// Finding.
        detail: String,
    },
    /// The credentials are wrong or insufficient.
    #[error("{place} refuses this process ({detail}): give it credentials that may read and write there")]
    Denied {
        /// Service and its address.
        place: String,
        /// Answer of the service.
        detail: String,
    },
    /// The service has no room left.
    #[error("{place} is full ({detail}): free or add space, and the run continues")]
    Full {
        /// Service and its address.
        place: String,
        /// Answer of the service.
        detail: String,
    },
    /// The service is read-only.
    #[error("{place} is read-only ({detail}): allow writing, or name another place")]
    ReadOnly {
        /// Service and its address.
        place: String,
        /// Answer of the service.
        detail: String,
    },
    /// Another cluster uses the same prefix.
    #[error(
        "{place} belongs to another cluster ({detail}): give this one a prefix of its own; or, to be a part of that \
         cluster, use the same data, model and settings of the method, and the same version of the program"
    )]
    Foreign {
        /// Service and its address.
        place: String,
        /// Actual and expected run.
        detail: String,
    },
    /// The content was not written by a process of a run, or is incomplete.
    #[error(
        "{place} holds unreadable data ({detail}): restore it from a copy, or begin a run on a new prefix"
    )]
    Damaged {
        /// Place that was read.
        place: String,
        /// Defect.
        detail: String,
    },
    /// Invalid address or name.
    #[error("{place} is not a usable address: {detail}")]
    Setting {
        /// Given value.
        place: String,
        /// Expected value.
        detail: String,
    },
}

impl ServiceError {
    /// Returns true if the error can pass by itself or once the service has more room. A starting process may wait for
    /// it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Full { .. })
    }
}
