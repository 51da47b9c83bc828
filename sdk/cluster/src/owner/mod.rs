//! A process that leads fragments: it claims those that nobody leads, up to its share, and gives them back on a stop.

mod beginnings;
mod crew;
mod fragment;

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_core::cluster::{Orders, OwnerTerms, ProcessId};
use archipelago_core::wire::{FragmentId, Millis};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock::{Clock, ms};
use crate::patience::Patience;
use crate::service::{Entry, Services};
use crate::shares::{Shares, Write};
pub use beginnings::Beginnings;
use crew::Crew;

/// Looks at the roster during one lease.
const LOOKS_A_LEASE: u64 = 5;
/// Time in which everything is given back on a stop.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What an owner's process knows.
#[derive(Clone, Debug)]
pub struct OwnerSettings {
    /// This process; another number than any other of the run has or had: a random one.
    pub process: ProcessId,
    /// Each fragment that it may lead; its process is replaced by the one above.
    pub fragments: Vec<OwnerTerms>,
    /// What they begin in, made once a fragment is led of which nothing is merged yet.
    pub beginnings: Beginnings,
    /// Most fragments that it leads at once, as its machine has room for; `usize::MAX` for all that nobody else leads.
    pub lead_max: usize,
    /// How long a lease lasts without being renewed, in milliseconds, the same for all; at least 5. A dead owner is
    /// followed after a little more than that.
    pub lease_ms: u64,
    /// Owners look at their watch after so many milliseconds, at least 1.
    pub tick_ms: u64,
    /// What the owner of the run has ordered; whoever drops the sender orders nothing more.
    pub orders: watch::Receiver<Orders>,
}

/// Leads fragments until `stop` is ready, and then gives them back, so that others need not wait for a lease to end.
///
/// One task for each fragment takes in what comes for it; merging is done there, so let the runtime have several
/// threads. No trouble with a service ends it: it is logged, and the service asked again, ever more seldom.
pub async fn own(services: Services, settings: OwnerSettings, stop: impl Future<Output = ()> + Send) {
    let OwnerSettings { process, fragments, beginnings, lead_max, lease_ms, tick_ms, orders } = settings;
    let clock = Clock::start();
    let fragments: BTreeMap<FragmentId, OwnerTerms> =
        fragments.into_iter().map(|terms| (terms.rounds.fragment, OwnerTerms { process, ..terms })).collect();
    let shares =
        Shares::new(process, fragments.keys().copied(), lease_ms.max(LOOKS_A_LEASE)).at_most(lead_max);
    let (there, led) = (services.clone(), fragments.keys().copied().collect::<Vec<_>>());
    let crew = Crew::new(led, move |fragment, lease| {
        let told = (lease, orders.clone());
        let run = (fragments[&fragment].clone(), beginnings.clone());
        fragment::lead(there.clone(), run, clock, told, tick_ms.max(1))
    });
    let mut desk = Desk { services, clock, shares, crew, patience: Patience::default() };
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
    // First nobody leads here any more, and then others may.
    let writes = desk.shares.leave();
    desk.crew.end().await;
    let services = desk.services;
    let leave = async {
        for Write { cell, holder, expect } in writes {
            if let Err(error) = services.roster.write(cell, holder, expect).await {
                tracing::warn!("what was led is given back when its lease ends: {error}");
            }
        }
    };
    if timeout(LEAVE_WITHIN, leave).await.is_err() {
        tracing::warn!("what was led is given back when its lease ends: the roster does not answer");
    }
}

/// Where leases are claimed.
struct Desk<L> {
    services: Services,
    clock: Clock,
    shares: Shares,
    crew: Crew<L>,
    patience: Patience,
}

impl<L, F> Desk<L>
where
    L: Fn(FragmentId, watch::Receiver<Option<Millis>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// Looks at the roster, and writes what is to be written, within `limit`.
    async fn beat(&mut self, limit: Duration) {
        for fragment in self.crew.renew() {
            tracing::error!("fragment {fragment}: leading it ended unexpectedly, and begins anew");
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
                "{left} fragments are led by nobody, and this process leads as many as it may: start another owner, \
                 or raise --lead-max"
            );
        }
        // What is given back is led no more before anybody can see that.
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

    /// Tells each fragment until when it is led here.
    fn tell(&self) {
        let now = self.clock.now();
        self.crew.tell(|fragment| self.shares.until(now, fragment));
    }
}
