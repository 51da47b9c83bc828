//! What a service says when it cannot do what it was asked, and what whoever runs it should do then.

/// Why a service did not do what it was asked. Each says where, what was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Nobody answered in time, so it may have been done or not. Drivers ask again.
    #[error("{place} does not answer ({detail}): see that it runs and can be reached; it is asked again")]
    Silent {
        /// Which service, and where.
        place: String,
        /// What was seen of it.
        detail: String,
    },
    /// The server is there, and what it should hold is not.
    #[error("{place} is not there ({detail}): make it, or correct its name")]
    Missing {
        /// What was looked for.
        place: String,
        /// What was seen instead.
        detail: String,
    },
    /// The credentials are wrong, or do not allow this.
    #[error("{place} refuses us ({detail}): give this process credentials that may read and write there")]
    Denied {
        /// Which service, and where.
        place: String,
        /// What it said.
        detail: String,
    },
    /// It has no room left.
    #[error("{place} is full ({detail}): give it more room, and the run goes on")]
    Full {
        /// Which service, and where.
        place: String,
        /// What it said.
        detail: String,
    },
    /// It can be read and not written.
    #[error("{place} can only be read ({detail}): let it be written, or name another place")]
    ReadOnly {
        /// Which service, and where.
        place: String,
        /// What it said.
        detail: String,
    },
    /// Another cluster uses the same prefix.
    #[error(
        "{place} belongs to another cluster ({detail}): give this one a prefix of its own; or, if it is to be a part \
         of that one, the same data, model and settings of the method, and the same version of the program"
    )]
    Foreign {
        /// Which service, and where.
        place: String,
        /// Whose it is, and whose it should be.
        detail: String,
    },
    /// What it holds was not written by a process of a run, or is not whole.
    #[error(
        "{place} holds what cannot be read ({detail}): restore it from a copy, or begin a run on a new prefix"
    )]
    Damaged {
        /// What was read.
        place: String,
        /// What is wrong with it.
        detail: String,
    },
    /// An address or a name that it cannot have.
    #[error("{place} is no address that can be used: {detail}")]
    Setting {
        /// What was given.
        place: String,
        /// What it should be.
        detail: String,
    },
}

impl ServiceError {
    /// Whether it passes by itself, or once somebody has made room: then a process that starts may wait for it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Full { .. })
    }
}
