//! Batches for a single reader of a whole corpus.

use super::Corpus;
use archipelago_core::data::{self, Feed};
use archipelago_core::diloco::{LeaseError, LeasePool};
use archipelago_core::wire::{LearnerId, Millis, RunSpec};

/// Windows leased at a time, in batches.
const LEASE_BATCHES: u32 = 16;
const ALONE: LearnerId = LearnerId(1);

/// Reader of a run's windows, in the order in which its syncer would lease them.
pub(crate) struct Reader {
    feed: Feed,
    pool: LeasePool,
}

impl Reader {
    /// Creates a reader of the run's data, from the beginning.
    ///
    /// # Errors
    /// Those of [`LeasePool::new`].
    pub(crate) fn new(run: &RunSpec) -> Result<Self, LeaseError> {
        let windows = run.data.shards.iter().map(|shard| data::windows(shard.tokens, run.model.context));
        Ok(Self { feed: Feed::new(run), pool: LeasePool::new(windows.collect())? })
    }

    /// Returns the next `windows` windows, `[windows, context + 1]`; `corpus` is the run's own.
    pub(crate) fn next_batch(&mut self, corpus: &Corpus, windows: u32) -> Vec<u32> {
        loop {
            if let Some(tokens) = self.feed.next_batch(windows) {
                return tokens;
            }
            let progress = self.feed.progress();
            for &(lease, done) in &progress {
                self.pool.progress(ALONE, lease, done, Millis(u64::MAX));
            }
            self.feed.reported(&progress);
            let grant = self.pool.grant(ALONE, windows.saturating_mul(LEASE_BATCHES), 1, Millis(u64::MAX));
            self.feed.grant(grant).expect("the pool grants what exists");
            if let Some(shard) = self.feed.needs() {
                let bytes = corpus.shards[shard as usize].to_vec();
                self.feed.add_shard(shard, bytes).expect("the corpus's own shard");
            }
        }
    }
}
