//! A run on several machines: gateways, which hold the sockets of learners, and owners of fragments, as pure machines.
//!
//! An [`Owner`] leads the rounds of one fragment, with the same `Rounds` as a syncer in one process. Bodies stay where
//! learners brought them: a [`Gateway`] offers the owner all but the body of an update, learns what each weighs, and
//! sends the sum of those it holds. So an owner gets one sum from each gateway, however many learners there are.
//! Sums are exact ([`PartialSum`](crate::diloco::PartialSum)), and a merge has the bits that it has in one process.
//!
//! Four services stand between them. Each is a few messages, so that a process, a simulated one with faults and a real
//! one can serve:
//!
//! | service | what it does | what is asked of it |
//! |---|---|---|
//! | tape | [`Record`]s of a fragment, numbered 1, 2, 3 …; append after the last one known | what it took stays |
//! | blobs | bytes under a key, written once, until nobody needs them | the same |
//! | roster | a lease for each fragment, which runs out | liveness only: it may be wrong |
//! | bus | [`Notice`]s to all gateways, [`Reply`]s to an owner | nothing: it may lose, repeat and reorder |
//!
//! Records, notices and replies are [`AsBytes`] on all of them.
//!
//! What the owner of the run orders is on a tape of its own, [`OF_THE_RUN`], which every process reads: see [`Decree`].
//!
//! # Why nothing is merged twice, and nothing that was told is lost
//! - **A fence, and no clock.** An owner stores the state that a merge led to, appends the record with the last number
//!   that it knows, and only then tells anybody. Whoever takes over appends [`Record::Took`] first, so whatever a
//!   former owner appends after that is refused, whatever it believes about its lease.
//! - **A round is the number of the record that ends it**, and so is the version. Each round ends in exactly one
//!   record of this number: it was merged, or it came to nothing. The first record of another owner ends the round of
//!   the one before.
//! - **An update is of one round.** Whether it was merged says the record of that round, so any gateway can tell, and
//!   a learner that comes back elsewhere sends nothing of that fragment until it knows. What was not merged stays with
//!   it.

mod bytes;
mod clock;
mod crowds;
mod decree;
mod follow;
mod gateway;
mod kept;
mod measured;
mod owner;
mod stage;
mod state;
mod terms;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub use bytes::{AsBytes, BytesError, LAYOUT, MAGIC};
pub use decree::{Decree, OF_THE_RUN, Orders};
pub use follow::{FollowError, follow};
pub use gateway::{Gateway, GatewayInput, GatewayOrder, GatewayTerms, Unsettled};
pub use owner::{Owner, OwnerInput};
use serde::{Deserialize, Serialize};
pub use state::{state_bytes, state_of};
pub use terms::OwnerTerms;

use crate::diloco::syncer::Paces;
use crate::diloco::{MergeEntry, Standing, SumPlan, Verified};
use crate::wire::{LearnerId, Refusal, Round, Serial};

/// A gateway of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatewayId(pub u32);

/// One process of an owner; another one of the same program has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

/// What the tape of a fragment has under one number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// This process owns the fragment from here on.
    Took(ProcessId),
    /// The round of this number led to the version of this number.
    Merged {
        /// All of the merge but the bodies of its updates.
        merge: Box<MergeEntry>,
        /// Checksum of the state that it led to, which is in the blob of this number: see [`state_bytes`].
        state: u64,
    },
    /// The round of this number came to nothing.
    Abandoned,
    /// The last round is over: no record follows this one.
    Finished,
    /// What the owner of the run ordered: on the tape [`OF_THE_RUN`] alone, which has nothing else.
    Decreed(Decree),
}

impl Record {
    /// Whether the update `serial` of `learner` was merged by this record.
    #[must_use]
    pub fn has_merged(&self, learner: LearnerId, serial: Serial) -> bool {
        let Self::Merged { merge, .. } = self else { return false };
        merge.parts.iter().any(|part| (part.learner, part.serial) == (learner, serial))
    }
}

