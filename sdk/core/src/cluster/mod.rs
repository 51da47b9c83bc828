//! A run on several machines as pure state machines: gateways, which hold the sockets of learners, and owners of
//! fragments.
//!
//! A [`FragmentLeader`] leads the rounds of one fragment with the same `Rounds` as a syncer in a single process.
//! Bodies stay at the gateways that received them. A [`Gateway`] offers the owner each update without its body, learns
//! the update's weight, and sends the sum of its updates. So an owner receives one sum from each gateway, however many
//! learners there are. Sums are exact ([`PartialSum`](crate::diloco::PartialSum)), and a merge has the same bits as in
//! a single process.
//!
//! Four services connect them. Each has only a few messages, so implementations may live in one process, in a simulator
//! with faults, or on real servers:
//!
//! | service | what it does | what is asked of it |
//! |---|---|---|
//! | tape | [`Record`]s of a fragment, numbered 1, 2, 3 …; append after the last one known | what it took stays |
//! | blobs | bytes under a key, written once and removed after their last use | the same |
//! | roster | a lease for each fragment, which runs out | liveness only: it may be wrong |
//! | bus | [`Notice`]s to all gateways, [`Reply`]s to an owner | nothing: it may lose, repeat and reorder |
//!
//! Records, notices and replies are encoded with [`AsBytes`] on all services.
//!
//! Commands of the owner of the run are on a separate tape, [`OF_THE_RUN`], which every process reads: see
//! [`AdminCommand`].
//!
//! # Why nothing is merged twice and nothing announced is lost
//! - **A fence, and no clock.** An owner stores the merged state, appends the record with the last number that it
//!   knows, and only then tells learners. A new owner first appends [`Record::Took`]. The tape then refuses every later
//!   record of the former owner, whatever that owner believes about its lease.
//! - **A round is the number of the record that ends it**, and so is the version. Each round ends in exactly one
//!   record of this number: it was merged, or it was abandoned. The first record of a new owner ends the round of the
//!   former one.
//! - **An update belongs to one round.** The record of that round shows whether the update was merged, so any gateway
//!   can tell. A learner that reconnects elsewhere sends nothing of that fragment until it knows. It keeps any progress
//!   that was not merged.

mod active_round;
mod bytes;
mod follow;
mod gateway;
mod leader;
mod statistics;

pub use bytes::{AsBytes, BytesError, LAYOUT, MAGIC};
pub use follow::{FollowError, follow, state_bytes, state_of};
pub use gateway::{Gateway, GatewayInput, GatewayOutput, GatewayTerms, UnresolvedUpdate};
pub use leader::{FragmentLeader, LeaderInput};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::diloco::syncer::{Paces, Syncer, SyncerConfig};
use crate::diloco::{
    Codec, Fragments, MergeEntry, MergeRule, OuterSpec, QuorumPolicy, RoundTerms, SenderInfo, SumPlan,
    Timing, Verified, fragment_len,
};
use crate::wire::{Fingerprint, FragmentId, LearnerId, Refusal, Round, RunSpec, Serial, Share};
use serde::{Deserialize, Serialize};

/// Id of a gateway in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatewayId(pub u32);

/// Id of an owner process. Each start of the program has a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

/// Record on the tape of a fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// This process owns the fragment from this record on.
    Took(ProcessId),
    /// The round of this number produced the version of this number.
    Merged {
        /// The merge without the bodies of its updates.
        merge: Box<MergeEntry>,
        /// Checksum of the resulting state, which is in the blob of this number: see [`state_bytes`].
        state: u64,
    },
    /// The round of this number ended without a merge.
    Abandoned,
    /// The last round is over: no record follows this one.
    Finished,
    /// Command of the owner of the run. It is only on the tape [`OF_THE_RUN`], which holds nothing else.
    Decreed(AdminCommand),
}

impl Record {
    /// Returns true if this record merged the update `serial` of `learner`.
    #[must_use]
    pub fn has_merged(&self, learner: LearnerId, serial: Serial) -> bool {
        let Self::Merged { merge, .. } = self else { return false };
        merge.parts.iter().any(|part| (part.learner, part.serial) == (learner, serial))
    }
}

