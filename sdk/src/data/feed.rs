//! From leases and shards to batches: what a learner trains on next.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::{DataSpec, LeaseGrant, LeaseId, RunSpec};

use super::order::ShardOrder;
use super::shard::{ShardError, ShardTokens};

/// Most leases held at once.
pub const LEASES_MAX: u32 = 64;

/// Most shards held at once.
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
    /// There are [`LEASES_MAX`] leases already.
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
/// held is bounded: [`LEASES_MAX`] leases and [`SHARDS_MAX`] shards.
#[derive(Clone, Debug)]
pub struct Feed {
    data: DataSpec,
    vocab: u32,
    context: u32,
    seed: u64,
    /// In order of the grants; finished ones stay until they are reported.
    leases: Vec<Held>,
    shards: BTreeMap<u32, Shard>,
    /// Counts uses of shards, to tell the least recent.
    uses: u64,
}

#[derive(Clone, Debug)]
struct Held {
    grant: LeaseGrant,
    order: ShardOrder,
    done: u32,
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
        }
    }

    /// Takes a lease, to be trained on after those already held. The same grant again changes nothing.
    ///
    /// # Errors
    /// - [`FeedError::UnknownShard`], [`FeedError::Range`]: it is for windows that do not exist.
    /// - [`FeedError::Conflict`]: the lease is held, for other windows.
    /// - [`FeedError::TooManyLeases`]: [`LEASES_MAX`] are held.
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
            return Err(FeedError::TooManyLeases { lease });
        }
        self.leases.push(Held { grant, order, done: 0 });
        Ok(())
    }

    /// Drops all leases but `leases`: after a reconnect, those that the syncer still knows.
    pub fn retain(&mut self, leases: &[LeaseId]) {
        self.leases.retain(|held| leases.contains(&held.grant.lease));
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
        let tokens = ShardTokens::parse(bytes, spec, self.data.token_bytes, self.vocab)
            .map_err(|error| FeedError::Shard { shard, error })?;
        self.uses += 1;
        self.shards.insert(shard, Shard { tokens, used: self.uses });
        self.make_room();
        Ok(())
    }

    /// Windows that can be trained on right now.
    #[must_use]
    pub fn ready_windows(&self) -> u64 {
        self.ready().map(|held| u64::from(held.left())).sum()
    }

    /// Windows of all leases that are still to be trained, whether their shard is here or not.
    #[must_use]
    pub fn left_windows(&self) -> u64 {
        self.leases.iter().map(|held| u64::from(held.left())).sum()
    }

    /// The next `batch` windows, `[batch, context + 1]`; they count as done from here on. `None`, and
    /// nothing changes, if fewer are ready: the learner is starved until a grant or a shard comes.
    ///
    /// A batch may span leases. A lease whose shard is still to come does not hold up those after it.
    pub fn next_batch(&mut self, batch: u32) -> Option<Vec<u32>> {
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

    /// Windows done of each lease held, by ascending lease, finished ones included.
    #[must_use]
    pub fn progress(&self) -> Vec<(LeaseId, u32)> {
        let mut progress: Vec<_> = self.leases.iter().map(|held| (held.grant.lease, held.done)).collect();
        progress.sort_unstable();
        progress
    }

    /// Drops the leases that `sent`, an earlier [`Feed::progress`], showed as finished.
    pub fn reported(&mut self, sent: &[(LeaseId, u32)]) {
        self.leases.retain(|held| !sent.contains(&(held.grant.lease, held.grant.windows)));
    }

    fn ready(&self) -> impl Iterator<Item = &Held> {
        self.leases.iter().filter(|held| self.shards.contains_key(&held.grant.shard))
    }

    /// The shards that unfinished leases wait for, in order, as many as may be held.
    fn wanted(&self) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let unfinished = self.leases.iter().filter(|held| held.left() > 0);
        unfinished
            .map(|held| held.grant.shard)
            .filter(|shard| seen.insert(*shard))
            .take(SHARDS_MAX as usize)
            .collect()
    }

    fn make_room(&mut self) {
        let wanted = self.wanted();
        while self.shards.len() > SHARDS_MAX as usize {
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
mod tests {
    use super::super::shard::{encode_shard, shard_spec};
    use super::super::windows;
    use super::*;
    use crate::wire::{ApplyPolicy, Code, ExchangeSpec, InnerSpec, ModelSpec, ShardSpec};

    const CONTEXT: u32 = 8;

    /// Shards whose tokens say where they are from: 100 · shard + place.
    fn shard_bytes(shard: u32) -> Vec<u8> {
        let tokens: Vec<u32> = (0..84).map(|place| 100 * shard + place).collect();
        encode_shard(&tokens, 2).unwrap()
    }

    fn feed(shards: u32) -> Feed {
        let specs = (0..shards).map(|shard| shard_spec(&shard_bytes(shard), 2).unwrap()).collect();
        Feed::new(&run(specs))
    }

    fn run(shards: Vec<ShardSpec>) -> RunSpec {
        RunSpec {
            model: ModelSpec {
                vocab: 1_000,
                d_model: 8,
                layers: 1,
                heads: 1,
                kv_heads: 1,
                d_ff: 8,
                context: CONTEXT,
                rope_theta: 1e4,
                norm_eps: 1e-5,
            },
            inner: InnerSpec {
                batch: 2,
                lr_max: 1e-3,
                lr_min_ratio: 0.1,
                warmup_tokens: 1,
                total_tokens: 2,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-8,
                weight_decay: 0.1,
                clip_norm: 1.0,
            },
            exchange: ExchangeSpec {
                fragments: 1,
                sync_every: 1,
                block: 64,
                code: Code::Int4,
                apply: ApplyPolicy::Overwrite,
            },
            data: DataSpec { token_bytes: 2, shards },
            seed: 7,
        }
    }

    fn grant(lease: u64, shard: u32, start: u32, windows: u32) -> LeaseGrant {
        LeaseGrant { lease: LeaseId(lease), epoch: 0, shard, start, windows }
    }

    #[test]
    fn refuses_grants_that_make_no_sense() {
        let mut feed = feed(2);
        assert_eq!(windows(84, CONTEXT), 9);
        let unknown = FeedError::UnknownShard { shard: 2, shards: 2 };
        assert_eq!(feed.grant(grant(1, 2, 0, 1)), Err(unknown.clone()));
        assert_eq!(feed.add_shard(2, vec![]), Err(unknown));
        for (start, windows) in [(0, 0), (0, 10), (9, 1), (u32::MAX, 1), (1, u32::MAX)] {
            let expected = FeedError::Range { lease: LeaseId(1), start, windows, shard_windows: 9 };
            assert_eq!(feed.grant(grant(1, 0, start, windows)), Err(expected));
        }
        feed.grant(grant(1, 0, 0, 9)).unwrap();
        feed.grant(grant(1, 0, 0, 9)).unwrap();
        assert_eq!(feed.grant(grant(1, 0, 0, 8)), Err(FeedError::Conflict { lease: LeaseId(1) }));
        assert_eq!(feed.left_windows(), 9);
        for lease in 2..=u64::from(LEASES_MAX) {
            feed.grant(grant(lease, 1, 0, 1)).unwrap();
        }
        assert_eq!(feed.grant(grant(99, 1, 0, 1)), Err(FeedError::TooManyLeases { lease: LeaseId(99) }));
        let error = ShardError::Length { found: 1, expected: 168 };
        assert_eq!(feed.add_shard(1, vec![0]), Err(FeedError::Shard { shard: 1, error }));
    }

    #[test]
    fn a_batch_spans_leases_and_starves_when_they_end() {
        let mut feed = feed(2);
        feed.grant(grant(5, 0, 0, 3)).unwrap();
        feed.grant(grant(4, 1, 0, 2)).unwrap();
        assert_eq!(feed.next_batch(1), None);
        feed.add_shard(0, shard_bytes(0)).unwrap();
        assert_eq!((feed.ready_windows(), feed.left_windows()), (3, 5));
        assert_eq!(feed.next_batch(4), None);
        feed.add_shard(1, shard_bytes(1)).unwrap();

        let batch = feed.next_batch(4).unwrap();
        let firsts: Vec<u32> = batch.chunks(9).map(|window| window[0] / 100).collect();
        assert_eq!(firsts, [0, 0, 0, 1]);
        for window in batch.chunks(9) {
            assert!(window.windows(2).all(|pair| pair[1] == pair[0] + 1), "{window:?}");
        }
        assert_eq!(feed.next_batch(2), None);
        assert_eq!(feed.next_batch(0), None);
        assert_eq!(feed.progress(), [(LeaseId(4), 1), (LeaseId(5), 3)]);
    }

    /// Goal: whatever the leases, an epoch's windows all come, each once.
    #[test]
    fn an_epoch_gives_each_window_once() {
        let mut feed = feed(1);
        feed.add_shard(0, shard_bytes(0)).unwrap();
        for (lease, start, windows) in [(1, 4, 5), (2, 0, 1), (3, 1, 3)] {
            feed.grant(grant(lease, 0, start, windows)).unwrap();
        }
        let mut targets: Vec<u32> = Vec::new();
        for _ in 0..3 {
            targets.extend(feed.next_batch(3).unwrap().chunks(9).flat_map(|window| &window[1..]));
        }
        targets.sort_unstable();
        targets.dedup();
        assert_eq!(targets.len(), 9 * 8);
        assert_eq!(targets[71] - targets[0], 71);
    }

    #[test]
    fn a_finished_lease_is_reported_before_it_goes() {
        let mut feed = feed(1);
        feed.add_shard(0, shard_bytes(0)).unwrap();
        feed.grant(grant(1, 0, 0, 2)).unwrap();
        feed.grant(grant(2, 0, 2, 2)).unwrap();
        feed.next_batch(1).unwrap();
        let sent = feed.progress();
        feed.next_batch(2).unwrap();
        feed.reported(&sent);
        let sent = feed.progress();
        assert_eq!(sent, [(LeaseId(1), 2), (LeaseId(2), 1)]);
        // Lease 2 ends after the report was written: it must stay for the next one.
        feed.next_batch(1).unwrap();
        feed.reported(&sent);
        assert_eq!(feed.progress(), [(LeaseId(2), 2)]);
        feed.retain(&[]);
        assert_eq!(feed.progress(), []);
    }

    #[test]
    fn holds_a_few_shards_and_asks_in_order() {
        let mut feed = feed(7);
        assert_eq!(feed.needs(), None);
        for (lease, shard) in (0..).zip([3, 1, 3, 0, 2, 4]) {
            feed.grant(grant(lease, shard, lease as u32, 1)).unwrap();
        }
        let mut asked = Vec::new();
        while let Some(shard) = feed.needs() {
            feed.add_shard(shard, shard_bytes(shard)).unwrap();
            asked.push(shard);
        }
        assert_eq!(asked, [3, 1, 0, 2]);
        // One that nobody waits for goes at once, as there is no room.
        feed.add_shard(6, shard_bytes(6)).unwrap();
        assert!(feed.shards.keys().eq(&[0, 1, 2, 3]));

        feed.next_batch(3).unwrap();
        assert_eq!(feed.needs(), Some(4));
        feed.add_shard(4, shard_bytes(4)).unwrap();
        assert_eq!(feed.shards.len(), SHARDS_MAX as usize);
        assert_eq!(feed.needs(), None);
        assert_eq!(feed.ready_windows(), 3);
    }
}
