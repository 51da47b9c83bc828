//! The table of messages: one row for each kind of message on the socket.
//!
//! A row has the form
//!
//! ```text
//! /// Content of the message.
//! Name { /// Content of the field.
//!        field: Type, … }          or  Name(name: Type), where `Type` is a struct with these fields
//!     = number { from: Sender, class: Class, bytes_max: u32, run: Option<RunId> }
//! ```
//!
//! and its body on the wire is the MessagePack array of the fields in this order. `run` is an expression over the
//! row's own fields. `messages.rs` derives the numbers, the limits, the messages and their encoding from the rows. A
//! new message needs a row here, a row in `WIRE.md` and a sample in `tests`; the tests report missing ones.

/// Passes all rows to the macro `$then`.
macro_rules! each_message {
    ($then:ident) => {
        $then! {
            /// Request to prove the learner's identity; the first message of a connection.
            Challenge(challenge: Challenge) = 18 {
                from: Syncer, class: Greeting, bytes_max: SHORT, run: Some(challenge.run)
            }

            /// Introduction of a learner; the answer to `Challenge`.
            Hello(hello: Hello) = 1 { from: Learner, class: Greeting, bytes_max: TEXT, run: None }

            /// Admission of a learner, with its id and the run; the answer to `Hello`.
            Welcome(welcome: Box<Welcome>) = 2 {
                from: Syncer, class: Greeting, bytes_max: WELCOME, run: Some(welcome.run)
            }

            /// The learner has the parameters of this layout and trains from now on.
            Ready {
                /// The run.
                run: RunId,
                /// The layout that the learner computed from the run's description.
                layout: LayoutHash,
                /// Windows in one step of the learner, 1 to [`crate::wire::BATCH_MAX`].
                batch: u32,
            } = 3 { from: Learner, class: Greeting, bytes_max: SHORT, run: Some(*run) }

            /// Request for the learner's progress on `fragment`.
            Collect {
                /// The run.
                run: RunId,
                /// The requested fragment.
                fragment: FragmentId,
                /// Version that the syncer holds. If progress is additive, an answer may be relative to an older
                /// version.
                base: Version,
            } = 4 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Progress of a learner on one fragment.
            Update(update: Update) = 5 {
                from: Learner, class: Bulk, bytes_max: BODY_BYTES_MAX, run: Some(update.run)
            }

            /// The learner has no progress to report on this fragment.
            NoUpdate {
                /// The run.
                run: RunId,
                /// The requested fragment.
                fragment: FragmentId,
            } = 6 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Fate of an update. It is sent before the `Merged` with the version that includes the update.
            Receipt {
                /// The run.
                run: RunId,
                /// The fragment of the update.
                fragment: FragmentId,
                /// The update.
                serial: Serial,
                /// Fate of the update.
                fate: Fate,
            } = 7 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Merged change of one fragment.
            Merged(merged: Merged) = 8 {
                from: Syncer, class: Bulk, bytes_max: BODY_BYTES_MAX, run: Some(merged.run)
            }

            /// The syncer received the update; the fate follows.
            UpdateReceived {
                /// The run.
                run: RunId,
                /// The fragment of the update.
                fragment: FragmentId,
                /// The update.
                serial: Serial,
            } = 15 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Version of a fragment that the learner holds. The syncer sends the changes that follow it.
            VersionAck {
                /// The run.
                run: RunId,
                /// The fragment.
                fragment: FragmentId,
                /// The version.
                version: Version,
            } = 16 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// The syncer sends no further changes of this fragment, because the link cannot carry them. The learner
            /// fetches the whole fragment when its link allows, and answers with `VersionAck`.
            Resync {
                /// The run.
                run: RunId,
                /// The fragment.
                fragment: FragmentId,
                /// Current version.
                version: Version,
            } = 17 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Windows leased to the learner.
            Lease {
                /// The run.
                run: RunId,
                /// The windows.
                grant: LeaseGrant,
            } = 9 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Report of a learner, sent at least every [`crate::wire::PROGRESS_MS`] milliseconds.
            Progress(progress: Progress) = 10 {
                from: Learner, class: Control, bytes_max: REPORT, run: Some(progress.run)
            }

            /// The last message of a connection.
            Bye(bye: Bye) = 11 { from: Both, class: Control, bytes_max: TEXT, run: None }

            /// The owner paused or resumed the run. A learner does not train while the run is paused.
            SetPaused {
                /// The run.
                run: RunId,
                /// Whether the run is paused.
                held: bool,
            } = 13 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Request for the held-out loss at these versions, or at later ones that the learner holds when it
            /// measures. It is sent only to learners that the owner of the run trusts with it, one request at a time.
            Measure {
                /// The run.
                run: RunId,
                /// Number of the request, repeated in the answer.
                number: u32,
                /// The version of each fragment, `[P]`.
                versions: Vec<Version>,
            } = 23 { from: Syncer, class: Control, bytes_max: VERSIONS, run: Some(*run) }

            /// Held-out loss; the answer to `Measure`.
            Measured {
                /// The run.
                run: RunId,
                /// Number of the request.
                number: u32,
                /// Mean loss of Θ̂ over the held-out windows, in nats per token; `None` if the learner cannot measure
                /// it.
                loss: Option<f32>,
            } = 24 { from: Learner, class: Control, bytes_max: SHORT, run: Some(*run) }

            /// Part of its training time that the owner allows the learner; 1 is all of it.
            SetDutyCycle {
                /// The run.
                run: RunId,
                /// Allowed part of the training time.
                share: Share,
            } = 14 { from: Syncer, class: Control, bytes_max: SHORT, run: Some(*run) }
        }
    };
}

pub(super) use each_message;
