//! Feed of a learner: turns leases and shards into batches.

use std::collections::BTreeMap;

use crate::wire::{DataSpec, LeaseGrant, LeaseId, RunSpec};

use super::order::ShardOrder;
use super::shard::{ShardError, ShardTokens};

/// Maximum number of leases held at once.
pub const LEASES_MAX: u32 = 64;

/// Maximum number of shards held at once, unless a batch needs more.
pub const SHARDS_MAX: u32 = 4;

/// Reason why a lease or a shard is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// The run has no such shard.
    #[error("shard {shard} does not exist, the run has {shards}")]
    UnknownShard {
        /// Index of the shard.
        shard: u32,
        /// Shards of the run.
        shards: u32,
    },
    /// The lease has no windows, or more than its shard.
    #[error("lease {lease} is for {windows} windows from {start} of a shard with {shard_windows}")]
    Range {
        /// The lease.
        lease: LeaseId,
        /// Its first window.
        start: u32,
        /// Its number of windows.
        windows: u32,
        /// Windows of the shard.
        shard_windows: u32,
    },
    /// A held lease was granted again with other contents.
    #[error("lease {lease} is already held, for other windows")]
    Conflict {
        /// The lease.
        lease: LeaseId,
    },
    /// `LEASES_MAX` leases are held already.
    #[error("lease {lease} exceeds the limit: {LEASES_MAX} are held already")]
    TooManyLeases {
        /// The lease.
        lease: LeaseId,
    },
    /// The bytes are not those of the shard.
    #[error("shard {shard}: {error}")]
    Shard {
        /// Index of the shard.
        shard: u32,
        /// Fault of the bytes.
        error: ShardError,
    },
}

/// Turns leased ranges into batches of windows, in the order of the grants.
///
/// The shell asks [`Feed::needs`] for the shard to fetch, and [`Feed::progress`] for the report. Memory is bounded by
/// `LEASES_MAX` leases, and by `SHARDS_MAX` shards or as many as a batch needs.
#[derive(Clone, Debug)]
pub struct Feed {
    data: DataSpec,
    vocab: u32,
    context: u32,
    seed: u64,
    /// Leases in the order of the grants. Finished ones stay after their report while there is room, because a report
    /// may be lost with its connection or in a crash of the syncer.
    leases: Vec<Held>,
    shards: BTreeMap<u32, Shard>,
    /// Counter of uses of shards, to find the least recent.
    uses: u64,
    /// Windows of the last requested batch.
    batch: u32,
}

#[derive(Clone, Debug)]
struct Held {
    grant: LeaseGrant,
    order: ShardOrder,
    done: u32,
    /// Whether it was reported as finished.
    is_told: bool,
}

#[derive(Clone, Debug)]
struct Shard {
    tokens: ShardTokens,
    used: u64,
}

impl Feed {
    /// Returns an empty feed for the shards, vocabulary, context and seed of the run.
    #[must_use]
    pub fn new(run: &RunSpec) -> Self {
        Self {
            data: run.data.clone(),
            vocab: run.model.vocab,
            context: run.model.context,
            seed: run.seed,
            leases: Vec::new(),
            shards: BTreeMap::new(),
            uses: 0,
            batch: 0,
        }
    }

    /// Adds a lease, to be trained on after those already held. A repeated grant changes nothing.
    ///
    /// # Errors
    /// - [`FeedError::UnknownShard`], [`FeedError::Range`]: the windows do not exist.
    /// - [`FeedError::Conflict`]: the lease is held, for other windows.
    /// - [`FeedError::TooManyLeases`]: `LEASES_MAX` are held.
    pub fn grant(&mut self, grant: LeaseGrant) -> Result<(), FeedError> {
        let LeaseGrant { lease, epoch, shard, start, windows } = grant;
        let shards = self.data.shards.len() as u32;
        let unknown = FeedError::UnknownShard { shard, shards };
        let spec = self.data.shards.get(shard as usize).ok_or(unknown)?;
        let order = ShardOrder::new(self.seed, epoch, shard, spec, self.context);
        let shard_windows = order.windows();
        if windows == 0 || start.checked_add(windows).is_none_or(|end| end > shard_windows) {
            return Err(FeedError::Range { lease, start, windows, shard_windows });
        }
        if let Some(held) = self.leases.iter().find(|held| held.grant.lease == lease) {
            return if held.grant == grant { Ok(()) } else { Err(FeedError::Conflict { lease }) };
        }
        if self.leases.len() >= LEASES_MAX as usize {
            let told = self.leases.iter().position(|held| held.is_told);
            self.leases.remove(told.ok_or(FeedError::TooManyLeases { lease })?);
        }
        self.leases.push(Held { grant, order, done: 0, is_told: false });
        Ok(())
    }

