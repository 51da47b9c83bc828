//! Feed of a learner: turns leases and shards into batches.

use std::collections::BTreeMap;

use crate::wire::{DataSpec, LeaseGrant, LeaseId, RunSpec};

use super::order::ShardOrder;
use super::shard::{ShardError, ShardTokens};

/// Maximum number of leases held at once.
pub const LEASES_MAX: u32 = 64;

/// Maximum number of shards held at once, unless one batch needs more.
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
    /// The lease has no windows, or its range exceeds the windows of the shard.
    #[error("lease {lease} is for {windows} windows from {start} of a shard with {shard_windows}")]
    Range {
        /// The lease.
        lease: LeaseId,
        /// First window of the lease.
        start: u32,
        /// Number of windows of the lease.
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

/// Turns leased windows into batches, in the order of the grants.
///
/// [`Feed::needs`] returns the shard to fetch, and [`Feed::progress`] the report on leases. Memory is bounded by
/// `LEASES_MAX` leases, and by `SHARDS_MAX` shards or as many as one batch needs.
#[derive(Clone, Debug)]
pub struct Feed {
    data: DataSpec,
    vocab: u32,
    context: u32,
    seed: u64,
    /// Leases in the order of the grants. A finished lease stays after its report until its slot is needed, because a
    /// report may be lost with its connection or in a crash of the syncer.
    leases: Vec<HeldLease>,
    shards: BTreeMap<u32, Shard>,
    /// Counter of uses of shards, to find the least recently used one.
    uses: u64,
    /// Windows of the last requested batch.
    batch: u32,
}

#[derive(Clone, Debug)]
struct HeldLease {
    grant: LeaseGrant,
    order: ShardOrder,
    done: u32,
    /// Whether the lease was reported as finished on this connection.
    is_reported: bool,
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

    /// Adds a lease, whose windows are trained after those of earlier leases. A repeated grant has no effect.
    ///
    /// # Errors
    /// - [`FeedError::UnknownShard`], [`FeedError::Range`]: the windows do not exist.
    /// - [`FeedError::Conflict`]: the lease is already held, for other windows.
    /// - [`FeedError::TooManyLeases`]: `LEASES_MAX` leases are held, none of them reported as finished.
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
            let reported = self.leases.iter().position(|held| held.is_reported);
            self.leases.remove(reported.ok_or(FeedError::TooManyLeases { lease })?);
        }
        self.leases.push(HeldLease { grant, order, done: 0, is_reported: false });
        Ok(())
    }

    /// Drops all leases except `leases`, which the syncer listed after a reconnection. Finished leases among these
    /// are reported again.
    pub(crate) fn retain(&mut self, leases: &[LeaseId]) {
        self.leases.retain(|held| leases.contains(&held.grant.lease));
        self.leases.iter_mut().for_each(|held| held.is_reported = false);
    }

    /// Returns the shard to fetch next, if any: the first missing one of those that `Self::wanted` returns.
    #[must_use]
    pub fn needs(&self) -> Option<u32> {
        self.wanted().into_iter().find(|shard| !self.shards.contains_key(shard))
    }

    /// Adds the bytes of a shard, as fetched. If too many shards are held, those that no lease waits for are dropped,
    /// least recently used first.
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
        self.evict_shards();
        Ok(())
    }

    /// Returns the number of windows that can be trained on now.
    #[must_use]
    pub(crate) fn ready_windows(&self) -> u64 {
        self.ready().map(|held| u64::from(held.left())).sum()
    }

    /// Returns the next `batch` windows, `[batch, context + 1]`, with masked tokens marked as in [`crate::token`].
    /// They are reported as trained from here on. If too few windows are ready, returns `None` and changes nothing:
    /// the learner is starved until a grant or a shard arrives.
    ///
    /// A batch may span leases. A lease whose shard is missing does not delay later leases.
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

    /// Returns the number of trained windows of each lease, by ascending lease, without finished leases that
    /// [`Self::reported`] has marked.
    #[must_use]
    pub fn progress(&self) -> Vec<(LeaseId, u32)> {
        let unreported = self.leases.iter().filter(|held| !held.is_reported);
        let mut progress: Vec<_> = unreported.map(|held| (held.grant.lease, held.done)).collect();
        progress.sort_unstable();
        progress
    }

    /// Marks those leases as reported that `sent`, an earlier result of [`Feed::progress`], shows as finished. They
    /// are not reported again on this connection.
    pub fn reported(&mut self, sent: &[(LeaseId, u32)]) {
        for held in &mut self.leases {
            held.is_reported |= sent.contains(&(held.grant.lease, held.grant.windows));
        }
    }

    fn ready(&self) -> impl Iterator<Item = &HeldLease> {
        self.leases.iter().filter(|held| self.shards.contains_key(&held.grant.shard))
    }

    /// Returns the shards that unfinished leases need, in the order of the leases: up to [`SHARDS_MAX`], and more if
    /// their windows do not fill a batch.
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

    fn evict_shards(&mut self) {
        let wanted = self.wanted();
        while self.shards.len() > wanted.len().max(SHARDS_MAX as usize) {
            let unwanted = self.shards.iter().filter(|(index, _)| !wanted.contains(index));
            let oldest = unwanted.min_by_key(|(_, shard)| shard.used).map(|(index, _)| *index);
            self.shards.remove(&oldest.expect("more are held than wanted"));
        }
    }
}

