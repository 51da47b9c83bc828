//! The four services that stand between the processes of a cluster, and what each of them promises.
//!
//! All of them are shared by every process of a run, and asked again by whoever got no answer. Each question has a
//! deadline of the service's own; [`ServiceError::Silent`] says that it passed, and nothing about what was done.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use archipelago_core::cluster::{Notice, ProcessId, Record, Reply};
use archipelago_core::wire::FragmentId;
use tokio::sync::mpsc;

use crate::error::ServiceError;

/// What a service answers some time.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ServiceError>> + Send + 'a>>;

/// What comes over the bus, in the order of arrival. What does not fit is lost, as on the way.
pub type Inbox<T> = mpsc::Receiver<T>;

/// Messages that wait in an [`Inbox`] at most.
pub const INBOX_MAX: usize = 4_096;

/// The records of each fragment, numbered 1, 2, 3 ….
///
/// Promises:
/// - What [`Tape::append`] answered with a number stays on the tape under that number, whoever dies.
/// - A record is appended if the last one has the number that was expected, and otherwise not. Of those who expect the
///   same, at most one gets a number.
/// - [`Tape::read`] gives what is there for good, in order and without a gap. It may not have the newest yet.
pub trait Tape: Send + Sync {
    /// Appends `record` if the last one has the number `expect`, 0 for none; its number, or `None` if the last one has
    /// another.
    ///
    /// # Errors
    /// All of [`ServiceError`]; after [`ServiceError::Silent`] the record may be on the tape.
    fn append<'a>(&'a self, fragment: FragmentId, expect: u64, record: &'a Record)
    -> Answer<'a, Option<u64>>;

    /// The records after number `after`, in order.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn read(&self, fragment: FragmentId, after: u64) -> Answer<'_, Vec<Record>>;

    /// The number of the newest record, 0 if there is none; as with [`Tape::read`], there may be newer ones.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn newest(&self, fragment: FragmentId) -> Answer<'_, u64>;
}

/// Bytes under a key, written once: the states of fragments.
///
/// Promises: what was stored stays as it is until it is forgotten, whoever dies; of those who store under one key, the
/// first counts; nobody sees a part of it.
pub trait Blobs: Send + Sync {
    /// Stores `bytes` under `key` of `fragment`, if there is nothing. Whether these bytes are there now.
    ///
    /// # Errors
    /// All of [`ServiceError`]; after [`ServiceError::Silent`] they may be there.
    fn store(&self, fragment: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> Answer<'_, bool>;

    /// What is stored under `key` of `fragment`.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn load(&self, fragment: FragmentId, key: u64) -> Answer<'_, Option<Vec<u8>>>;

    /// Nobody will load what is stored under these keys of `fragment`: removes it, if there is anything. Whoever asks
    /// stores nothing under them any more.
    ///
    /// # Errors
    /// All of [`ServiceError`]; some of it may be left then, which does no harm but to the room that it takes.
    fn forget(&self, fragment: FragmentId, keys: Range<u64>) -> Answer<'_, ()>;
}

/// What a place on the roster is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// Who leads this fragment.
    Lease(FragmentId),
    /// Whether this process is there.
    Present(ProcessId),
}

/// A place on the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is about.
    pub cell: Cell,
    /// Who holds it; `None` if it was given back.
    pub holder: Option<ProcessId>,
    /// Another one after each write, never 0. Not in any order across cells.
    pub revision: u64,
}

/// Who leads what, and who is there.
///
/// Promises little, for it decides only who tries: a write counts if nobody wrote between, as far as it knows.
/// It has no notion of time. Whoever holds a place writes it again and again, and who sees it unchanged for long takes
/// it: see [`crate::shares::Shares`].
pub trait Roster: Send + Sync {
    /// All places that were ever written and not forgotten, in any order, perhaps not the newest.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn look(&self) -> Answer<'_, Vec<Entry>>;

    /// Writes a place if its revision is `expect`, 0 for one that is not there; its new revision, or `None` if it has
    /// another.
    ///
    /// # Errors
    /// All of [`ServiceError`]; after [`ServiceError::Silent`] it may be written.
    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> Answer<'_, Option<u64>>;
}

/// What owners and gateways tell each other.
///
/// Promises nothing: it may lose, repeat and reorder. What arrives is whole.
pub trait Bus: Send + Sync {
    /// Tells all gateways of `fragment`.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn tell<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> Answer<'a, ()>;

    /// Tells whoever leads `fragment`.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> Answer<'a, ()>;

    /// What gateways of `fragment` are told from now on, until the inbox is dropped.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn notices(&self, fragment: FragmentId) -> Answer<'_, Inbox<Notice>>;

    /// What the owner of `fragment` is told from now on, until the inbox is dropped.
    ///
    /// # Errors
    /// All of [`ServiceError`].
    fn replies(&self, fragment: FragmentId) -> Answer<'_, Inbox<Reply>>;
}

/// The four, as a process has them.
#[derive(Clone)]
pub struct Services {
    /// Records.
    pub tape: Arc<dyn Tape>,
    /// States.
    pub blobs: Arc<dyn Blobs>,
    /// Leases.
    pub roster: Arc<dyn Roster>,
    /// Messages.
    pub bus: Arc<dyn Bus>,
}
