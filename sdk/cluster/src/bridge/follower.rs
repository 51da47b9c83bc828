//! Follower of the tape: turns records into versions for learners. Each state is loaded once, in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::cluster::{FollowError, GatewayTerms, Record, follow};
use archipelago_core::diloco::syncer::Followed;
use archipelago_core::diloco::{Codec, FragmentState, MergeEntry, Segment, Version};
use archipelago_core::wire::FragmentId;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::persist::persist;
use crate::service::Services;

/// Time after which a missing or damaged state is loaded again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of states loaded at once. Each takes about fifty bytes a parameter until only Θ̂ is left. A late
/// joiner loads the states of all fragments.
const LOADED_MAX: usize = 2;

/// Next notification: fragment, number and content of a record.
type Told = (FragmentId, u64, Said);

/// Content of a record for processes that serve learners.
pub(super) enum Said {
    /// The fragment has a new version.
    Merged(Followed),
    /// No record follows this one.
    Finished,
    /// A round ended, and nothing else happened.
    Nothing,
}

/// Θ̂ as a state, and the change that leads to it.
type Led = (FragmentState, Vec<u8>);

/// Merge and the result of loading its state.
struct Sought {
    merge: Box<MergeEntry>,
    sum: u64,
    led: Option<Led>,
}

/// Tapes of all fragments, up to the records that the syncer knows.
pub(super) struct Follower {
    services: Services,
    lanes: BTreeMap<FragmentId, Lane>,
    jobs: JoinSet<(FragmentId, u64, Sought)>,
    turns: Arc<Semaphore>,
    ready: VecDeque<Told>,
}

struct Lane {
    segments: Arc<Vec<Segment>>,
    codec: Codec,
    /// Newest state that was loaded.
    state: FragmentState,
    queue: VecDeque<(u64, Record)>,
    is_busy: bool,
}

impl Follower {
    /// Creates a follower before any record. Fragments are in their `initial` states, of which only Θ̂ matters.
    pub(super) fn new(
        services: Services,
        fragments: &[(FragmentId, GatewayTerms)],
        initial: Vec<FragmentState>,
    ) -> Self {
        let lane = |((fragment, terms), state): (&(FragmentId, GatewayTerms), FragmentState)| {
            let (segments, codec) = (Arc::clone(&terms.segments), terms.codec);
            (*fragment, Lane { segments, codec, state, queue: VecDeque::new(), is_busy: false })
        };
        let lanes = fragments.iter().zip(initial).map(lane).collect();
        let turns = Arc::new(Semaphore::new(LOADED_MAX));
        Self { services, lanes, jobs: JoinSet::new(), turns, ready: VecDeque::new() }
    }

    /// Adds the next record of `fragment`.
    pub(super) fn add(&mut self, fragment: FragmentId, seq: u64, record: Record) {
        if let Some(lane) = self.lanes.get_mut(&fragment) {
            lane.queue.push_back((seq, record));
            self.step(fragment);
        }
    }

    /// Returns the next notification. Cancel safe.
    pub(super) async fn next(&mut self) -> Told {
        loop {
            if let Some(told) = self.ready.pop_front() {
                return told;
            }
            let Some(done) = self.jobs.join_next().await else { return std::future::pending().await };
            let (fragment, seq, Sought { merge, sum, led }) =
                done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
            let Some(lane) = self.lanes.get_mut(&fragment) else { continue };
            lane.is_busy = false;
            match led {
                Some(led) => {
                    lane.state = led.0.clone();
                    let said = Said::Merged(Followed { merge: *merge, led: Some(led) });
                    self.ready.push_back((fragment, seq, said));
                }
                // A missing state is loaded again unless a newer one exists; the old one may have been removed for that
                // reason.
                None => {
                    if !lane.has_newer() {
                        tracing::warn!(%fragment, seq, "the newest state is missing from the storage, or incomplete");
                    }
                    lane.queue.push_front((seq, Record::Merged { merge, state: sum }));
                }
            }
            self.step(fragment);
        }
    }

    /// Processes the records of a fragment until a state must be loaded.
    fn step(&mut self, fragment: FragmentId) {
        let Some(lane) = self.lanes.get_mut(&fragment).filter(|lane| !lane.is_busy) else { return };
        while let Some((seq, record)) = lane.queue.pop_front() {
            let Record::Merged { merge, state: sum } = record else {
                let is_last = matches!(record, Record::Finished);
                self.ready.push_back((fragment, seq, if is_last { Said::Finished } else { Said::Nothing }));
                continue;
            };
            if lane.has_newer() {
                // Learners skip to the newest version.
                let said = Said::Merged(Followed { merge: *merge, led: None });
                self.ready.push_back((fragment, seq, said));
                continue;
            }
            lane.is_busy = true;
            let (services, state) = (self.services.clone(), lane.state.clone());
            let (segments, codec) = (Arc::clone(&lane.segments), lane.codec);
            let turns = Arc::clone(&self.turns);
            self.jobs.spawn(async move {
                // The semaphore is never closed.
                let turn = turns.acquire_owned().await;
                let led = load(&services, (fragment, seq), state, &merge, sum, segments, codec).await;
                drop(turn);
                if led.is_none() {
                    sleep(AGAIN_AFTER).await;
                }
                (fragment, seq, Sought { merge, sum, led })
            });
            return;
        }
    }
}

