//! Pure state machines of a run on several machines: gateways, which hold the connections of learners, and leaders of
//! fragments.
//!
//! A [`FragmentLeader`] leads the rounds of one fragment with the same `Rounds` as a syncer in a single process.
//! Bodies of updates stay at the gateways that received them. A [`Gateway`] offers each update to the leader without
//! its body, gets the update's weight, and sends the weighted sum of its updates. A leader thus receives one sum from
//! each gateway, regardless of the number of learners. Sums are exact ([`PartialSum`](crate::diloco::PartialSum)),
//! and a merge has the same bits as in a single process.
//!
//! Four services connect leaders and gateways. Each has only a few operations, so it may be implemented in one
//! process, in a simulator with faults, or on real servers:
//!
//! | service | content | required guarantee |
//! |---|---|---|
//! | tape | [`Record`]s of a fragment, numbered from 1; an append names the last known number | appended records stay |
//! | blobs | bytes under a key, written once and removed after their last use | stored bytes stay until removed |
//! | roster | a lease for each fragment, which expires | liveness only: it may be wrong |
//! | bus | [`Notice`]s to all gateways, [`Reply`]s to a leader | none: it may lose, repeat and reorder messages |
//!
//! Records, notices and replies are encoded with [`AsBytes`] in all services.
//!
//! Commands of the owner of the run are on a separate tape, [`OF_THE_RUN`], which every process reads: see
//! [`AdminCommand`].
//!
//! # Why no update is merged twice and no announced version is lost
//! - **A fence, and no clock.** A leader stores the merged state, appends the record under the number after the last
//!   one that it knows, and only then notifies learners. A new leader first appends [`Record::Took`]. The tape then
//!   refuses every later record of the former leader, even if that leader believes that its lease is valid.
//! - **A round has the number of the record that ends it**, and so does the version. Each round ends in exactly one
//!   record of this number: it was merged, or it was abandoned. The first record of a new leader ends the round of
//!   the former one.
//! - **An update belongs to one round.** The record of that round shows whether the update was merged, so any gateway
//!   can find out. If a learner reconnects to another gateway, it sends no update of that fragment until it knows the
//!   outcome. It keeps all progress that was not merged.

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

/// Id of a process that leads fragments. Each start of the program has a new id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

/// Record on the tape of a fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// This process leads the fragment from this record on.
    Took(ProcessId),
    /// The round of this number produced the version of this number.
    Merged {
        /// The merge without the bodies of its updates.
        merge: Box<MergeEntry>,
        /// Checksum of the resulting state, which is in the blob with this number as its key: see [`state_bytes`].
        state: u64,
    },
    /// The round of this number ended without a merge.
    Abandoned,
    /// The last round is over: no record follows this one.
    Finished,
    /// Command of the owner of the run. It occurs only on the tape [`OF_THE_RUN`], which has no other records.
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

/// Message of a leader to all gateways over the bus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// Request that learners send their progress.
    Collect {
        /// Round that the progress is for.
        round: Round,
        /// Invited learners; `None` means all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invited: Option<BTreeSet<LearnerId>>,
        /// Number of learners whose offers the leader has received so far, by gateway.
        heard: BTreeMap<GatewayId, u32>,
    },
    /// Request that the listed gateways sum the listed updates with these weights.
    Weigh {
        /// Round of the merge.
        round: Round,
        /// Segments on which directions cancelled out in a first sum. If there are any, this is the request for the
        /// second sum.
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
    /// Serial number of the update.
    pub serial: Serial,
    /// Weight relative to the other updates.
    pub weight: f64,
    /// Weight for each expert of the fragment.
    pub experts: Vec<f64>,
    /// Number of steps that bounds the length of the update.
    pub steps: u32,
}

/// Message of a gateway to a leader over the bus.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Learners that are connected to the gateway or wait to join.
    Here {
        /// Gateway that replies.
        gateway: GatewayId,
        /// Connected and waiting learners.
        #[serde(with = "bytes::compact::learners")]
        learners: BTreeSet<LearnerId>,
        /// True if a learner waits for the end of a round of each fragment before it joins.
        waits: bool,
        /// Median times of the gateway's learners.
        paces: Paces,
    },
    /// Learners without progress for this round.
    Pass {
        /// Round that these learners send no updates for.
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
        /// Updates not offered yet, and updates whose offers may have been lost.
        #[serde(with = "bytes::compact::values")]
        offers: Vec<Offer>,
    },
    /// Sum of the updates listed in [`Notice::Weigh`].
    Sum {
        /// Gateway that computed it.
        gateway: GatewayId,
        /// Round of the merge.
        round: Round,
        /// Cancelled segments of the notice.
        cancelled: Vec<u32>,
        /// Encoded sum, see [`PartialSum::to_bytes`](crate::diloco::PartialSum::to_bytes).
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
    /// Information about the sender for the leader.
    #[serde(rename = "standing")]
    pub sender: SenderInfo,
}

