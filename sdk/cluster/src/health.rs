//! Health of the services, derived from the results of this process's requests.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::cluster::{Notice, ProcessId, Record, Reply};
use archipelago_core::wire::{FragmentId, Millis};
use tokio::time::sleep;

use crate::retry::MonotonicClock;
use crate::service::{Blobs, Bus, Cell, Entry, Inbox, Roster, ServiceError, ServiceFuture, Services, Tape};

/// Time of repeated errors after which a service is reported as failing, in milliseconds. Requests are retried
/// meanwhile.
const LASTING_MS: u64 = 3_000;
/// Time without requests after which a failure is forgotten, in milliseconds. Drivers retry far sooner.
const FORGOTTEN_MS: u64 = 60_000;
/// Interval between checks of the storage, for a process that does not use it otherwise.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// Key that has no blob, since records are numbered from 1.
const NO_KEY: u64 = u64::MAX;

/// Kind of a request to a service.
#[derive(Clone, Copy)]
enum RequestKind {
    Append,
    Read,
    Store,
    Load,
    List,
    Write,
    Send,
    Subscribe,
}

impl RequestKind {
    const ALL: [Self; 8] = [
        Self::Append,
        Self::Read,
        Self::Store,
        Self::Load,
        Self::List,
        Self::Write,
        Self::Send,
        Self::Subscribe,
    ];
}

/// State of one kind of request.
#[derive(Clone, Copy, Default)]
struct RequestErrors {
    /// Times of the first and the last error since the last success.
    errors: Option<(Millis, Millis)>,
    what: Option<Symptom>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symptom {
    Silent,
    Denied,
    Full,
    ReadOnly,
    Other,
}

/// Failing service and its symptom. It has no address, because everyone may read it; the log has the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceFault {
    is_storage: bool,
    what: Symptom,
}

impl fmt::Display for ServiceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = if self.is_storage { "the storage" } else { "NATS" };
        let what = match self.what {
            Symptom::Silent => "does not answer",
            Symptom::Denied => "refuses this process",
            Symptom::Full => "is full",
            Symptom::ReadOnly => "is read-only",
            Symptom::Other => "holds unexpected data",
        };
        write!(f, "{whom} {what}")
    }
}

/// Recorded health of a process's services.
#[derive(Clone)]
pub struct Health {
    clock: MonotonicClock,
    seen: Arc<Mutex<[RequestErrors; RequestKind::ALL.len()]>>,
}

impl Health {
    fn new() -> Self {
        Self { clock: MonotonicClock::start(), seen: Arc::default() }
    }

    /// Returns the oldest failure that lasts, if any: a service is reported after `LASTING_MS` of errors.
    #[must_use]
    pub fn trouble(&self) -> Option<ServiceFault> {
        self.fault_at(self.clock.now())
    }

    fn fault_at(&self, now: Millis) -> Option<ServiceFault> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = RequestKind::ALL.into_iter().zip(seen).filter_map(|(kind, seen)| {
            let ((since, newest), what) = (seen.errors?, seen.what?);
            let is_lasting = now.since(since) >= LASTING_MS && now.since(newest) < FORGOTTEN_MS;
            let is_storage = matches!(kind, RequestKind::Store | RequestKind::Load);
            is_lasting.then_some((since, ServiceFault { is_storage, what }))
        });
        lasting.min_by_key(|(since, _)| *since).map(|(_, trouble)| trouble)
    }

    /// Checks the storage periodically, forever. Otherwise, a process that only serves learners would not notice a
    /// failure of the storage while there are no merges.
    pub async fn attend(self, services: Services, fragment: FragmentId) {
        loop {
            sleep(POLL_EVERY).await;
            let found = services.blobs.load(fragment, NO_KEY).await;
            // Some stores deny access to a missing object for users who may not list.
            let found = found.err().filter(ServiceError::is_passing);
            self.note(RequestKind::Load, self.clock.now(), found.as_ref());
        }
    }

    fn note(&self, kind: RequestKind, now: Millis, error: Option<&ServiceError>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut seen[kind as usize];
        *seen = match error {
            None => RequestErrors::default(),
            Some(error) => {
                let since = seen.errors.map_or(now, |(since, _)| since);
                RequestErrors { errors: Some((since, now)), what: Some(fault(error)) }
            }
        };
    }
}

fn fault(error: &ServiceError) -> Symptom {
    match error {
        ServiceError::Silent { .. } => Symptom::Silent,
        ServiceError::Denied { .. } => Symptom::Denied,
        ServiceError::Full { .. } => Symptom::Full,
        ServiceError::ReadOnly { .. } => Symptom::ReadOnly,
        ServiceError::Missing { .. }
        | ServiceError::Foreign { .. }
        | ServiceError::Damaged { .. }
        | ServiceError::Setting { .. } => Symptom::Other,
    }
}

