//! Invariants that must hold in a world under any faults.

use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Round, Serial, Version};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A second fate for an update, or a fate for an update that never arrived.
    #[error("update {serial} of learner {learner} on fragment {fragment} has more than one fate")]
    FateTwice {
        /// The sender.
        learner: LearnerId,
        /// The fragment.
        fragment: FragmentId,
        /// The sender's serial number of the update.
        serial: Serial,
    },
    /// An update without a fate that the syncer no longer holds.
    #[error("update {serial} of learner {learner} on fragment {fragment} disappeared without a fate")]
    NoFate {
        /// The sender.
        learner: LearnerId,
        /// The fragment.
        fragment: FragmentId,
        /// The sender's serial number of the update.
        serial: Serial,
    },
    /// More merged tokens than leased tokens.
    #[error(
        "learner {learner} has {merged} tokens merged on fragment {fragment}, but {leased} were leased to it"
    )]
    Unleased {
        /// The learner.
        learner: LearnerId,
        /// The fragment.
        fragment: FragmentId,
        /// Tokens merged.
        merged: u64,
        /// Tokens ever leased to it.
        leased: u64,
    },
    /// More merged tokens than trained tokens.
    #[error(
        "learner {learner} has {merged} tokens merged on fragment {fragment}, but it trained on {trained}"
    )]
    Untrained {
        /// The learner.
        learner: LearnerId,
        /// The fragment.
        fragment: FragmentId,
        /// Tokens merged.
        merged: u64,
        /// Tokens that the learner trained on.
        trained: u64,
    },
    /// A difference between the ledger and the events.
    #[error(
        "the ledger has {ledger} tokens of learner {learner} on fragment {fragment}, the events have {events}"
    )]
    Ledger {
        /// The learner.
        learner: LearnerId,
        /// The fragment.
        fragment: FragmentId,
        /// Tokens in the ledger.
        ledger: u64,
        /// Tokens in the events.
        events: u64,
    },
    /// A version that does not follow its predecessor.
    #[error("fragment {fragment} went from version {from} to {to} by a change relative to {base}")]
    Chain {
        /// The fragment.
        fragment: FragmentId,
        /// The version before.
        from: Version,
        /// The base of the change.
        base: Version,
        /// The version after.
        to: Version,
    },
    /// One version with two contents.
    #[error("version {version} of fragment {fragment} has two contents")]
    TwoContents {
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
    },
    /// A learner's fragment that differs from the syncer's.
    #[error(
        "machine {machine} holds a version {version} of fragment {fragment} that differs from the syncer's"
    )]
    Drift {
        /// The machine.
        machine: u32,
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
    },
    /// A window leased twice without having been returned.
    #[error("lease {lease} holds windows that are on lease {other} or were trained under it")]
    LeaseOverlap {
        /// The later lease.
        lease: LeaseId,
        /// The earlier one.
        other: LeaseId,
    },
    /// A returned lease that was not granted, or that has too many windows.
    #[error("lease {lease} came back with {windows} windows, more than it had outstanding")]
    LeaseReturn {
        /// The lease.
        lease: LeaseId,
        /// Windows reported as returned.
        windows: u32,
    },
    /// Two rounds on one fragment, or more than τ rounds in flight.
    #[error(
        "round {round} on fragment {fragment} began with {in_flight} others in flight, or next to another round on it"
    )]
    InFlight {
        /// The round.
        round: Round,
        /// Its fragment.
        fragment: FragmentId,
        /// Rounds in flight before it.
        in_flight: u32,
    },
    /// Two launches too close to each other.
    #[error("round {round} began {gap_ms} ms after the one before, the floor is {floor_ms} ms")]
    Floor {
        /// The round.
        round: Round,
        /// Time since the last launch, in milliseconds.
        gap_ms: u64,
        /// Shortest time allowed, in milliseconds.
        floor_ms: u64,
    },
    /// A value of Θ, Θ̂ or the momentum that is not finite.
    #[error("fragment {fragment} is not finite after round {round}")]
    NotFinite {
        /// The fragment.
        fragment: FragmentId,
        /// The round.
        round: Round,
    },
    /// A step whose progress on a fragment is lost: no learner holds it, it is not merged, and no event that may cost
    /// progress explains it.
    #[error("step {step} of life {life} of machine {machine} is lost on fragment {fragment}")]
    WindowLost {
        /// The machine.
        machine: u32,
        /// The number of the machine's process.
        life: u32,
        /// The fragment.
        fragment: FragmentId,
        /// The step, from 0.
        step: u32,
    },
    /// A step whose progress on a fragment is merged twice.
    #[error("step {step} of life {life} of machine {machine} is merged twice on fragment {fragment}")]
    MergedTwice {
        /// The machine.
        machine: u32,
        /// The number of the machine's process.
        life: u32,
        /// The fragment.
        fragment: FragmentId,
        /// The step, from 0.
        step: u32,
    },
    /// An update whose counts differ from those of its steps.
    #[error(
        "machine {machine} reports {said:?} steps and tokens of fragment {fragment}, but its update has {held:?}"
    )]
    Account {
        /// The machine.
        machine: u32,
        /// The fragment.
        fragment: FragmentId,
        /// Steps and tokens that the update reports.
        said: (u64, u64),
        /// Steps and tokens of its real progress.
        held: (u64, u64),
    },
    /// An eligible learner whose updates are not merged.
    #[error("machine {machine} is healthy, but was not merged for {waited_ms} ms")]
    Starved {
        /// The machine.
        machine: u32,
        /// Time since its last merge, or since the last fault or order that affected it or the syncer.
        waited_ms: u64,
    },
    /// A receipt that is missing, wrong, or for an update without a fate.
    #[error("learner {learner} was told {told:?} of its update {serial}, whose fate is {fate:?}")]
    Receipt {
        /// The learner.
        learner: LearnerId,
        /// The learner's serial number of the update.
        serial: Serial,
        /// The fate, if the learner must be told.
        fate: Option<Fate>,
        /// The fate in the receipt.
        told: Option<Fate>,
    },
    /// An update that is merged twice.
    #[error("update {serial} of learner {learner} on fragment {fragment} is merged twice")]
    UpdateTwice {
        /// The sender.
        learner: LearnerId,
        /// The fragment.
        fragment: FragmentId,
        /// The sender's serial number of the update.
        serial: Serial,
    },
    /// A message about a decision that is on no tape.
    #[error("learner {learner} was notified of {what}, which was not recorded")]
    Unrecorded {
        /// The learner.
        learner: LearnerId,
        /// The decision.
        what: String,
    },
    /// Information that a learner received and the syncer lost in a crash.
    #[error("learner {learner} was notified of {what}, which is lost")]
    AckedLost {
        /// The learner.
        learner: LearnerId,
        /// The information.
        what: String,
    },
    /// An order confirmed to the owner and lost in a crash.
    #[error("the owner was notified of {what}, which was rolled back")]
    OwnerUndone {
        /// The order.
        what: String,
    },
    /// Synced rows that are missing after a crash.
    #[error("the tape had row {safe}, but ends with row {last}")]
    RowsLost {
        /// The newest synced row.
        safe: u64,
        /// The last row found.
        last: u64,
    },
    /// A message to a connection that has not introduced itself.
    #[error("connection {conn} was sent {what} before its `Welcome`")]
    Stranger {
        /// The connection.
        conn: ConnId,
        /// The kind of message.
        what: &'static str,
    },
}
