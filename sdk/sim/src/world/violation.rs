//! What must never happen in a world, whatever the faults.

use archipelago::wire::{ConnId, FragmentId, LearnerId, LeaseId, Round, Version};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A fate for an update that never came, or a second one.
    #[error("an update of learner {learner} in round {round} has more than one fate")]
    FateTwice {
        /// Who sent it.
        learner: LearnerId,
        /// For which round.
        round: Round,
    },
    /// An update whose round is over has no fate.
    #[error("an update of learner {learner} in round {round}, which is over, has no fate")]
    NoFate {
        /// Who sent it.
        learner: LearnerId,
        /// For which round.
        round: Round,
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
    /// A message to a connection that never said who it is.
    #[error("connection {conn} was sent {what} before its `Welcome`")]
    Stranger {
        /// Which connection.
        conn: ConnId,
        /// What was sent.
        what: &'static str,
    },
}