/// Wraps `services` so that the results of all requests are recorded in the returned health.
#[must_use]
pub fn watched(services: Services) -> (Services, Health) {
    let health = Health::new();
    let watched = Arc::new(MonitoredServices { services, health: health.clone() });
    let services = Services {
        tape: Arc::<MonitoredServices>::clone(&watched),
        blobs: Arc::<MonitoredServices>::clone(&watched),
        roster: Arc::<MonitoredServices>::clone(&watched),
        bus: watched,
    };
    (services, health)
}

struct MonitoredServices {
    services: Services,
    health: Health,
}

impl MonitoredServices {
    fn note<'a, T: Send + 'a>(
        &'a self,
        kind: RequestKind,
        answer: ServiceFuture<'a, T>,
    ) -> ServiceFuture<'a, T> {
        Box::pin(async move {
            let result = answer.await;
            self.health.note(kind, self.health.clock.now(), result.as_ref().err());
            result
        })
    }
}

impl Tape for MonitoredServices {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>> {
        self.note(RequestKind::Append, self.services.tape.append(fragment, expect, record))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>> {
        self.note(RequestKind::Read, self.services.tape.read(fragment, after))
    }

    fn newest(&self, fragment: FragmentId) -> ServiceFuture<'_, u64> {
        self.note(RequestKind::Read, self.services.tape.newest(fragment))
    }
}

impl Blobs for MonitoredServices {
    fn store(&self, fragment: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> ServiceFuture<'_, bool> {
        self.note(RequestKind::Store, self.services.blobs.store(fragment, key, bytes))
    }

    fn load(&self, fragment: FragmentId, key: u64) -> ServiceFuture<'_, Option<Vec<u8>>> {
        self.note(RequestKind::Load, self.services.blobs.load(fragment, key))
    }

    fn forget(&self, fragment: FragmentId, keys: Range<u64>) -> ServiceFuture<'_, ()> {
        // Deletions are not recorded, because a process works without the permission to delete.
        self.services.blobs.forget(fragment, keys)
    }
}

impl Roster for MonitoredServices {
    fn list(&self) -> ServiceFuture<'_, Vec<Entry>> {
        self.note(RequestKind::List, self.services.roster.list())
    }

    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> ServiceFuture<'_, Option<u64>> {
        self.note(RequestKind::Write, self.services.roster.write(cell, holder, expect))
    }
}

impl Bus for MonitoredServices {
    fn notify<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> ServiceFuture<'a, ()> {
        self.note(RequestKind::Send, self.services.bus.notify(fragment, notice))
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> ServiceFuture<'a, ()> {
        self.note(RequestKind::Send, self.services.bus.reply(fragment, reply))
    }

    fn notices(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Notice>> {
        self.note(RequestKind::Subscribe, self.services.bus.notices(fragment))
    }

    fn replies(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Reply>> {
        self.note(RequestKind::Subscribe, self.services.bus.replies(fragment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Local;

    fn silent() -> ServiceError {
        ServiceError::Silent { place: "nats://secret".into(), detail: "timed out".into() }
    }

    /// Goal: a failure is reported once it lasts, until the next success, and without an address.
    #[test]
    fn lasting_failure_is_reported_until_a_success() {
        let health = Health::new();
        let at = |s: u64| Millis(1_000 * s);
        health.note(RequestKind::Read, at(0), Some(&silent()));
        assert_eq!(health.fault_at(at(2)), None);
        health.note(
            RequestKind::Store,
            at(1),
            Some(&ServiceError::Full { place: "s3".into(), detail: "".into() }),
        );
        health.note(RequestKind::Read, at(4), Some(&silent()));
        assert_eq!(health.fault_at(at(4)).unwrap().to_string(), "NATS does not answer");
        health.note(RequestKind::Read, at(5), None);
        assert_eq!(health.fault_at(at(5)).unwrap().to_string(), "the storage is full");
        assert_eq!(health.fault_at(at(61)), None, "nobody asks any more");
    }

    /// Goal: requests of every kind are recorded.
    #[tokio::test]
    async fn requests_of_every_kind_are_recorded() {
        let (services, health) = watched(Local::services());
        let marked = |kind: RequestKind| {
            health.note(kind, Millis(0), Some(&silent()));
            assert!(health.fault_at(Millis(LASTING_MS)).is_some());
        };
        let trouble = || health.fault_at(Millis(LASTING_MS));
        let (fragment, record) = (FragmentId(0), Record::Finished);
        marked(RequestKind::Append);
        services.tape.append(fragment, 0, &record).await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::Read);
        services.tape.read(fragment, 0).await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::Read);
        services.tape.newest(fragment).await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::Store);
        services.blobs.store(fragment, 1, Arc::default()).await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::Load);
        services.blobs.load(fragment, 1).await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::List);
        services.roster.list().await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::Write);
        services.roster.write(Cell::Lease(fragment), None, 0).await.unwrap();
        assert_eq!(trouble(), None);
        marked(RequestKind::Subscribe);
        services.bus.notices(fragment).await.unwrap();
        assert_eq!(trouble(), None);
    }
}