/// Message of an owner to all gateways over the bus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// Request that learners send their progress.
    Collect {
        /// Round that the progress is for.
        round: Round,
        /// Invited learners; `None` means all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invited: Option<BTreeSet<LearnerId>>,
        /// Number of learners whose updates were offered so far, by gateway.
        heard: BTreeMap<GatewayId, u32>,
    },
    /// Request that the listed gateways sum the listed updates.
    Weigh {
        /// Round of the merge.
        round: Round,
        /// Segments on which directions cancelled out. If there are any, the sum is repeated.
        cancelled: Vec<u32>,
        /// Plan of the sum.
        #[serde(with = "bytes::shared")]
        plan: Arc<SumPlan>,
        /// Weights of the updates, by the gateway that holds them.
        #[serde(with = "bytes::shared")]
        weights: Arc<Vec<(GatewayId, Vec<UpdateWeight>)>>,
    },
    /// The round has ended; its outcome is on the tape.
    Ended(Round),
    /// These updates of the round were refused.
    Refused {
        /// Round of the updates.
        round: Round,
        /// Sender, the sender's serial number, and the reason.
        refused: Vec<(LearnerId, Serial, Refusal)>,
    },
}

/// Weight of one update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateWeight {
    /// Sender.
    pub learner: LearnerId,
    /// Serial number from the sender.
    pub serial: Serial,
    /// Weight relative to the other updates.
    pub weight: f64,
    /// Weight for each expert of the fragment.
    pub experts: Vec<f64>,
    /// Number of steps that bounds the update's length.
    pub steps: u32,
}

/// Message of a gateway to an owner over the bus.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Learners that are connected to the gateway or wait to join.
    Here {
        /// Gateway that replies.
        gateway: GatewayId,
        /// Connected and waiting learners.
        #[serde(with = "bytes::compact::learners")]
        learners: BTreeSet<LearnerId>,
        /// True if a learner waits for the end of a round of each fragment before it takes part.
        waits: bool,
        /// Speed of the learners.
        paces: Paces,
    },
    /// Learners with nothing to report in this round.
    Pass {
        /// Round without their updates.
        round: Round,
        /// Learners that the round no longer waits for.
        #[serde(with = "bytes::compact::learners")]
        learners: BTreeSet<LearnerId>,
    },
    /// Updates for this round that the gateway holds.
    Offers {
        /// Gateway that holds them.
        gateway: GatewayId,
        /// Round of the updates.
        round: Round,
        /// Updates not offered yet, and those whose offers may have been lost.
        #[serde(with = "bytes::compact::values")]
        offers: Vec<Offer>,
    },
    /// Sum of the updates listed in [`Notice::Weigh`].
    Sum {
        /// Gateway that computed it.
        gateway: GatewayId,
        /// Round of the merge.
        round: Round,
        /// Cancelled segments, copied from the notice.
        cancelled: Vec<u32>,
        /// Encoding from [`PartialSum::to_bytes`](crate::diloco::PartialSum::to_bytes).
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
}

/// Update that a gateway holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Sender.
    pub learner: LearnerId,
    /// The update without the bytes of its body.
    pub update: Verified,
    /// Standing of the sender.
    #[serde(rename = "standing")]
    pub sender: SenderInfo,
}

/// Output of an owner: requests to the tape, the blobs, the bus and the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaderOutput {
    /// Append a record if the last one has the expected number.
    Append {
        /// Turn of the record, which tells its answer from answers about earlier records.
        turn: u64,
        /// Last number that the owner knows.
        expect: u64,
        /// Record to append.
        record: Record,
    },
    /// Read all records after this number.
    Read(u64),
    /// Store bytes under this key unless the key exists.
    Store(u64, Arc<Vec<u8>>),
    /// Load the bytes under this key.
    Load(u64),
    /// Create the initial state of the fragment, for [`LeaderInput::Begun`]. That may take long; the owner repeats the
    /// order meanwhile.
    Begin,
    /// Delete the bytes under these keys, which no process will load. There is no answer.
    Forget(Range<u64>),
    /// Send a notice to all gateways.
    Tell(Notice),
}

/// Static parameters of an owner for its fragment.
#[derive(Clone, Debug)]
pub struct LeaderTerms {
    /// Id of this process.
    pub process: ProcessId,
    /// Terms of the fragment's rounds.
    pub rounds: RoundTerms,
    /// Outer step at full momentum.
    pub outer: OuterSpec,
    /// Merged tokens over which the momentum rises linearly from 0; 0 gives full momentum from the first round.
    pub momentum_warmup_tokens: f64,
    /// P: each learner is asked for a fragment every H/P steps.
    pub fragments: u16,
    /// Initial estimates of the timing, until rounds are measured.
    pub timing: Timing,
    /// Minimum time from the end of a round to the next one, in milliseconds. Rounds are also H steps of the median
    /// learner apart, once gateways report the time of a step.
    pub rest_ms: u64,
    /// Time between rounds while no gateway reports a step time, in milliseconds. Such rounds end without a merge; they
    /// serve learners that wait for the end of a round.
    pub idle_ms: u64,
    /// Time after which unanswered messages are repeated, in milliseconds.
    pub again_ms: u64,
    /// Time after which a round without all sums is abandoned, in milliseconds.
    pub sums_ms: u64,
    /// Minimum number of connected learners for the first round.
    pub learners_start: usize,
    /// Maximum number of learners invited to one round, until a decree changes it. Beyond it, a rotating sample is
    /// invited.
    pub cohort_max: u32,
    /// Number of newest states retained in storage, at least 1. A process that is behind continues from the newest one.
    pub states_kept: usize,
}