    /// Drops all leases except `leases`, those that the syncer knows after a reconnection. Finished leases among them
    /// are reported again.
    pub(crate) fn retain(&mut self, leases: &[LeaseId]) {
        self.leases.retain(|held| leases.contains(&held.grant.lease));
        self.leases.iter_mut().for_each(|held| held.is_told = false);
    }

    /// Returns the shard to fetch next, if any: the first one that a lease waits for, if the earlier ones leave room.
    #[must_use]
    pub fn needs(&self) -> Option<u32> {
        self.wanted().into_iter().find(|shard| !self.shards.contains_key(shard))
    }

    /// Adds the bytes of a shard, as fetched. Makes room by dropping shards that no lease waits for, the least recently
    /// used first.
    ///
    /// # Errors
    /// - [`FeedError::UnknownShard`]: the run has no such shard.
    /// - [`FeedError::Shard`]: the bytes are not those of the shard.
    pub fn add_shard(&mut self, shard: u32, bytes: Vec<u8>) -> Result<(), FeedError> {
        let shards = self.data.shards.len() as u32;
        let unknown = FeedError::UnknownShard { shard, shards };
        let spec = self.data.shards.get(shard as usize).ok_or(unknown)?;
        let tokens = ShardTokens::parse(bytes, spec, &self.data, self.vocab)
            .map_err(|error| FeedError::Shard { shard, error })?;
        self.uses += 1;
        self.shards.insert(shard, Shard { tokens, used: self.uses });
        self.make_room();
        Ok(())
    }

    /// Returns the number of windows that can be trained on now.
    #[must_use]
    pub(crate) fn ready_windows(&self) -> u64 {
        self.ready().map(|held| u64::from(held.left())).sum()
    }

    /// Returns the next `batch` windows, `[batch, context + 1]`, with given tokens marked as in [`crate::token`]. The
    /// windows count as trained from here on. If too few are ready, returns `None` and changes nothing: the learner is
    /// starved until a grant or a shard arrives.
    ///
    /// A batch may span leases. A lease without its shard does not hold up later ones.
    pub fn next_batch(&mut self, batch: u32) -> Option<Vec<u32>> {
        self.batch = batch;
        if batch == 0 || self.ready_windows() < u64::from(batch) {
            return None;
        }
        let length = self.context as usize + 1;
        let mut tokens = Vec::with_capacity(batch as usize * length);
        self.uses += 1;
        for held in &mut self.leases {
            let Some(shard) = self.shards.get_mut(&held.grant.shard) else { continue };
            while held.left() > 0 && tokens.len() < batch as usize * length {
                let start = held.order.start(held.grant.start + held.done).expect("checked by `grant`");
                tokens.extend(shard.tokens.iter(start as usize).take(length));
                held.done += 1;
                shard.used = self.uses;
            }
        }
        Some(tokens)
    }

    /// Returns the trained windows of each lease, by ascending lease, including finished ones that were not reported.
    #[must_use]
    pub fn progress(&self) -> Vec<(LeaseId, u32)> {
        let untold = self.leases.iter().filter(|held| !held.is_told);
        let mut progress: Vec<_> = untold.map(|held| (held.grant.lease, held.done)).collect();
        progress.sort_unstable();
        progress
    }

    /// Marks leases as reported that `sent`, an earlier [`Feed::progress`], showed as finished. They are not reported
    /// again on this connection.
    pub fn reported(&mut self, sent: &[(LeaseId, u32)]) {
        for held in &mut self.leases {
            held.is_told |= sent.contains(&(held.grant.lease, held.grant.windows));
        }
    }

    fn ready(&self) -> impl Iterator<Item = &Held> {
        self.leases.iter().filter(|held| self.shards.contains_key(&held.grant.shard))
    }

    /// Returns the shards that unfinished leases wait for, in order: `SHARDS_MAX` of them, and more if those do not
    /// fill a batch.
    fn wanted(&self) -> Vec<u32> {
        let (mut wanted, mut windows) = (Vec::new(), 0);
        for held in self.leases.iter().filter(|held| held.left() > 0) {
            if !wanted.contains(&held.grant.shard) {
                if wanted.len() >= SHARDS_MAX as usize && windows >= u64::from(self.batch) {
                    break;
                }
                wanted.push(held.grant.shard);
            }
            windows += u64::from(held.left());
        }
        wanted
    }

    fn make_room(&mut self) {
        let wanted = self.wanted();
        while self.shards.len() > wanted.len().max(SHARDS_MAX as usize) {
            let unwanted = self.shards.iter().filter(|(index, _)| !wanted.contains(index));
            let oldest = unwanted.min_by_key(|(_, shard)| shard.used).map(|(index, _)| *index);
            self.shards.remove(&oldest.expect("more are held than wanted"));
        }
    }
}

impl Held {
    fn left(&self) -> u32 {
        self.grant.windows - self.done
    }
}

#[cfg(test)]
mod tests;
