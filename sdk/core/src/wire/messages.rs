//! The table of messages: everything that crosses the socket, one row each. See `table.rs` for what a row becomes.

use super::codec::{read, write};
use super::table::{Class, Sender, messages};
use super::{
    BODY_BYTES_MAX, Bye, CHUNK_BYTES, DecodeError, Fate, FragmentId, HEADER_BYTES, Hello, LayoutHash,
    LeaseGrant, Merged, Progress, Round, RunId, Share, Update, Version, Welcome,
};

/// Body bytes of a message of a few numbers, at most.
const SHORT: u32 = 64;
/// Body bytes of a message with names or a reason in it, at most.
const TEXT: u32 = 1 << 10;
/// Room for [`crate::data::LEASES_MAX`] leases.
const REPORT: u32 = 16 << 10;
/// Room for 70,000 shards. The lists of a `Welcome` take up to 16 times as much memory, unlike coded parameters.
const WELCOME: u32 = 4 << 20;
/// What a frame has room for after the header of a chunk.
const CHUNK_BODY_BYTES_MAX: u32 = CHUNK_BYTES - HEADER_BYTES as u32;

messages! {
    /// Who I am. The first message of a connection.
    Hello(hello: Hello) = 1 { from: Learner, class: Greeting, bytes_max: TEXT, run: None }

    /// Your id and the run. The answer to `Hello`.
    Welcome(welcome: Box<Welcome>) = 2 {
        from: Syncer, class: Greeting, bytes_max: WELCOME, run: Some(welcome.run)
    }

    /// I hold the parameters of this layout and train from now on.
    Ready {
        /// The run.
        run: RunId,
        /// The layout that the learner computed from the run's description.
        layout: LayoutHash,
    } = 3 { from: Learner, class: Greeting, bytes_max: SHORT, run: Some(*run) }

    /// Answer with your progress on `fragment` since version `base`.
    Collect {
        /// The run.
        run: RunId,
        /// The round that asks.
        round: Round,
        /// The fragment asked for.
        fragment: FragmentId,
        /// The version that the answer is to be relative to.
        base: Version,
    } = 4 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

    /// My progress on one fragment.
    Update(update: Update) = 5 {
        from: Learner, class: Bulk, bytes_max: BODY_BYTES_MAX, run: Some(update.run)
    }

    /// I have nothing to report for this round.
    Pass {
        /// The run.
        run: RunId,
        /// The round that it answers.
        round: Round,
        /// The fragment that was asked for.
        fragment: FragmentId,
    } = 6 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

    /// What became of your update. It comes before the `Merged` of the same round.
    Receipt {
        /// The run.
        run: RunId,
        /// The round of the update.
        round: Round,
        /// The fragment of the update.
        fragment: FragmentId,
        /// What became of it.
        fate: Fate,
    } = 7 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

    /// The merged change of one fragment.
    Merged(merged: Merged) = 8 {
        from: Syncer, class: Bulk, bytes_max: BODY_BYTES_MAX, run: Some(merged.run)
    }

    /// These windows are yours to train on.
    Lease {
        /// The run.
        run: RunId,
        /// The windows.
        grant: LeaseGrant,
    } = 9 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

    /// How far I am. A learner says so at least every [`crate::wire::PROGRESS_MS`].
    Progress(progress: Progress) = 10 {
        from: Learner, class: Control, bytes_max: REPORT, run: Some(progress.run)
    }

    /// The last message of a connection.
    Bye(bye: Bye) = 11 { from: Both, class: Control, bytes_max: TEXT, run: None }

    /// The owner holds the run, or lets it go on. A learner does not train while the run is held.
    Hold {
        /// The run.
        run: RunId,
        /// Whether it is held.
        held: bool,
    } = 13 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

    /// The owner lets you train for this share of the time that you would train. 1 is all of it.
    Pace {
        /// The run.
        run: RunId,
        /// The share of its time.
        share: Share,
    } = 14 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }
}

impl Message {
    /// Whether it carries parameters: such messages give way to all others in a queue.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.tag().class() == Class::Bulk
    }

    /// Whether a learner may send it. A syncer refuses what only syncers say.
    #[must_use]
    pub fn is_for_syncers(&self) -> bool {
        self.tag().sender() != Sender::Syncer
    }

    /// Whether a syncer may send it. A learner refuses what only learners say.
    #[must_use]
    pub fn is_for_learners(&self) -> bool {
        self.tag().sender() != Sender::Learner
    }
}
