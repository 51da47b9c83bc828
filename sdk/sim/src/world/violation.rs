//! Invariants that must hold in a world under any faults.

use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Round, Serial, Version};

/// Broken invariant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// An update has a second fate, or a fate although it never arrived.
    #[error("update {serial} of learner {learner} on fragment {fragment} has more than one fate")]
    FateTwice {
        /// Learner that sent the update.
        learner: LearnerId,
        /// Fragment of the update.
        fragment: FragmentId,
        /// Serial number of the update.
        serial: Serial,
    },
    /// An update has no fate, and the syncer no longer has it.
    #[error("update {serial} of learner {learner} on fragment {fragment} disappeared without a fate")]
    NoFate {
        /// Learner that sent the update.
        learner: LearnerId,
        /// Fragment of the update.
        fragment: FragmentId,
        /// Serial number of the update.
        serial: Serial,
    },
    /// A learner has more merged tokens on a fragment than leased tokens.
    #[error(
        "learner {learner} has {merged} tokens merged on fragment {fragment}, but {leased} were leased to it"
    )]
    Unleased {
        /// Number of the learner.
        learner: LearnerId,
        /// Fragment of the merges.
        fragment: FragmentId,
        /// Number of merged tokens.
        merged: u64,
        /// Number of tokens ever leased to the learner.
        leased: u64,
    },
    /// A learner has more merged tokens on a fragment than trained tokens.
    #[error(
        "learner {learner} has {merged} tokens merged on fragment {fragment}, but it trained on {trained}"
    )]
    Untrained {
        /// Number of the learner.
        learner: LearnerId,
        /// Fragment of the merges.
        fragment: FragmentId,
        /// Number of merged tokens.
        merged: u64,
        /// Number of trained tokens.
        trained: u64,
    },
    /// The ledger and the events have different merged tokens.
    #[error(
        "the ledger has {ledger} tokens of learner {learner} on fragment {fragment}, the events have {events}"
    )]
    Ledger {
        /// Number of the learner.
        learner: LearnerId,
        /// Fragment of the merges.
        fragment: FragmentId,
        /// Number of tokens in the ledger.
        ledger: u64,
        /// Number of tokens in the events.
        events: u64,
    },
    /// A change does not lead from the previous version to a newer one.
    #[error("fragment {fragment} went from version {from} to {to} by a change relative to {base}")]
    Chain {
        /// Fragment of the change.
        fragment: FragmentId,
        /// Version before the change.
        from: Version,
        /// Base version of the change.
        base: Version,
        /// Version after the change.
        to: Version,
    },
    /// A version has two different contents.
    #[error("version {version} of fragment {fragment} has two contents")]
    TwoContents {
        /// Number of the fragment.
        fragment: FragmentId,
        /// Number of the version.
        version: Version,
    },
    /// A learner's Θ̂ of a version differs from the syncer's.
    #[error(
        "machine {machine} holds a version {version} of fragment {fragment} that differs from the syncer's"
    )]
    Drift {
        /// Index of the machine.
        machine: u32,
        /// Number of the fragment.
        fragment: FragmentId,
        /// Number of the version.
        version: Version,
    },
    /// A window was leased again without having been returned.
    #[error("lease {lease} holds windows that are on lease {other} or were trained under it")]
    LeaseOverlap {
        /// The later lease.
        lease: LeaseId,
        /// The earlier lease.
        other: LeaseId,
    },
    /// A returned lease was not granted, or has too many windows.
    #[error("lease {lease} came back with {windows} windows, more than it had outstanding")]
    LeaseReturn {
        /// Id of the lease.
        lease: LeaseId,
        /// Number of returned windows.
        windows: u32,
    },
    /// A round was launched on a fragment that has one in flight, or with τ rounds in flight.
    #[error(
        "round {round} on fragment {fragment} began with {in_flight} others in flight, or next to another round on it"
    )]
    InFlight {
        /// Number of the round.
        round: Round,
        /// Fragment of the round.
        fragment: FragmentId,
        /// Number of rounds in flight before the launch.
        in_flight: u32,
    },
    /// A round was launched too soon after the previous one.
    #[error("round {round} began {gap_ms} ms after the one before, the floor is {floor_ms} ms")]
    Floor {
        /// Number of the round.
        round: Round,
        /// Time since the previous launch, in milliseconds.
        gap_ms: u64,
        /// Minimum time between launches, in milliseconds.
        floor_ms: u64,
    },
    /// A value of Θ, Θ̂ or the momentum is not finite.
    #[error("fragment {fragment} is not finite after round {round}")]
    NotFinite {
        /// Fragment of the value.
        fragment: FragmentId,
        /// Round after which the value was found.
        round: Round,
    },
    /// The progress of a step on a fragment is lost: no learner has it, it was not merged, and no event explains the
    /// loss.
    #[error("step {step} of life {life} of machine {machine} is lost on fragment {fragment}")]
    WindowLost {
        /// Index of the machine.
        machine: u32,
        /// Number of the machine's process.
        life: u32,
        /// Fragment of the progress.
        fragment: FragmentId,
        /// Number of the step, from 0.
        step: u32,
    },
    /// The progress of a step on a fragment was merged twice.
    #[error("step {step} of life {life} of machine {machine} is merged twice on fragment {fragment}")]
    MergedTwice {
        /// Index of the machine.
        machine: u32,
        /// Number of the machine's process.
        life: u32,
        /// Fragment of the progress.
        fragment: FragmentId,
        /// Number of the step, from 0.
        step: u32,
    },
    /// The step and token counts of an update differ from those of the steps in it.
    #[error(
        "machine {machine} reports {said:?} steps and tokens of fragment {fragment}, but its update has {held:?}"
    )]
    Account {
        /// Index of the machine.
        machine: u32,
        /// Fragment of the update.
        fragment: FragmentId,
        /// Steps and tokens that the update claims.
        said: (u64, u64),
        /// Steps and tokens in the update.
        held: (u64, u64),
    },
    /// The updates of a healthy machine are not merged.
    #[error("machine {machine} is healthy, but was not merged for {waited_ms} ms")]
    Starved {
        /// Index of the machine.
        machine: u32,
        /// Time since the machine's last merge, or since the last fault or command that affected it or the syncer.
        waited_ms: u64,
    },
    /// A receipt is missing, wrong, or for an update without a fate.
    #[error("learner {learner} was told {told:?} of its update {serial}, whose fate is {fate:?}")]
    Receipt {
        /// Number of the learner.
        learner: LearnerId,
        /// Serial number of the update.
        serial: Serial,
        /// Fate that the receipt must have; `None` if there must be no receipt.
        fate: Option<Fate>,
        /// Fate in the receipt; `None` if the syncer sent no receipt.
        told: Option<Fate>,
    },
    /// An update was merged twice.
    #[error("update {serial} of learner {learner} on fragment {fragment} is merged twice")]
    UpdateTwice {
        /// Learner that sent the update.
        learner: LearnerId,
        /// Fragment of the update.
        fragment: FragmentId,
        /// Serial number of the update.
        serial: Serial,
    },
    /// A message was sent about a decision that was not recorded on the tape.
    #[error("learner {learner} was notified of {what}, which was not recorded")]
    Unrecorded {
        /// Receiver of the message.
        learner: LearnerId,
        /// Description of the decision.
        what: String,
    },
    /// The syncer lost, in a crash, data that a learner was notified of.
    #[error("learner {learner} was notified of {what}, which is lost")]
    AckedLost {
        /// Number of the learner.
        learner: LearnerId,
        /// Description of the lost data.
        what: String,
    },
    /// The syncer lost, in a crash, a command that it had confirmed to the owner.
    #[error("the owner was notified of {what}, which was rolled back")]
    OwnerUndone {
        /// Description of the command.
        what: String,
    },
    /// Synced rows are missing after a crash.
    #[error("the tape had row {safe}, but ends with row {last}")]
    RowsLost {
        /// Number of the newest synced row.
        safe: u64,
        /// Number of the last row found.
        last: u64,
    },
    /// A message was sent on a connection before its `Welcome`.
    #[error("connection {conn} was sent {what} before its `Welcome`")]
    Stranger {
        /// Number of the connection.
        conn: ConnId,
        /// Kind of message.
        what: &'static str,
    },
}
