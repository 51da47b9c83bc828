//! From leases and shards to batches: what a learner trains on next.

use std::collections::BTreeMap;

use crate::wire::{DataSpec, LeaseGrant, LeaseId, RunSpec};

use super::order::ShardOrder;
use super::shard::{ShardError, ShardTokens};

/// Most leases held at once.
pub const LEASES_MAX: u32 = 64;

/// Most shards held at once, unless a batch takes more.
pub const SHARDS_MAX: u32 = 4;

/// Why a lease or a shard is of no use.
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
    /// A held lease was granted again as something else.
    #[error("lease {lease} is already held, for other windows")]
    Conflict {
        /// The lease.
        lease: LeaseId,
    },
    /// There are `LEASES_MAX` leases already.
    #[error("lease {lease} is one too many, {LEASES_MAX} are held")]
    TooManyLeases {
        /// The lease.
        lease: LeaseId,
    },
    /// The bytes are not the shard.
    #[error("shard {shard}: {error}")]
    Shard {
        /// Index of the shard.
        shard: u32,
        /// What is wrong with it.
        error: ShardError,
    },
}

/// Turns leased ranges into batches of windows, in order of the grants.
///
/// The shell asks [`Feed::needs`] which shard to fetch, and [`Feed::progress`] what to report. What is
/// held is bounded: `LEASES_MAX` leases, and `SHARDS_MAX` shards or as many as a batch takes.
#[derive(Clone, Debug)]
pub struct Feed {
    data: DataSpec,
    vocab: u32,
    context: u32,
    seed: u64,
    /// In order of the grants. Finished ones stay after they were reported, as long as there is room: a report may be
    /// lost with its connection, or with a syncer that crashes.
    leases: Vec<Held>,
    shards: BTreeMap<u32, Shard>,
    /// Counts uses of shards, to tell the least recent.
    uses: u64,
    /// Windows of the batch that was asked for last.
    batch: u32,
}

#[derive(Clone, Debug)]
struct Held {
    grant: LeaseGrant,
    order: ShardOrder,
    done: u32,
    /// It was reported as finished.
    is_told: bool,
}

#[derive(Clone, Debug)]
struct Shard {
    tokens: ShardTokens,
    used: u64,
}

impl Feed {
    /// Nothing held yet; the shards, vocabulary, context and seed of the run.
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

    /// Takes a lease, to be trained on after those already held. The same grant again changes nothing.
    ///
    /// # Errors
    /// - [`FeedError::UnknownShard`], [`FeedError::Range`]: it is for windows that do not exist.
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

    /// Drops all leases but `leases`: after a reconnect, those that the syncer still knows. What it does not know to be
    /// finished is told it again.
    pub(crate) fn retain(&mut self, leases: &[LeaseId]) {
        self.leases.retain(|held| leases.contains(&held.grant.lease));
        self.leases.iter_mut().for_each(|held| held.is_told = false);
    }

    /// The shard to fetch next, if any: the first that a lease waits for, as long as those before leave
    /// room for it.
    #[must_use]
    pub fn needs(&self) -> Option<u32> {
        self.wanted().into_iter().find(|shard| !self.shards.contains_key(shard))
    }

    /// Takes the bytes of a shard, as fetched. Makes room by dropping shards that no lease waits for,
    /// the least recently used first.
    ///
    /// # Errors
    /// - [`FeedError::UnknownShard`]: the run has no such shard.
    /// - [`FeedError::Shard`]: the bytes are not that shard.
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

    /// Windows that can be trained on right now.
    #[must_use]
    pub(crate) fn ready_windows(&self) -> u64 {
        self.ready().map(|held| u64::from(held.left())).sum()
    }

    /// The next `batch` windows, `[batch, context + 1]`, given tokens marked as in [`crate::token`]; they count as done
    /// from here on. `None`, and
    /// nothing changes, if fewer are ready: the learner is starved until a grant or a shard comes.
    ///
    /// A batch may span leases. A lease whose shard is still to come does not hold up those after it.
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

    /// Windows done of each lease held, by ascending lease, with finished ones that were not reported.
    #[must_use]
    pub fn progress(&self) -> Vec<(LeaseId, u32)> {
        let untold = self.leases.iter().filter(|held| !held.is_told);
        let mut progress: Vec<_> = untold.map(|held| (held.grant.lease, held.done)).collect();
        progress.sort_unstable();
        progress
    }

    /// The leases that `sent`, an earlier [`Feed::progress`], showed as finished are not reported again on this
    /// connection.
    pub fn reported(&mut self, sent: &[(LeaseId, u32)]) {
        for held in &mut self.leases {
            held.is_told |= sent.contains(&(held.grant.lease, held.grant.windows));
        }
    }

    fn ready(&self) -> impl Iterator<Item = &Held> {
        self.leases.iter().filter(|held| self.shards.contains_key(&held.grant.shard))
    }

    /// The shards that unfinished leases wait for, in order, as many as may be held: some, and more as long as there
    /// is no batch in them.
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