/// Output of a leader: requests to the tape, the blob storage, the bus and the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaderOutput {
    /// Append a record if the last record has the expected number.
    Append {
        /// Turn of the record. It distinguishes the answer from answers about earlier records.
        turn: u64,
        /// Number of the last record that the leader knows.
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
    /// Create the initial state of the fragment and answer with [`LeaderInput::Begun`]. That may take long; the
    /// leader repeats the request meanwhile.
    Begin,
    /// Delete the bytes under these keys, which no process needs any more. There is no answer.
    Forget(Range<u64>),
    /// Send a notice to all gateways.
    Tell(Notice),
}

/// Constant parameters of a leader for its fragment.
#[derive(Clone, Debug)]
pub struct LeaderTerms {
    /// Id of this process.
    pub process: ProcessId,
    /// Parameters of the fragment's rounds.
    pub rounds: RoundTerms,
    /// Outer step with full momentum.
    pub outer: OuterSpec,
    /// Merged tokens over which the momentum rises linearly from 0; 0 gives full momentum from the first round.
    pub momentum_warmup_tokens: f64,
    /// P, the number of fragments: each learner is asked for a fragment every H/P steps.
    pub fragments: u16,
    /// Initial estimates of times, replaced by measurements of rounds.
    pub timing: Timing,
    /// Minimum time from the end of a round to the next one, in milliseconds. Once gateways report step times, rounds
    /// are also H steps of the median learner apart.
    pub rest_ms: u64,
    /// Time between rounds while no gateway reports a step time, in milliseconds. Such rounds end without a merge,
    /// for learners that wait for the end of a round.
    pub idle_ms: u64,
    /// Time after which unanswered messages are repeated, in milliseconds.
    pub again_ms: u64,
    /// Time after which a round without all sums is abandoned, in milliseconds.
    pub sums_ms: u64,
    /// Minimum number of connected learners for the first round.
    pub learners_start: usize,
    /// Maximum number of learners invited to one round, until an [`AdminCommand`] changes it. If more are connected,
    /// a rotating sample is invited.
    pub cohort_max: u32,
    /// Number of newest states retained in storage, at least 1. A process that is behind continues from the newest
    /// state.
    pub states_kept: usize,
}

/// Time between two rounds while no step time is known, in milliseconds. Our own constant.
const IDLE_MS: u64 = 2_000;
/// Time after which a leader repeats an unanswered request, in milliseconds. Our own constant.
const AGAIN_MS: u64 = 300;
/// Time after which a round without all sums is abandoned, in milliseconds. Our own constant.
const SUMS_MS: u64 = 10_000;
/// Number of newest states of a fragment retained in storage. A gateway on a slow link has as many rounds to load a
/// state. Our own constant.
const STATES_KEPT: usize = 8;

impl LeaderTerms {
    /// Returns the parameters of `process` for each of `fragments`, the fragments of the run `spec`, or `None` if the
    /// codec of the run is invalid.
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
    /// Returns the parameters of `gateway` for each fragment of the run of `syncer`, or `None` if the codec of the
    /// run is invalid.
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

/// Id of the tape of [`AdminCommand`]s, which is separate from the tapes of fragments. No fragment has this id, since
/// a run has at most 65,535 fragments.
pub const OF_THE_RUN: FragmentId = FragmentId(u16::MAX);

/// Command that the owner of the run gives at any gateway. Each process applies it as soon as it reads it from the
/// tape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminCommand {
    /// First command of a run: the settings, by key, that all processes share.
    Agreed(Vec<(String, String)>),
    /// New values of some settings, by key.
    Settings(Vec<(String, String)>),
    /// Pauses (true) or resumes (false) the run. While it is paused, leaders launch only the last round.
    Hold(bool),
    /// Ends the run after one more round of each fragment, which waits for all connected learners.
    Finish,
    /// Limits the part of the time in which a learner trains.
    Pace(LearnerId, Share),
    /// Excludes a learner until this time, in milliseconds since 1970; 0 lifts the exclusion.
    Drop(LearnerId, u64),
    /// Bans a key permanently. The text is the owner's note.
    Ban(Fingerprint, String),
    /// Lifts the ban of a key.
    Lift(Fingerprint),
}

/// Commands in force, as leaders of fragments need them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdminCommands {
    /// True if the run is paused: only the last round is launched.
    pub is_held: bool,
    /// True if the run ends: each fragment has one last round, which waits for all connected learners.
    pub is_ending: bool,
    /// Policy that decides when rounds end.
    pub quorum: QuorumPolicy,
    /// Merge rule.
    pub merge: MergeRule,
    /// Maximum number of learners invited to one round. If more are connected, a rotating sample is invited.
    pub cohort_max: u32,
}

impl AdminCommands {
    /// Returns the initial commands: the policies of `terms` and this limit.
    #[must_use]
    pub fn none(terms: &RoundTerms, cohort_max: u32) -> Self {
        Self { is_held: false, is_ending: false, quorum: terms.quorum, merge: terms.merge, cohort_max }
    }
}
