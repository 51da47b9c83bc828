//! Whether the services answer, as those see it who ask them in this process.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::cluster::{Notice, ProcessId, Record, Reply};
use archipelago_core::wire::{FragmentId, Millis};
use tokio::time::sleep;

use crate::clock::Clock;
use crate::error::ServiceError;
use crate::service::{Answer, Blobs, Bus, Cell, Entry, Inbox, Roster, Services, Tape};

/// A question that nobody answered is asked again; who answers none for so long is in trouble, in milliseconds…
const LASTING_MS: u64 = 3_000;
/// …until nobody has asked for so long, in milliseconds. Drivers ask again far sooner.
const FORGOTTEN_MS: u64 = 60_000;
/// A process that asks the storage for nothing looks after so long whether it is there.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Under this key there is never anything: records are numbered from 1.
const NO_KEY: u64 = u64::MAX;

/// What is asked of the services.
#[derive(Clone, Copy)]
enum Question {
    Append,
    Read,
    Store,
    Load,
    Look,
    Write,
    Say,
    Listen,
}

impl Question {
    const ALL: [Self; 8] =
        [Self::Append, Self::Read, Self::Store, Self::Load, Self::Look, Self::Write, Self::Say, Self::Listen];
}

/// How a question of one kind was answered last.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The first and the newest of the answers that were errors, since there was another one.
    errors: Option<(Millis, Millis)>,
    what: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Silent,
    Denied,
    Full,
    ReadOnly,
    Other,
}

/// Which service does not do its part, and how that shows. It names no place: it is for everyone to read, and the log
/// has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    is_storage: bool,
    what: Fault,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = if self.is_storage { "the storage" } else { "NATS" };
        let what = match self.what {
            Fault::Silent => "does not answer",
            Fault::Denied => "refuses this process",
            Fault::Full => "is full",
            Fault::ReadOnly => "can only be read",
            Fault::Other => "does not hold what it should",
        };
        write!(f, "{whom} {what}")
    }
}

/// How the services of a process do.
#[derive(Clone)]
pub struct Health {
    clock: Clock,
    seen: Arc<Mutex<[Seen; Question::ALL.len()]>>,
}

impl Health {
    fn new() -> Self {
        Self { clock: Clock::start(), seen: Arc::default() }
    }

    /// What has lasted for some seconds by now, the oldest first.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble_at(self.clock.now())
    }

    fn trouble_at(&self, now: Millis) -> Option<Trouble> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = Question::ALL.into_iter().zip(seen).filter_map(|(question, seen)| {
            let ((since, newest), what) = (seen.errors?, seen.what?);
            let is_lasting = now.since(since) >= LASTING_MS && now.since(newest) < FORGOTTEN_MS;
            let is_storage = matches!(question, Question::Store | Question::Load);
            is_lasting.then_some((since, Trouble { is_storage, what }))
        });
        lasting.min_by_key(|(since, _)| *since).map(|(_, trouble)| trouble)
    }

    /// Asks the storage from time to time, without an end: a process that only faces learners asks it for nothing while
    /// nothing is merged.
    pub async fn attend(self, services: Services, fragment: FragmentId) {
        loop {
            sleep(LOOK_EVERY).await;
            let found = services.blobs.load(fragment, NO_KEY).await;
            // Some say no of what is not there to who may not list.
            let found = found.err().filter(ServiceError::is_passing);
            self.note(Question::Load, self.clock.now(), found.as_ref());
        }
    }

    fn note(&self, question: Question, now: Millis, error: Option<&ServiceError>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut seen[question as usize];
        *seen = match error {
            None => Seen::default(),
            Some(error) => {
                let since = seen.errors.map_or(now, |(since, _)| since);
                Seen { errors: Some((since, now)), what: Some(fault(error)) }
            }
        };
    }
}

fn fault(error: &ServiceError) -> Fault {
    match error {
        ServiceError::Silent { .. } => Fault::Silent,
        ServiceError::Denied { .. } => Fault::Denied,
        ServiceError::Full { .. } => Fault::Full,
        ServiceError::ReadOnly { .. } => Fault::ReadOnly,
        ServiceError::Missing { .. }
        | ServiceError::Foreign { .. }
        | ServiceError::Damaged { .. }
        | ServiceError::Setting { .. } => Fault::Other,
    }
}

/// The same services, and what all who ask them by these see of them.
#[must_use]
pub fn watched(services: Services) -> (Services, Health) {
    let health = Health::new();
    let watched = Arc::new(Watched { services, health: health.clone() });
    let services = Services {
        tape: Arc::<Watched>::clone(&watched),
        blobs: Arc::<Watched>::clone(&watched),
        roster: Arc::<Watched>::clone(&watched),
        bus: watched,
    };
    (services, health)
}

