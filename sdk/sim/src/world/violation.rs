//! What must never happen in a world, whatever the faults.

use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Round, Serial, Version};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A fate for an update that never came, or a second one.
    #[error("update {serial} of learner {learner} on fragment {fragment} has more than one fate")]
    FateTwice {
        /// Who sent it.
        learner: LearnerId,
        /// Where.
        fragment: FragmentId,
        /// As its sender numbered it.
        serial: Serial,
    },
    /// An update that the syncer does not hold any more has no fate.
    #[error("update {serial} of learner {learner} on fragment {fragment} is gone without a fate")]
    NoFate {
        /// Who sent it.
        learner: LearnerId,
        /// Where.
        fragment: FragmentId,
        /// As its sender numbered it.
        serial: Serial,
    },
    /// More tokens merged than were leased.
    #[error(
        "learner {learner} has {merged} tokens merged on fragment {fragment}, {leased} were leased to it"
    )]
    Unleased {
        /// Whose.
        learner: LearnerId,
        /// Where.
        fragment: FragmentId,
        /// Tokens merged.
        merged: u64,
        /// Tokens ever leased to it.
        leased: u64,
    },
    /// More tokens merged than were trained on.
    #[error("learner {learner} has {merged} tokens merged on fragment {fragment}, it trained on {trained}")]
    Untrained {
        /// Whose.
        learner: LearnerId,
        /// Where.
        fragment: FragmentId,
        /// Tokens merged.
        merged: u64,
        /// Tokens that it really trained on.
        trained: u64,
    },
    /// The ledger and the events disagree.
    #[error(
        "the ledger says {ledger} tokens of learner {learner} on fragment {fragment}, the events {events}"
    )]
    Ledger {
        /// Whose.
        learner: LearnerId,
        /// Where.
        fragment: FragmentId,
        /// Tokens in the ledger.
        ledger: u64,
        /// Tokens in the events.
        events: u64,
    },
    /// A version that does not follow the one before.
    #[error("fragment {fragment} went from version {from} to {to} by a change relative to {base}")]
    Chain {
        /// Which fragment.
        fragment: FragmentId,
        /// Its version before.
        from: Version,
        /// What the change is relative to.
        base: Version,
        /// Its version after.
        to: Version,
    },
    /// One version with two contents.
    #[error("version {version} of fragment {fragment} stands for two contents")]
    TwoContents {
        /// Which fragment.
        fragment: FragmentId,
        /// Which version.
        version: Version,
    },
    /// A learner holds something else than the syncer sent.
    #[error("machine {machine} holds another version {version} of fragment {fragment} than the syncer")]
    Drift {
        /// The machine.
        machine: u32,
        /// Which fragment.
        fragment: FragmentId,
        /// Which version.
        version: Version,
    },
    /// A window leased twice without having come back.
    #[error("lease {lease} holds windows that are on lease {other} or were trained under it")]
    LeaseOverlap {
        /// The later lease.
        lease: LeaseId,
        /// The earlier one.
        other: LeaseId,
    },
    /// A lease came back that was not out.
    #[error("lease {lease} came back with {windows} windows, more than it has out")]
    LeaseReturn {
        /// Which.
        lease: LeaseId,
        /// Windows said to come back.
        windows: u32,
    },
    /// Two rounds on one fragment, or more than τ.
    #[error("round {round} on fragment {fragment} began with {in_flight} others in flight, or on its own")]
    InFlight {
        /// The round.
        round: Round,
        /// Its fragment.
        fragment: FragmentId,
        /// Rounds in flight before it.
        in_flight: u32,
    },
    /// Rounds too close to each other.
    #[error("round {round} began {gap_ms} ms after the one before, the floor is {floor_ms} ms")]
    Floor {
        /// The round.
        round: Round,
        /// Time since the last launch, in milliseconds.
        gap_ms: u64,
        /// Shortest time allowed, in milliseconds.
        floor_ms: u64,
    },
    /// Θ, Θ̂ or the momentum is no number somewhere.
    #[error("fragment {fragment} is not finite after round {round}")]
    NotFinite {
        /// Which fragment.
        fragment: FragmentId,
        /// After which round.
        round: Round,
    },
    /// A step whose progress on a fragment went nowhere: no learner holds it, it is not merged, and nothing that may
    /// cost progress has happened to it.
    #[error("step {step} of life {life} of machine {machine} is lost on fragment {fragment}")]
    WindowLost {
        /// The machine.
        machine: u32,
        /// Which of its processes.
        life: u32,
        /// Where it is missing.
        fragment: FragmentId,
        /// The step, from 0.
        step: u32,
    },
    /// A step whose progress on a fragment is merged twice.
    #[error("step {step} of life {life} of machine {machine} is merged twice on fragment {fragment}")]
    MergedTwice {
        /// The machine.
        machine: u32,
        /// Which of its processes.
        life: u32,
        /// Where.
        fragment: FragmentId,
        /// The step, from 0.
        step: u32,
    },
    /// An update that says other amounts than those of the steps in it.
    #[error(
        "machine {machine} says {said:?} steps and tokens of fragment {fragment}, its update has {held:?}"
    )]
    Account {
        /// The machine.
        machine: u32,
        /// The fragment.
        fragment: FragmentId,
        /// Steps and tokens that the update says.
        said: (u64, u64),
        /// Steps and tokens of the progress in it.
        held: (u64, u64),
    },
    /// A learner that nothing keeps from being merged, and that is not.
    #[error("machine {machine} is well, and was not merged for {waited_ms} ms")]
    Starved {
        /// The machine.
        machine: u32,
        /// Since it was last merged, or since something was last done to it or to the syncer.
        waited_ms: u64,
    },
    /// A learner that is told another fate of its update than it had, or none, or one that it did not have.
    #[error("learner {learner} is told {told:?} of its update {serial}, whose fate is {fate:?}")]
    Receipt {
        /// Which learner.
        learner: LearnerId,
        /// As the learner numbered it.
        serial: Serial,
        /// What happened, as far as it is to be told.
        fate: Option<Fate>,
        /// What it is told.
        told: Option<Fate>,
    },
    /// An update that is merged twice.
    #[error("update {serial} of learner {learner} on fragment {fragment} is merged twice")]
    UpdateTwice {
        /// Who sent it.
        learner: LearnerId,
        /// Where.
        fragment: FragmentId,
        /// As its sender numbered it.
        serial: Serial,
    },
    /// A learner was told of something that is on no tape.
    #[error("learner {learner} is told of {what}, which was not recorded")]
    Unrecorded {
        /// Which learner.
        learner: LearnerId,
        /// What it is told of.
        what: String,
    },
    /// A learner was told of something that the syncer does not know after a crash.
    #[error("learner {learner} was told of {what}, which is lost")]
    AckedLost {
        /// Which learner.
        learner: LearnerId,
        /// What it was told of.
        what: String,
    },
    /// The owner was told of something that the syncer does not know after a crash.
    #[error("the owner was told of {what}, which is undone")]
    OwnerUndone {
        /// What the owner was told of.
        what: String,
    },
    /// Rows that were kept are not there after a crash.
    #[error("the tape had row {safe}, and ends with row {last}")]
    RowsLost {
        /// The newest row that was kept.
        safe: u64,
        /// The last row that is there.
        last: u64,
    },
    /// A message to a connection that never said who it is.
    #[error("connection {conn} was sent {what} before its `Welcome`")]
    Stranger {
        /// Which connection.
        conn: ConnId,
        /// What was sent.
        what: &'static str,
    },
}
