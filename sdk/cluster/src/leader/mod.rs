//! Process that leads fragments. It claims free fragments up to its share, and releases them on a stop.

mod fragment;
mod initial_states;
mod tasks;

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_core::cluster::{AdminCommands, LeaderTerms, ProcessId};
use archipelago_core::wire::{FragmentId, Millis};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::assignment::{Shares, Write};
use crate::clock::{Clock, ms};
use crate::retry::Retry;
use crate::service::{Entry, Services};
pub use initial_states::InitialStates;
use tasks::LeaderTasks;

/// Roster polls during one lease.
const LOOKS_A_LEASE: u64 = 5;
/// Time limit for the release of all fragments on a stop.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Settings of an owner process.
#[derive(Clone, Debug)]
pub struct LeaderSettings {
    /// Random id of this process, unique over the whole run.
    pub process: ProcessId,
    /// Terms of each fragment that the process may lead. Their process is replaced by the one above.
    pub fragments: Vec<LeaderTerms>,
    /// Source of initial states, used when the process leads a fragment without merges.
    pub beginnings: InitialStates,
    /// Maximum number of fragments led at once, by the machine's capacity; `usize::MAX` for no limit.
    pub lead_max: usize,
    /// Duration of a lease without renewal, in milliseconds, the same for all processes; at least 5. A dead owner is
    /// replaced after a little more than that.
    pub lease_ms: u64,
    /// Interval of the owners' ticks in milliseconds, at least 1.
    pub tick_ms: u64,
    /// Commands in force. After the sender is dropped, they no longer change.
    pub orders: watch::Receiver<AdminCommands>,
}

/// Leads fragments until `stop` resolves, and then releases them, so that other processes need not wait for the end of
/// a lease.
///
/// Each fragment has one task, which also computes the merges; use a runtime with several threads. No error of a
/// service ends it: errors are logged, and the service is asked again with growing pauses.
pub async fn own(services: Services, settings: LeaderSettings, stop: impl Future<Output = ()> + Send) {
    let LeaderSettings { process, fragments, beginnings, lead_max, lease_ms, tick_ms, orders } = settings;
    let clock = Clock::start();
    let fragments: BTreeMap<FragmentId, LeaderTerms> = fragments
        .into_iter()
        .map(|terms| (terms.rounds.fragment, LeaderTerms { process, ..terms }))
        .collect();
    let shares =
        Shares::new(process, fragments.keys().copied(), lease_ms.max(LOOKS_A_LEASE)).at_most(lead_max);
    let (there, led) = (services.clone(), fragments.keys().copied().collect::<Vec<_>>());
    let crew = LeaderTasks::new(led, move |fragment, lease| {
        let told = (lease, orders.clone());
        let run = (fragments[&fragment].clone(), beginnings.clone());
        fragment::lead(there.clone(), run, clock, told, tick_ms.max(1))
    });
    let mut desk = LeaderLoop { services, clock, shares, crew, patience: Retry::default() };
    let mut beat = interval(ms(lease_ms.max(LOOKS_A_LEASE) / LOOKS_A_LEASE));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = beat.tick() => {}
        }
        tokio::select! {
            () = &mut stop => break,
            () = desk.beat(ms(lease_ms)) => {}
        }
    }
    // All tasks here end before other processes may lead.
    let writes = desk.shares.leave();
    desk.crew.end().await;
    let services = desk.services;
    let leave = async {
        for Write { cell, holder, expect } in writes {
            if let Err(error) = services.roster.write(cell, holder, expect).await {
                tracing::warn!("cannot give up leadership; it ends with the lease: {error}");
            }
        }
    };
    if timeout(LEAVE_WITHIN, leave).await.is_err() {
        tracing::warn!(
            "cannot give up leadership, because the roster does not answer; it ends with the lease"
        );
    }
}

/// State of the process that claims leases.
struct LeaderLoop<L> {
    services: Services,
    clock: Clock,
    shares: Shares,
    crew: LeaderTasks<L>,
    patience: Retry,
}

impl<L, F> LeaderLoop<L>
where
    L: Fn(FragmentId, watch::Receiver<Option<Millis>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// Reads the roster and writes the changes, within `limit`.
    async fn beat(&mut self, limit: Duration) {
        for fragment in self.crew.renew() {
            tracing::error!("fragment {fragment}: leading it failed unexpectedly, and starts again");
            let given_back = self.shares.give_back(fragment);
            self.put(given_back.into_iter().collect(), limit).await;
        }
        let looked = match timeout(limit, self.services.roster.look()).await {
            Ok(looked) => self.patience.note(self.clock.now(), looked),
            Err(_) => None,
        };
        if let Some(entries) = looked {
            self.write(&entries, limit).await;
        }
        self.tell();
    }

    async fn write(&mut self, entries: &[Entry], limit: Duration) {
        let before = self.shares.left();
        let writes = self.shares.look(self.clock.now(), entries);
        let left = self.shares.left();
        if left > 0 && before == 0 {
            tracing::warn!(
                "{left} fragments have no leader, and this process leads as many as it may: start another owner, or \
                 raise --lead-max"
            );
        }
        // A released fragment stops here before other processes can see the release.
        self.tell();
        self.put(writes, limit).await;
    }

    async fn put(&mut self, writes: Vec<Write>, limit: Duration) {
        let mut asked = JoinSet::new();
        for write in writes {
            let (roster, at) = (self.services.roster.clone(), self.clock.now());
            asked.spawn(async move {
                let Write { cell, holder, expect } = write;
                (at, write, timeout(limit, roster.write(cell, holder, expect)).await)
            });
        }
        while let Some(done) = asked.join_next().await {
            let Ok((at, write, Ok(result))) = done else { continue };
            if let Some(revision) = self.patience.note(self.clock.now(), result) {
                self.shares.wrote(at, write, revision);
            }
        }
    }

    /// Publishes the lease end of each fragment.
    fn tell(&self) {
        let now = self.clock.now();
        self.crew.tell(|fragment| self.shares.until(now, fragment));
    }
}
