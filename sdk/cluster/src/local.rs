//! The four services within one process, without installation, for a whole cluster in one program and for tests. The
//! data end with the process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use archipelago_core::cluster::{Notice, ProcessId, Record, Reply};
use archipelago_core::wire::FragmentId;
use tokio::sync::mpsc;

use crate::service::{
    Blobs, Bus, Cell, Entry, INBOX_MAX, Inbox, Roster, ServiceError, ServiceFuture, Services, Tape,
};

/// All four services.
#[derive(Debug, Default)]
pub struct Local {
    held: Mutex<LocalData>,
}

#[derive(Debug, Default)]
struct LocalData {
    tape: BTreeMap<FragmentId, Vec<Record>>,
    blobs: BTreeMap<(FragmentId, u64), Arc<Vec<u8>>>,
    roster: BTreeMap<Cell, Entry>,
    /// Newest revision of all cells.
    revision: u64,
    notices: BTreeMap<FragmentId, Vec<mpsc::Sender<Notice>>>,
    replies: BTreeMap<FragmentId, Vec<mpsc::Sender<Reply>>>,
}

impl Local {
    /// Returns the services of one new cluster.
    #[must_use]
    pub fn services() -> Services {
        let local = Arc::new(Self::default());
        Services {
            tape: Arc::<Self>::clone(&local),
            blobs: Arc::<Self>::clone(&local),
            roster: Arc::<Self>::clone(&local),
            bus: local,
        }
    }

    fn held(&self) -> MutexGuard<'_, LocalData> {
        // No code panics in the middle of a change of the data.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a future that is ready with `value`.
fn at_once<'a, T: Send + 'a>(value: T) -> ServiceFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, ServiceError>(value)))
}

/// Sends `value` to all listeners whose inbox is not full, and removes closed listeners.
fn spread<T: Clone>(listeners: &mut BTreeMap<FragmentId, Vec<mpsc::Sender<T>>>, to: FragmentId, value: &T) {
    if let Some(listeners) = listeners.get_mut(&to) {
        listeners.retain(|listener| !listener.is_closed());
        for listener in listeners {
            // If an inbox is full, the message is lost, as on any bus.
            let _ = listener.try_send(value.clone());
        }
    }
}

fn listen<T>(listeners: &mut BTreeMap<FragmentId, Vec<mpsc::Sender<T>>>, to: FragmentId) -> Inbox<T> {
    let (sender, inbox) = mpsc::channel(INBOX_MAX);
    listeners.entry(to).or_default().push(sender);
    inbox
}

impl Tape for Local {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>> {
        let mut held = self.held();
        let tape = held.tape.entry(fragment).or_default();
        let is_last = tape.len() as u64 == expect;
        if is_last {
            tape.push(record.clone());
        }
        at_once(is_last.then_some(expect + 1))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>> {
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        at_once(
            self.held()
                .tape
                .get(&fragment)
                .map_or_else(Vec::new, |tape| tape.get(after..).map_or_else(Vec::new, <[Record]>::to_vec)),
        )
    }

    fn newest(&self, fragment: FragmentId) -> ServiceFuture<'_, u64> {
        at_once(self.held().tape.get(&fragment).map_or(0, Vec::len) as u64)
    }
}

impl Blobs for Local {
    fn store(&self, fragment: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> ServiceFuture<'_, bool> {
        let mut held = self.held();
        let there = held.blobs.entry((fragment, key)).or_insert_with(|| Arc::clone(&bytes));
        at_once(*there == bytes)
    }

    fn load(&self, fragment: FragmentId, key: u64) -> ServiceFuture<'_, Option<Vec<u8>>> {
        at_once(self.held().blobs.get(&(fragment, key)).map(|bytes| bytes.to_vec()))
    }

    fn forget(&self, fragment: FragmentId, keys: Range<u64>) -> ServiceFuture<'_, ()> {
        let mut held = self.held();
        keys.for_each(|key| drop(held.blobs.remove(&(fragment, key))));
        at_once(())
    }
}

impl Roster for Local {
    fn list(&self) -> ServiceFuture<'_, Vec<Entry>> {
        at_once(self.held().roster.values().copied().collect())
    }

    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> ServiceFuture<'_, Option<u64>> {
        let mut held = self.held();
        if held.roster.get(&cell).map_or(0, |entry| entry.revision) != expect {
            return at_once(None);
        }
        held.revision += 1;
        let revision = held.revision;
        held.roster.insert(cell, Entry { cell, holder, revision });
        at_once(Some(revision))
    }
}

impl Bus for Local {
    fn notify<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> ServiceFuture<'a, ()> {
        spread(&mut self.held().notices, fragment, notice);
        at_once(())
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> ServiceFuture<'a, ()> {
        spread(&mut self.held().replies, fragment, reply);
        at_once(())
    }

    fn notices(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Notice>> {
        at_once(listen(&mut self.held().notices, fragment))
    }

    fn replies(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Reply>> {
        at_once(listen(&mut self.held().replies, fragment))
    }
}
