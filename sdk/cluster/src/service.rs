//! The four services that connect the processes of a cluster, and their guarantees.
//!
//! All processes of a run share the services. Each request has a time limit, which the service sets. After
//! [`ServiceError::Silent`], it is unknown whether the request was carried out, and the process repeats the request.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use archipelago_core::cluster::{Notice, ProcessId, Record, Reply};
use archipelago_core::wire::FragmentId;
use tokio::sync::mpsc;

/// Future of a service's answer.
pub type ServiceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ServiceError>> + Send + 'a>>;

/// Receiver of bus messages, in the order of arrival. If it is full, further messages are lost, as the network may
/// lose them.
pub type Inbox<T> = mpsc::Receiver<T>;

/// Maximum number of messages waiting in an [`Inbox`].
pub const INBOX_MAX: usize = 4_096;

/// Tape of records for each fragment, numbered from 1.
///
/// Guarantees:
/// - A record that [`Tape::append`] confirmed stays on the tape under its number, even if any process or server dies.
/// - A record is appended only if the last record has the expected number. Of several appends that expect the same
///   number, at most one succeeds.
/// - [`Tape::read`] returns permanent records, in order and without a gap. The newest ones may be missing.
pub trait Tape: Send + Sync {
    /// Appends `record` if the last record has the number `expect`, which is 0 for an empty tape. Returns the number
    /// of the new record, or `None` if the last record has another number.
    ///
    /// # Errors
    /// All of [`ServiceError`]; after [`ServiceError::Silent`] the record may be on the tape.
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>>;

    /// Returns the records after number `after`, in order.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn read(&self, fragment: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>>;

    /// Returns the number of the newest record, 0 for an empty tape. As with [`Tape::read`], newer records may exist.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn newest(&self, fragment: FragmentId) -> ServiceFuture<'_, u64>;
}

/// Bytes under a key, written once: the states of fragments.
///
/// Guarantees: stored bytes stay unchanged until they are deleted, even if any process or server dies. Of several
/// writes to one key, only the first succeeds. No reader gets part of a write.
pub trait Blobs: Send + Sync {
    /// Stores `bytes` under `key` of `fragment` unless the key exists. Returns true if the key now holds these bytes.
    ///
    /// # Errors
    /// All of [`ServiceError`]; after [`ServiceError::Silent`] the bytes may be stored.
    fn store(&self, fragment: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> ServiceFuture<'_, bool>;

    /// Returns the bytes under `key` of `fragment`; `None` if the key does not exist.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn load(&self, fragment: FragmentId, key: u64) -> ServiceFuture<'_, Option<Vec<u8>>>;

    /// Deletes any bytes under these keys of `fragment`. The caller must be sure that no process needs them, and must
    /// not store under these keys again.
    ///
    /// # Errors
    /// All of [`ServiceError`]. Some bytes may then remain, which only use space.
    fn forget(&self, fragment: FragmentId, keys: Range<u64>) -> ServiceFuture<'_, ()>;
}

/// Key of a roster entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// Leadership of this fragment.
    Lease(FragmentId),
    /// Presence of this process.
    Present(ProcessId),
}

/// Entry of the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key of the entry.
    pub cell: Cell,
    /// Process that holds the cell; `None` if it was released.
    pub holder: Option<ProcessId>,
    /// Number that changes with each write and is never 0. Revisions of different cells have no order.
    pub revision: u64,
}

/// Roster of leaders and present processes.
///
/// Its guarantees are weak, because it only decides which processes try to lead. A write succeeds if no other write
/// came between, as far as the roster knows. The roster has no notion of time: a holder rewrites its entry
/// repeatedly, and another process takes a cell over after it has seen the entry unchanged for long. See
/// [`crate::assignment::FragmentAssignment`].
pub trait Roster: Send + Sync {
    /// Returns all entries that were written and not deleted, in any order. They may be outdated.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn list(&self) -> ServiceFuture<'_, Vec<Entry>>;

    /// Writes an entry if its revision is `expect`, 0 for a missing entry. Returns its new revision, or `None` if the
    /// entry has another revision.
    ///
    /// # Errors
    /// All of [`ServiceError`]; after [`ServiceError::Silent`] the entry may have been written.
    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> ServiceFuture<'_, Option<u64>>;
}

/// Messages between leaders and gateways.
///
/// There are no guarantees: the bus may lose, repeat and reorder messages. Messages that arrive are complete.
pub trait Bus: Send + Sync {
    /// Sends a notice to all gateways of `fragment`.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn notify<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> ServiceFuture<'a, ()>;

    /// Sends a reply to the leader of `fragment`.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> ServiceFuture<'a, ()>;

    /// Subscribes to notices for gateways of `fragment`, until the inbox is dropped.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn notices(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Notice>>;

    /// Subscribes to replies for the leader of `fragment`, until the inbox is dropped.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn replies(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Reply>>;
}

/// The four services of a process.
#[derive(Clone)]
pub struct Services {
    /// Tape of records.
    pub tape: Arc<dyn Tape>,
    /// Store of states.
    pub blobs: Arc<dyn Blobs>,
    /// Roster of leases.
    pub roster: Arc<dyn Roster>,
    /// Bus for messages.
    pub bus: Arc<dyn Bus>,
}

/// Failure of a service. The display form names the place, the fault and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// There was no answer in time, so the request may or may not have been carried out. Drivers retry.
    #[error(
        "{place} does not answer ({detail}): check that it runs and can be reached; the request is repeated"
    )]
    Silent {
        /// Service and its address.
        place: String,
        /// Description of the fault.
        detail: String,
    },
    /// The server answers, but the required object does not exist.
    #[error("{place} does not exist ({detail}): create it, or correct its name")]
    Missing {
        /// Missing object.
        place: String,
        /// Description of the fault.
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
    /// The service has no space left.
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
    /// An address or a name is invalid.
    #[error("{place} is not a usable address: {detail}")]
    Setting {
        /// Given address or name.
        place: String,
        /// Expected form.
        detail: String,
    },
}

impl ServiceError {
    /// Returns true if the error may end by itself or when space is added to the service. A starting process may wait
    /// for that.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Full { .. })
    }
}
