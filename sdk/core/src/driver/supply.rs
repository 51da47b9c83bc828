//! Training data of a learner: its leases, and the shards that they need.

use std::num::NonZeroU32;

use super::backoff::{Backoff, Doubling};
use crate::data::{Feed, FeedError, ShardForm};
use crate::wire::{RunId, RunSpec, Welcome};

/// The leases and shards of one run.
pub(super) struct Supply {
    plan: Option<Plan>,
    fetch: Option<Fetch>,
    backoff: Backoff,
}

/// Feed of the run that was joined.
struct Plan {
    run: RunId,
    spec: RunSpec,
    feed: Feed,
    /// Windows of one step, known once the engine is ready.
    batch: NonZeroU32,
}

/// Download of a shard. There is at most one at a time.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    shard: u32,
    /// Time of the next request in microseconds; `None` while a download is under way.
    retry_us: Option<u64>,
}

impl Supply {
    /// Returns an empty supply. `seed` is the seed of the random part of the retry waits.
    pub(super) fn new(waits: Doubling, seed: u64) -> Self {
        Self { plan: None, fetch: None, backoff: Backoff::new(waits, seed) }
    }

    /// Prepares for the run of `welcome`. Returns true if it differs from the previous run, whose leases and shards
    /// are then dropped.
    pub(super) fn plan(&mut self, welcome: &Welcome) -> bool {
        let same = |plan: &Plan| plan.run == welcome.run && plan.spec == welcome.spec;
        if self.plan.as_ref().is_some_and(same) {
            return false;
        }
        let spec = welcome.spec.clone();
        self.plan = Some(Plan { run: welcome.run, feed: Feed::new(&spec), spec, batch: NonZeroU32::MIN });
        self.fetch = None;
        true
    }

    /// Records the number of windows per step of the run's engine.
    pub(super) fn built(&mut self, batch: NonZeroU32) {
        if let Some(plan) = &mut self.plan {
            plan.batch = batch;
        }
    }

    /// Drops the run, its leases and its shards.
    pub(super) fn clear(&mut self) {
        (self.plan, self.fetch) = (None, None);
    }

    /// Returns the description of the run that was joined.
    pub(super) fn spec(&self) -> Option<&RunSpec> {
        self.plan.as_ref().map(|plan| &plan.spec)
    }

    /// Returns the leases and shards of the run that was joined.
    pub(super) fn feed(&mut self) -> Option<&mut Feed> {
        self.plan.as_mut().map(|plan| &mut plan.feed)
    }

    /// Returns the next batch, `[batch, context + 1]`, if enough windows are present.
    pub(super) fn next_batch(&mut self) -> Option<Vec<u32>> {
        let plan = self.plan.as_mut()?;
        plan.feed.next_batch(plan.batch.get())
    }

    /// Returns the shard to fetch now and its length in bytes, if a request is due.
    pub(super) fn next_fetch(&mut self, now_us: u64) -> Option<(u32, u64)> {
        let plan = self.plan.as_ref()?;
        let shard = plan.feed.needs()?;
        let early = |fetch: Fetch| fetch.shard == shard && fetch.retry_us.is_none_or(|at_us| at_us > now_us);
        if self.fetch.is_some_and(early) {
            return None;
        }
        self.fetch = Some(Fetch { shard, retry_us: None });
        let data = &plan.spec.data;
        let tokens = data.shards.get(shard as usize).map_or(0, |shard| shard.tokens);
        Some((shard, ShardForm::from(data).bytes(tokens)))
    }

    /// Adds the bytes of a shard.
    ///
    /// # Errors
    /// Those of [`Feed::add_shard`]. The shard is then requested again after a backoff.
    pub(super) fn add_shard(&mut self, now_us: u64, shard: u32, bytes: Vec<u8>) -> Result<(), FeedError> {
        let Some(feed) = self.feed() else { return Ok(()) };
        match feed.add_shard(shard, bytes) {
            Ok(()) => {
                self.fetch.take_if(|fetch| fetch.shard == shard);
                self.backoff.reset();
                Ok(())
            }
            Err(error) => {
                self.failed(now_us, shard);
                Err(error)
            }
        }
    }

    /// Schedules another request for the shard after a failed download.
    pub(super) fn failed(&mut self, now_us: u64, shard: u32) {
        if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.shard == shard) {
            fetch.retry_us = Some(now_us.saturating_add(1_000 * self.backoff.next_ms(0)));
        }
    }

    /// Requests a missing shard at once, because the syncer can be reached again.
    pub(super) fn retry_now(&mut self, now_us: u64) {
        if let Some(Fetch { retry_us: Some(retry_us), .. }) = &mut self.fetch {
            *retry_us = now_us.min(*retry_us);
        }
    }

    /// Returns the time of the next call to [`Self::next_fetch`], in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        let needed = self.plan.as_ref()?.feed.needs()?;
        self.fetch.filter(|fetch| fetch.shard == needed)?.retry_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Waits;
    use crate::wire::tests::welcome;

    #[test]
    fn the_same_run_with_another_spec_begins_anew() {
        let mut supply = Supply::new(Waits::default().backoff, 1);
        let first = welcome();
        assert!(supply.plan(&first) && !supply.plan(&first));
        let mut other = first.clone();
        other.spec.inner.batch += 1;
        assert!(supply.plan(&other));
        other.run = RunId(first.run.0 + 1);
        assert!(supply.plan(&other));
    }
}
