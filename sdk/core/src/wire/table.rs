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
            /// Prove who you are. The first message of a connection.
            Challenge(challenge: Challenge) = 18 {
                from: Syncer, class: Greeting, bytes_max: SHORT, run: Some(challenge.run)
            }

            /// Who I am. The answer to `Challenge`.
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
                /// Windows that it trains on in one step, 1 to [`crate::wire::BATCH_MAX`].
                batch: u32,
            } = 3 { from: Learner, class: Greeting, bytes_max: SHORT, run: Some(*run) }

            /// Answer with your progress on `fragment`.
            Collect {
                /// The run.
                run: RunId,
                /// The fragment asked for.
                fragment: FragmentId,
                /// The version that the syncer holds. Where progress is additive, an answer may be relative to an
                /// older one.
                base: Version,
            } = 4 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// My progress on one fragment.
            Update(update: Update) = 5 {
                from: Learner, class: Bulk, bytes_max: BODY_BYTES_MAX, run: Some(update.run)
            }

            /// I have nothing to report on this fragment.
            Pass {
                /// The run.
                run: RunId,
                /// The fragment that was asked for.
                fragment: FragmentId,
            } = 6 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// What became of your update. It comes before the `Merged` of the version that it is part of.
            Receipt {
                /// The run.
                run: RunId,
                /// The fragment of the update.
                fragment: FragmentId,
                /// The update.
                serial: Serial,
                /// What became of it.
                fate: Fate,
            } = 7 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// The merged change of one fragment.
            Merged(merged: Merged) = 8 {
                from: Syncer, class: Bulk, bytes_max: BODY_BYTES_MAX, run: Some(merged.run)
            }

            /// Your update is here; its fate follows.
            Arrived {
                /// The run.
                run: RunId,
                /// The fragment of the update.
                fragment: FragmentId,
                /// The update.
                serial: Serial,
            } = 15 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// I hold this version of the fragment: send me what follows on it.
            Holds {
                /// The run.
                run: RunId,
                /// The fragment.
                fragment: FragmentId,
                /// The version.
                version: Version,
            } = 16 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// I send you no changes of this fragment any more, since your link cannot carry them: fetch it whole when
            /// you can, and say what you hold.
            Behind {
                /// The run.
                run: RunId,
                /// The fragment.
                fragment: FragmentId,
                /// The version that there is.
                version: Version,
            } = 17 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

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

            /// Say what the held-out loss is at these versions, or at later ones that you hold by then. Whom the run's
            /// owner trusts with that is asked, one question at a time.
            Measure {
                /// The run.
                run: RunId,
                /// Names the question in the answer.
                number: u32,
                /// The version of each fragment, `[P]`.
                versions: Vec<Version>,
            } = 23 { from: Syncer, class: Control, bytes_max: VERSIONS, run: Some(*run) }

            /// The held-out loss that you asked for.
            Measured {
                /// The run.
                run: RunId,
                /// The question.
                number: u32,
                /// Mean loss of Θ̂ over the held-out windows, in nats per token; none if it cannot be measured here.
                loss: Option<f32>,
            } = 24 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

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