/// Time between two rounds while no learner is known to train, in milliseconds. Constant of ours.
const IDLE_MS: u64 = 2_000;
/// Time after which an owner repeats an unanswered request, in milliseconds. Constant of ours.
const AGAIN_MS: u64 = 300;
/// Time after which a round without all sums is abandoned, in milliseconds. Constant of ours.
const SUMS_MS: u64 = 10_000;
/// Number of newest states of a fragment retained in storage. A gateway on a slow link has this many rounds to load
/// one. Constant of ours.
const STATES_KEPT: usize = 8;

impl LeaderTerms {
    /// Returns the parameters of process `process` for each of `fragments`, the fragments of the run `spec`.
    ///
    /// Returns `None` if the codec of the run is unusable.
    #[must_use]
    pub fn of(
        spec: &RunSpec,
        config: &SyncerConfig,
        fragments: &Fragments,
        process: ProcessId,
    ) -> Option<Vec<Self>> {
        let codec = Codec::new(&spec.exchange).ok()?;
        let terms = |fragment| Self {
            process,
            rounds: config.round_terms(spec, fragment, fragments, codec),
            outer: config.outer,
            momentum_warmup_tokens: config.momentum_warmup_ratio * spec.inner.total_tokens as f64,
            fragments: fragments.count(),
            timing: Timing::default(),
            rest_ms: 0,
            idle_ms: IDLE_MS,
            again_ms: AGAIN_MS,
            sums_ms: SUMS_MS,
            learners_start: config.learners_start as usize,
            cohort_max: config.cohort_max,
            states_kept: STATES_KEPT,
        };
        Some(fragments.ids().map(terms).collect())
    }

    /// Returns the number of values of the fragment.
    fn len(&self) -> usize {
        fragment_len(&self.rounds.segments)
    }
}

impl GatewayTerms {
    /// Returns the parameters of gateway `gateway` for each fragment of the run of `syncer`, or `None` if the codec of
    /// the run is unusable.
    #[must_use]
    pub fn of(syncer: &Syncer, gateway: GatewayId) -> Option<Vec<(FragmentId, Self)>> {
        let codec = Codec::new(&syncer.spec().exchange).ok()?;
        let fragments = syncer.fragments();
        let terms = |fragment| {
            let segments = Arc::new(fragments.segments(fragment)?.to_vec());
            Some((fragment, Self { gateway, segments, codec }))
        };
        fragments.ids().map(terms).collect()
    }
}

/// Id of the tape of decrees, which is separate from the tapes of all fragments. No fragment has this id, since a run
/// has at most 65,535 fragments.
pub const OF_THE_RUN: FragmentId = FragmentId(u16::MAX);

/// Command of the owner of the run, given at any gateway. Each process applies it as soon as it reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminCommand {
    /// First decree of a run: the settings, by key, that all processes share.
    Agreed(Vec<(String, String)>),
    /// New values of these settings.
    Settings(Vec<(String, String)>),
    /// Pauses (true) or resumes (false) the run. While paused, owners launch only a last round.
    Hold(bool),
    /// Ends the run after one more round of each fragment, which waits for all learners.
    Finish,
    /// Limits the part of the time in which a learner trains.
    Pace(LearnerId, Share),
    /// Excludes a learner until this time, in milliseconds since 1970; 0 lifts the exclusion.
    Drop(LearnerId, u64),
    /// Bans a key permanently; with the owner's note.
    Ban(Fingerprint, String),
    /// Lifts the ban of a key.
    Lift(Fingerprint),
}

/// Commands in force, as the leaders of fragments need them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdminCommands {
    /// Paused: only a last round is launched.
    pub is_held: bool,
    /// Ending: each fragment has one last round, which waits for all learners.
    pub is_ending: bool,
    /// Policy that decides when rounds end.
    pub quorum: QuorumPolicy,
    /// Merge rule.
    pub merge: MergeRule,
    /// Maximum number of learners invited to one round. Beyond it, a rotating sample is invited.
    pub cohort_max: u32,
}

impl AdminCommands {
    /// Returns the initial orders: the round terms of the run and this cohort limit.
    #[must_use]
    pub fn none(terms: &RoundTerms, cohort_max: u32) -> Self {
        Self { is_held: false, is_ending: false, quorum: terms.quorum, merge: terms.merge, cohort_max }
    }
}