/// What an owner tells all gateways over the bus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// Learners are to hand in their progress.
    Collect {
        /// For this round.
        round: Round,
        /// Those of them who are to; all if that is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invited: Option<BTreeSet<LearnerId>>,
        /// Of how many learners an update was offered so far, by the gateways that offered them.
        heard: BTreeMap<GatewayId, u32>,
    },
    /// The gateways named are to add up the updates that they hold of those named.
    Weigh {
        /// The round.
        round: Round,
        /// On these segments directions cancelled out, and all is added up once more.
        cancelled: Vec<u32>,
        /// By which they are added up.
        #[serde(with = "bytes::shared")]
        plan: Arc<SumPlan>,
        /// What each weighs, by the gateway that holds it.
        #[serde(with = "bytes::shared")]
        weights: Arc<Vec<(GatewayId, Vec<Weighing>)>>,
    },
    /// The round has ended: the tape says how.
    Ended(Round),
    /// In this round these updates are not merged, for what is wrong with them.
    Refused {
        /// The round.
        round: Round,
        /// Whose, as its sender numbered it, and what is wrong.
        refused: Vec<(LearnerId, Serial, Refusal)>,
    },
}

/// What one update weighs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weighing {
    /// Whose it is.
    pub learner: LearnerId,
    /// As its sender numbered it.
    pub serial: Serial,
    /// Its weight against the others'.
    pub weight: f64,
    /// Its weight for each expert of the fragment.
    pub experts: Vec<f64>,
    /// Steps that it may be as long as.
    pub steps: u32,
}

/// What a gateway says to an owner over the bus.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// These learners are connected to it, or wait to be.
    Here {
        /// Which gateway.
        gateway: GatewayId,
        /// Those who are there.
        #[serde(with = "bytes::compact::learners")]
        learners: BTreeSet<LearnerId>,
        /// Whether one of them waits for the end of a round of each fragment before it takes part.
        waits: bool,
        /// How fast they are.
        paces: Paces,
    },
    /// Learners of its have nothing to report in this round.
    Pass {
        /// The round.
        round: Round,
        /// Whose answers are no longer waited for.
        #[serde(with = "bytes::compact::learners")]
        learners: BTreeSet<LearnerId>,
    },
    /// It holds updates for this round.
    Offers {
        /// Which gateway.
        gateway: GatewayId,
        /// The round.
        round: Round,
        /// All that were not offered yet, or of which nobody knows whether that was heard.
        #[serde(with = "bytes::compact::values")]
        offers: Vec<Offer>,
    },
    /// The sum of the updates that it was to add up.
    Sum {
        /// Which gateway.
        gateway: GatewayId,
        /// The round.
        round: Round,
        /// As the notice that asked for it.
        cancelled: Vec<u32>,
        /// As [`PartialSum::to_bytes`](crate::diloco::PartialSum::to_bytes) gives it.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
}

/// An update that a gateway holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Whose it is.
    pub learner: LearnerId,
    /// All of it but the bytes of its body.
    pub update: Verified,
    /// What is known of its sender.
    pub standing: Standing,
}

/// What an owner asks of the tape, the blobs, the bus, and of who drives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Append a record, if the last one has this number.
    Append {
        /// Which of its records it is, by the owner's count: what is said of an earlier one says nothing of this one.
        turn: u64,
        /// The last number that the owner knows.
        expect: u64,
        /// The record.
        record: Record,
    },
    /// Read all records after this number.
    Read(u64),
    /// Store bytes under this key, if there are none.
    Store(u64, Arc<Vec<u8>>),
    /// Load what is stored under this key.
    Load(u64),
    /// Make the state that the fragment begins in, for [`OwnerInput::Begun`]. That may take its time; it is asked for
    /// again meanwhile.
    Begin,
    /// Nobody will load what is stored under these keys: it may go. Nothing is said of it.
    Forget(Range<u64>),
    /// Tell all gateways.
    Tell(Notice),
}
