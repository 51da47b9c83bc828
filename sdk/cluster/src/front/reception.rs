//! Who introduced itself and is not taken in yet.
//!
//! Each gets its number first. One that comes back may have left an update with another gateway, and nobody knows yet
//! whether it is merged; that was for the round of its fragment that is under way now, or for an older one. So it waits
//! until the tape of each fragment has one record more than when it came: then whatever it left is settled, and its
//! account says how. It trains on meanwhile. That holds as long as no replica of a tape is a whole round behind the one
//! that a question before it saw.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_core::diloco::syncer::Input;
use archipelago_core::wire::{ConnId, FragmentId, Hello, LearnerId};
use tokio::task::{AbortHandle, JoinSet};

use crate::error::ServiceError;
use crate::numbers::number;
use crate::persist::persist;
use crate::service::Services;

/// The number of a record of each fragment.
type Numbers = BTreeMap<FragmentId, u64>;

/// Those who wait.
pub(super) struct Reception {
    services: Services,
    /// The newest record of each fragment that the syncer was told.
    told: Numbers,
    guests: BTreeMap<ConnId, Guest>,
    asked: JoinSet<(ConnId, Found)>,
}

struct Guest {
    hello: Box<Hello>,
    /// Ends what is asked for it.
    asking: AbortHandle,
    /// Its number, and the records that it waits for, once they are known.
    waits: Option<(LearnerId, Numbers)>,
}

/// What was found out about a guest.
enum Found {
    /// Its number, and if it comes back the newest record of each fragment.
    Number(LearnerId, Option<Numbers>),
    /// There is no number for it.
    Nothing,
}

/// What follows.
pub(super) enum Called {
    /// It is taken in.
    In(LearnerId, Box<Input>),
    /// It waits for the rounds under way.
    Waits(LearnerId),
}

impl Reception {
    /// One where nobody is.
    pub(super) fn new(services: Services, fragments: Vec<FragmentId>) -> Self {
        let told = fragments.into_iter().map(|fragment| (fragment, 0)).collect();
        Self { services, told, guests: BTreeMap::new(), asked: JoinSet::new() }
    }

    /// Somebody introduces itself by this connection.
    pub(super) fn introduce(&mut self, conn: ConnId, hello: Box<Hello>) {
        let services = self.services.clone();
        let fragments: Vec<FragmentId> = self.told.keys().copied().collect();
        let (identity, returns) = (hello.identity.fingerprint(), hello.run.is_some());
        let asking = self.asked.spawn(async move {
            let number = persist(|| async { number(&*services.blobs, identity).await }).await;
            let Some(number) = number else { return (conn, Found::Nothing) };
            let newest = match returns {
                true => Some(persist(|| newest(&services, &fragments)).await),
                false => None,
            };
            (conn, Found::Number(number, newest))
        });
        self.guests.insert(conn, Guest { hello, asking, waits: None });
    }

    /// What is found out next of anybody who still waits. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Called {
        loop {
            let Some(done) = self.asked.join_next().await else { return std::future::pending().await };
            let Ok((conn, found)) = done else { continue };
            let Some(guest) = self.guests.get_mut(&conn) else { continue };
            let Found::Number(learner, newest) = found else {
                tracing::error!("there is no number left for a learner: its identity collides with others'");
                self.guests.remove(&conn);
                continue;
            };
            // Whoever answered may be behind what the syncer was told.
            let told = |fragment: &FragmentId| self.told.get(fragment).copied().unwrap_or(0);
            let next = |(fragment, newest): (FragmentId, u64)| {
                (fragment, newest.max(told(&fragment)).saturating_add(1))
            };
            let needed: Numbers = newest.into_iter().flatten().map(next).collect();
            guest.waits = Some((learner, needed));
            // Whoever comes once more has left its older connections.
            self.guests.retain(|&older, guest| older >= conn || !guest.is(learner));
            return match self.take(conn) {
                Some((learner, input)) => Called::In(learner, Box::new(input)),
                None => Called::Waits(learner),
            };
        }
    }

    /// The syncer was told of this record: those who need not wait any more. Of one number nobody else waits.
    pub(super) fn reached(&mut self, fragment: FragmentId, seq: u64) -> Vec<(LearnerId, Input)> {
        self.told.insert(fragment, seq);
        let conns: Vec<ConnId> = self.guests.keys().copied().collect();
        conns.into_iter().filter_map(|conn| self.take(conn)).collect()
    }

    /// A connection is gone; the learner that waited on it, if it does on no other.
    pub(super) fn forget(&mut self, conn: ConnId) -> Option<LearnerId> {
        let guest = self.guests.remove(&conn)?;
        guest.asking.abort();
        let (learner, _) = guest.waits?;
        self.guests.values().all(|guest| !guest.is(learner)).then_some(learner)
    }

    /// Takes the guest in, if it has nothing to wait for.
    fn take(&mut self, conn: ConnId) -> Option<(LearnerId, Input)> {
        let (learner, needed) = self.guests.get(&conn)?.waits.as_ref()?;
        let is_told = |(fragment, needed): (&FragmentId, &u64)| {
            self.told.get(fragment).is_some_and(|told| told >= needed)
        };
        if !needed.iter().all(is_told) {
            return None;
        }
        let learner = *learner;
        let Guest { hello, .. } = self.guests.remove(&conn)?;
        Some((learner, Input::Introduced { conn, learner, hello }))
    }
}

impl Guest {
    fn is(&self, learner: LearnerId) -> bool {
        self.waits.as_ref().is_some_and(|(waits, _)| *waits == learner)
    }
}

/// The newest record of each of these fragments.
async fn newest(services: &Services, fragments: &[FragmentId]) -> Result<Numbers, ServiceError> {
    let mut asked = JoinSet::new();
    for &fragment in fragments {
        let tape = Arc::clone(&services.tape);
        asked.spawn(async move { Ok((fragment, tape.newest(fragment).await?)) });
    }
    let mut newest = Numbers::new();
    while let Some(done) = asked.join_next().await {
        let (fragment, last) =
            done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
        newest.insert(fragment, last);
    }
    Ok(newest)
}