impl Lane {
    /// Returns true if the queue holds a later merge.
    fn has_newer(&self) -> bool {
        self.queue.iter().any(|(_, later)| matches!(later, Record::Merged { .. }))
    }
}

/// Returns the Θ̂ of this record and the change that leads to it, or `None` if the state is missing or damaged.
async fn load(
    services: &Services,
    (fragment, seq): (FragmentId, u64),
    before: FragmentState,
    merge: &MergeEntry,
    sum: u64,
    segments: Arc<Vec<Segment>>,
    codec: Codec,
) -> Option<Led> {
    let bytes = persist(|| services.blobs.load(fragment, seq)).await?;
    let merge = merge.clone();
    // Decoding a large state blocks.
    let work = spawn_blocking(move || {
        let followed = follow(&before, &merge, (&bytes, sum), &segments, codec);
        if let Err(error @ FollowError::Diverged { .. }) = &followed {
            tracing::error!("{error}");
            // The state is right in any case; learners fetch it as a whole.
            let elsewhere = FragmentState { version: Version(u64::MAX), ..before };
            return follow(&elsewhere, &merge, (&bytes, sum), &segments, codec);
        }
        followed
    });
    match work.await {
        Ok(Ok(led)) => Some(led),
        Ok(Err(error)) => {
            tracing::error!("{error}");
            None
        }
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // The runtime is shutting down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use archipelago_core::cluster::GatewayId;
    use archipelago_core::diloco::{MergeRule, OuterSpec};
    use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, Round};

    use super::*;
    use crate::local::Local;
    use crate::service::{Answer, Blobs};

    /// Slow, empty blob store that counts simultaneous requests.
    #[derive(Default)]
    struct Empty {
        now: AtomicUsize,
        most: AtomicUsize,
        all: AtomicUsize,
    }

    impl Blobs for Empty {
        fn store(&self, _: FragmentId, _: u64, _: Arc<Vec<u8>>) -> Answer<'_, bool> {
            Box::pin(std::future::ready(Ok(true)))
        }

        fn load(&self, _: FragmentId, _: u64) -> Answer<'_, Option<Vec<u8>>> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            Box::pin(async {
                sleep(Duration::from_millis(20)).await;
                self.now.fetch_sub(1, Ordering::SeqCst);
                self.all.fetch_add(1, Ordering::SeqCst);
                Ok(None)
            })
        }

        fn forget(&self, _: FragmentId, _: std::ops::Range<u64>) -> Answer<'_, ()> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    fn merged(fragment: FragmentId) -> Record {
        let (round, base, version) = (Round(1), Version(0), Version(1));
        let merge = MergeEntry {
            round,
            fragment,
            base,
            version,
            rule: MergeRule::Radial,
            outer: OuterSpec::default(),
            radii: Vec::new(),
            parts: Vec::new(),
            absent: 0.0,
            experts: Vec::new(),
            checksum: 0,
            digest: 0,
            norm: 0.0,
        };
        Record::Merged { merge: Box::new(merge), state: 0 }
    }

    /// Goal: a late joiner loads the states of all fragments, but not all at once.
    #[tokio::test]
    async fn few_states_are_loaded_at_once() {
        let apply = ApplyPolicy::Keep { residue: true };
        let exchange = ExchangeSpec { fragments: 6, sync_every: 6, block: 8, code: Code::Int4, apply };
        let codec = Codec::new(&exchange).unwrap();
        let fragments: Vec<_> = (0..6).map(FragmentId).collect();
        let terms = |&fragment: &FragmentId| {
            (fragment, GatewayTerms { gateway: GatewayId(1), segments: Arc::default(), codec })
        };
        let terms: Vec<_> = fragments.iter().map(terms).collect();
        let blobs = Arc::new(Empty::default());
        let services = Services { blobs: Arc::<Empty>::clone(&blobs), ..Local::services() };
        let initial = fragments.iter().map(|_| FragmentState::new(Vec::new())).collect();
        let mut following = Follower::new(services, &terms, initial);
        fragments.iter().for_each(|&fragment| following.add(fragment, 1, merged(fragment)));
        // The store is empty, so the follower never has a notification.
        let looked = async {
            while blobs.all.load(Ordering::SeqCst) < 6 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = following.next() => panic!("nothing is there"),
            () = looked => {}
        }
        assert_eq!(blobs.most.load(Ordering::SeqCst), LOADED_MAX);
    }
}