struct Watched {
    services: Services,
    health: Health,
}

impl Watched {
    fn note<'a, T: Send + 'a>(&'a self, question: Question, answer: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            let result = answer.await;
            self.health.note(question, self.health.clock.now(), result.as_ref().err());
            result
        })
    }
}

impl Tape for Watched {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> Answer<'a, Option<u64>> {
        self.note(Question::Append, self.services.tape.append(fragment, expect, record))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> Answer<'_, Vec<Record>> {
        self.note(Question::Read, self.services.tape.read(fragment, after))
    }

    fn newest(&self, fragment: FragmentId) -> Answer<'_, u64> {
        self.note(Question::Read, self.services.tape.newest(fragment))
    }
}

impl Blobs for Watched {
    fn store(&self, fragment: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> Answer<'_, bool> {
        self.note(Question::Store, self.services.blobs.store(fragment, key, bytes))
    }

    fn load(&self, fragment: FragmentId, key: u64) -> Answer<'_, Option<Vec<u8>>> {
        self.note(Question::Load, self.services.blobs.load(fragment, key))
    }

    fn forget(&self, fragment: FragmentId, keys: Range<u64>) -> Answer<'_, ()> {
        // Who may not remove anything can do all else.
        self.services.blobs.forget(fragment, keys)
    }
}

impl Roster for Watched {
    fn look(&self) -> Answer<'_, Vec<Entry>> {
        self.note(Question::Look, self.services.roster.look())
    }

    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> Answer<'_, Option<u64>> {
        self.note(Question::Write, self.services.roster.write(cell, holder, expect))
    }
}

impl Bus for Watched {
    fn tell<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> Answer<'a, ()> {
        self.note(Question::Say, self.services.bus.tell(fragment, notice))
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> Answer<'a, ()> {
        self.note(Question::Say, self.services.bus.reply(fragment, reply))
    }

    fn notices(&self, fragment: FragmentId) -> Answer<'_, Inbox<Notice>> {
        self.note(Question::Listen, self.services.bus.notices(fragment))
    }

    fn replies(&self, fragment: FragmentId) -> Answer<'_, Inbox<Reply>> {
        self.note(Question::Listen, self.services.bus.replies(fragment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Local;

    fn silent() -> ServiceError {
        ServiceError::Silent { place: "nats://secret".into(), detail: "timed out".into() }
    }

    /// Goal: trouble is what lasts, is over with the first answer, and is told without names of places.
    #[test]
    fn what_lasts_is_told_until_there_is_an_answer() {
        let health = Health::new();
        let at = |s: u64| Millis(1_000 * s);
        health.note(Question::Read, at(0), Some(&silent()));
        assert_eq!(health.trouble_at(at(2)), None);
        health.note(
            Question::Store,
            at(1),
            Some(&ServiceError::Full { place: "s3".into(), detail: "".into() }),
        );
        health.note(Question::Read, at(4), Some(&silent()));
        assert_eq!(health.trouble_at(at(4)).unwrap().to_string(), "NATS does not answer");
        health.note(Question::Read, at(5), None);
        assert_eq!(health.trouble_at(at(5)).unwrap().to_string(), "the storage is full");
        assert_eq!(health.trouble_at(at(61)), None, "nobody asks any more");
    }

    /// Goal: each question of each service is seen.
    #[tokio::test]
    async fn whoever_asks_is_seen() {
        let (services, health) = watched(Local::services());
        let marked = |question: Question| {
            health.note(question, Millis(0), Some(&silent()));
            assert!(health.trouble_at(Millis(LASTING_MS)).is_some());
        };
        let trouble = || health.trouble_at(Millis(LASTING_MS));
        let (fragment, record) = (FragmentId(0), Record::Finished);
        marked(Question::Append);
        services.tape.append(fragment, 0, &record).await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Read);
        services.tape.read(fragment, 0).await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Read);
        services.tape.newest(fragment).await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Store);
        services.blobs.store(fragment, 1, Arc::default()).await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Load);
        services.blobs.load(fragment, 1).await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Look);
        services.roster.look().await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Write);
        services.roster.write(Cell::Lease(fragment), None, 0).await.unwrap();
        assert_eq!(trouble(), None);
        marked(Question::Listen);
        services.bus.notices(fragment).await.unwrap();
        assert_eq!(trouble(), None);
    }
}
