//! Pending joins: learners that have introduced themselves but are not admitted yet.
//!
//! Each learner first gets its number. A returning learner may have left an update with another gateway, and the fate
//! of that update may still be open. The update belonged to the current round of its fragment, or to an older one. So
//! the learner waits until the tape of each fragment has one more record than on its return. Then each left update is
//! settled, and the learner's account has the fates. It trains meanwhile.
//!
//! This requires that no replica of a tape lags a whole round behind the replica of an earlier read.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_core::diloco::syncer::Input;
use archipelago_core::wire::{ConnId, FragmentId, Hello, LearnerId};
use tokio::task::{AbortHandle, JoinSet};

use crate::error::ServiceError;
use crate::learner_ids::number;
use crate::persist::persist;
use crate::service::Services;

/// Record number of each fragment.
type Numbers = BTreeMap<FragmentId, u64>;

/// Learners that wait for admission.
pub(super) struct PendingJoins {
    services: Services,
    /// Newest record of each fragment that the syncer knows.
    told: Numbers,
    guests: BTreeMap<ConnId, Guest>,
    asked: JoinSet<(ConnId, Found)>,
}

struct Guest {
    hello: Box<Hello>,
    /// Handle that cancels the request for this learner.
    asking: AbortHandle,
    /// Learner's number and the records that it waits for, once known.
    waits: Option<(LearnerId, Numbers)>,
}

/// Result of the request for a joining learner.
enum Found {
    /// Number of the learner; for a returning learner, also the newest record of each fragment.
    Number(LearnerId, Option<Numbers>),
    /// No number is available.
    Nothing,
}

/// Outcome of a join request.
pub(super) enum Called {
    /// The learner is admitted.
    In(LearnerId, Box<Input>),
    /// The learner waits for the current rounds.
    Waits(LearnerId),
}

impl PendingJoins {
    /// Creates an empty list of pending joins.
    pub(super) fn new(services: Services, fragments: Vec<FragmentId>) -> Self {
        let told = fragments.into_iter().map(|fragment| (fragment, 0)).collect();
        Self { services, told, guests: BTreeMap::new(), asked: JoinSet::new() }
    }

    /// Starts the join of a learner on this connection.
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

    /// Returns the next outcome of a pending join. Cancel safe.
    pub(super) async fn next(&mut self) -> Called {
        loop {
            let Some(done) = self.asked.join_next().await else { return std::future::pending().await };
            let Ok((conn, found)) = done else { continue };
            let Some(guest) = self.guests.get_mut(&conn) else { continue };
            let Found::Number(learner, newest) = found else {
                tracing::error!("no learner number is free for this identity: it collides with others");
                self.guests.remove(&conn);
                continue;
            };
            // The replica that answered may lag behind the syncer.
            let told = |fragment: &FragmentId| self.told.get(fragment).copied().unwrap_or(0);
            let next = |(fragment, newest): (FragmentId, u64)| {
                (fragment, newest.max(told(&fragment)).saturating_add(1))
            };
            let needed: Numbers = newest.into_iter().flatten().map(next).collect();
            guest.waits = Some((learner, needed));
            // A learner that joins again has abandoned its older connections.
            self.guests.retain(|&older, guest| older >= conn || !guest.is(learner));
            return match self.take(conn) {
                Some((learner, input)) => Called::In(learner, Box::new(input)),
                None => Called::Waits(learner),
            };
        }
    }

    /// Records that the syncer knows record `seq`. Returns the learners that no longer wait. Each learner waits on at
    /// most one connection.
    pub(super) fn reached(&mut self, fragment: FragmentId, seq: u64) -> Vec<(LearnerId, Input)> {
        self.told.insert(fragment, seq);
        let conns: Vec<ConnId> = self.guests.keys().copied().collect();
        conns.into_iter().filter_map(|conn| self.take(conn)).collect()
    }

    /// Removes a closed connection. Returns the learner that waited on it, unless it waits on another connection.
    pub(super) fn forget(&mut self, conn: ConnId) -> Option<LearnerId> {
        let guest = self.guests.remove(&conn)?;
        guest.asking.abort();
        let (learner, _) = guest.waits?;
        self.guests.values().all(|guest| !guest.is(learner)).then_some(learner)
    }

    /// Admits the learner on this connection if it has nothing to wait for.
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

/// Returns the number of the newest record of each of these fragments.
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
