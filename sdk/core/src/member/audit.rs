//! What a member commits to, and how it answers when it is asked.

use super::{Member, Output};
use crate::audit::{Op, Recorder};
use crate::diloco::learner;
use crate::wire::{Bye, CloseCode, Message, Serial};

impl Member {
    /// The engine that was just made gives the same bits everywhere.
    pub(super) fn on_exact(&mut self) {
        let run = self.learner.run().map(|(run, _)| run);
        let recorder = run.zip(self.supply.spec()).map(|(run, spec)| {
            let exchange = &spec.exchange;
            Recorder::new(run, exchange.fragments, exchange.apply, spec.model.context.into())
        });
        self.recorder = recorder;
    }

    pub(super) fn on_state(&mut self, serial: Serial, state: Vec<u8>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.close(serial, state);
        }
    }

    /// Whether `message` is about what this member committed to.
    pub(super) fn is_of_audits(&self, message: &Message) -> bool {
        let run = self.learner.run().map(|(run, _)| run);
        matches!(message, Message::Audit { .. } | Message::Anchor { .. }) && message.run() == run
    }

    pub(super) fn on_audit(&mut self, message: &Message) {
        let Some(recorder) = &mut self.recorder else { return };
        match message {
            Message::Audit { serial, piece, .. } => match recorder.answer(*serial, *piece) {
                Some(evidence) => self.out.push_back(Output::Send(evidence)),
                None => self.out.push_back(Output::Trouble {
                    reason: format!("the syncer asks for an update {serial} that nothing is kept of"),
                }),
            },
            Message::Anchor { state, .. } if !recorder.anchored(*state) => {
                let reason = "the syncer knows this learner by another state than any that it has been in";
                self.afresh(reason, Bye::new(CloseCode::Done, "the learner starts afresh"));
            }
            _ => {}
        }
    }

    /// Notes what the engine is to be given, and commits to an update just before it is sent.
    pub(super) fn record(&mut self, output: &learner::Output) {
        let Some(recorder) = &mut self.recorder else { return };
        recorder_takes(recorder, output);
        if let learner::Output::Send(Message::Update(update)) = output
            && self.contact.is_open()
            && let Some(commitment) = recorder.commit(update.serial)
        {
            self.out.push_back(Output::Send(commitment));
        }
        if recorder.is_full() {
            let reason =
                "more was trained without an update than a learner that is audited may keep a list of";
            self.afresh(reason, Bye::new(CloseCode::Done, "the learner starts afresh"));
        }
    }
}

fn recorder_takes(recorder: &mut Recorder, output: &learner::Output) {
    use learner::Output as Wish;
    recorder.note(match *output {
        Wish::Encode { serial, fragment } => Op::Encode { serial, fragment },
        Wish::Include { fragment } => Op::Include { fragment },
        Wish::Apply { fragment, version, .. } => Op::Take { fragment, version, keep: true },
        Wish::Load { fragment, version, keep, .. } => Op::Take { fragment, version, keep },
        _ => return,
    });
}
