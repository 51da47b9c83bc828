//! The table of messages: everything that crosses the socket, one row each.
//!
//! A row is
//!
//! ```text
//! /// What it says, in the words of its sender.
//! Name { /// What the field is.
//!        field: Type, … }          or  Name(name: Type), where `Type` is a struct with these fields
//!     = number { from: Sender, class: Class, bytes_max: u32, run: Option<RunId> }
//! ```
//!
//! and its body on the wire is the MessagePack array of the fields in this order. `run` is an expression over the
//! row's own fields. `tag.rs` makes numbers and limits of the rows, `messages.rs` the messages and their bytes. Whoever
//! adds a message writes its row here, its row in `WIRE.md`, and one sample in `tests`; the tests name what is missing.

/// Hands all rows to the macro `$then`.
macro_rules! each_message {
    ($then:ident) => {
        $then! {
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
    };
}

pub(super) use each_message;