impl HeldLease {
    fn left(&self) -> u32 {
        self.grant.windows - self.done
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the feed, on shards whose tokens encode their position.

    use super::super::shard::{ShardForm, encode_shard, shard_spec};
    use super::super::windows;
    use super::*;
    use crate::token;
    use crate::wire::{
        ApplyPolicy, Architecture, Code, ExchangeSpec, InnerSpec, Model, Optimiser, ShardSpec,
    };

    const CONTEXT: u32 = 8;

    /// Returns the bytes of a shard whose tokens encode their position: 100 · `shard` + index.
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
            model: Model {
                context: CONTEXT,
                vocab: 1_000,
                tensors: Vec::new(),
                architecture: Architecture::default(),
                experts: None,
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
                optimiser: Optimiser::AdamW,
            },
            exchange: ExchangeSpec {
                fragments: 1,
                sync_every: 1,
                block: 64,
                code: Code::Int4,
                apply: ApplyPolicy::Overwrite,
            },
            data: DataSpec { token_bytes: 2, masks: false, shards },
            seed: 7,
            frozen: None,
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
        assert_eq!(feed.ready_windows(), 3);
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

    /// Goal: for any division into leases, each window of an epoch is trained exactly once.
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
        // Lease 2 ends after the report was written, so it must remain for the next report.
        feed.next_batch(1).unwrap();
        feed.reported(&sent);
        assert_eq!(feed.progress(), [(LeaseId(2), 2)]);
        feed.retain(&[]);
        assert_eq!(feed.progress(), []);
    }

    #[test]
    fn lost_report_is_repeated_after_reconnection() {
        let mut feed = feed(1);
        feed.add_shard(0, shard_bytes(0)).unwrap();
        for lease in 1..=3 {
            feed.grant(grant(lease, 0, 2 * lease as u32 - 2, 2)).unwrap();
        }
        feed.next_batch(5).unwrap();
        feed.reported(&feed.progress());
        assert_eq!(feed.progress(), [(LeaseId(3), 1)]);
        // The syncer does not know lease 1, and does not know that lease 2 is finished.
        feed.retain(&[LeaseId(2), LeaseId(3)]);
        assert_eq!(feed.progress(), [(LeaseId(2), 2), (LeaseId(3), 1)]);
        feed.next_batch(1).unwrap();
        assert_eq!(feed.next_batch(1), None, "what is finished is not trained on again");
    }

    #[test]
    fn finished_leases_make_room() {
        let mut feed = feed(1);
        feed.add_shard(0, shard_bytes(0)).unwrap();
        for lease in 0..10 * u64::from(LEASES_MAX) {
            feed.grant(grant(lease, 0, (lease % 9) as u32, 1)).unwrap();
            feed.next_batch(1).unwrap();
            feed.reported(&feed.progress());
        }
        feed.retain(&(0..10 * u64::from(LEASES_MAX)).map(LeaseId).collect::<Vec<_>>());
        assert_eq!(feed.progress().len(), LEASES_MAX as usize);
        assert_eq!(feed.progress().last(), Some(&(LeaseId(10 * u64::from(LEASES_MAX) - 1), 1)));
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
        // A shard that no lease waits for is dropped at once if the limit is reached.
        feed.add_shard(6, shard_bytes(6)).unwrap();
        assert!(feed.shards.keys().eq(&[0, 1, 2, 3]));

        feed.next_batch(3).unwrap();
        assert_eq!(feed.needs(), Some(4));
        feed.add_shard(4, shard_bytes(4)).unwrap();
        assert_eq!(feed.shards.len(), SHARDS_MAX as usize);
        assert_eq!(feed.needs(), None);
        assert_eq!(feed.ready_windows(), 3);
    }

    /// Goal: leases smaller than a batch never starve a learner, regardless of how many shards they come from.
    #[test]
    fn holds_as_many_shards_as_a_batch_takes() {
        let mut feed = feed(7);
        for shard in 0..7 {
            feed.grant(grant(shard.into(), shard, 0, 1)).unwrap();
        }
        let mut fetched = Vec::new();
        let batch = loop {
            if let Some(batch) = feed.next_batch(6) {
                break batch;
            }
            let shard = feed.needs().expect("a shard that makes a batch");
            feed.add_shard(shard, shard_bytes(shard)).unwrap();
            fetched.push(shard);
        };
        assert_eq!((fetched.len(), batch.len()), (6, 6 * (CONTEXT as usize + 1)));
        feed.grant(grant(8, 6, 1, 5)).unwrap();
        feed.add_shard(6, shard_bytes(6)).unwrap();
        assert_eq!(feed.shards.len(), SHARDS_MAX as usize, "and no more than before for longer");
        assert!(feed.next_batch(6).is_some());
    }

    #[test]
    fn windows_mark_masked_tokens() {
        let form = ShardForm { token_bytes: 2, masks: true };
        let is_given = |place: u32| place % 5 < 2;
        let tokens: Vec<u32> = (0..84).map(|at| if is_given(at) { at | token::MASKED } else { at }).collect();
        let bytes = encode_shard(&tokens, form).unwrap();
        let mut run = run(vec![shard_spec(&bytes, form).unwrap()]);
        run.data.masks = true;
        let mut feed = Feed::new(&run);
        feed.grant(LeaseGrant { lease: LeaseId(1), epoch: 0, shard: 0, start: 0, windows: 9 }).unwrap();
        feed.add_shard(0, bytes).unwrap();
        let batch = feed.next_batch(9).unwrap();
        assert!(batch.iter().all(|&found| is_given(token::id(found)) != token::is_target(found)));
        assert!(
            batch.chunks(9).all(|window| window.windows(2).all(|w| token::id(w[0]) + 1 == token::id(w[1])))
        );
    }
}
