//! What a member measures that the run's owner trusts with it: the held-out loss, when the syncer asks.

use std::sync::Arc;

use super::{Member, Output};
use crate::data::{HELD_OUT_BYTES_MAX, parse_held_out};
use crate::wire::{Message, RunId, Version};

/// The question that is open, and what is measured on.
#[derive(Debug, Default)]
pub(super) struct Measure {
    asked: Option<Asked>,
    /// The held-out windows, `[n, context + 1]`, and the run that they are of.
    windows: Option<(RunId, Arc<[u32]>)>,
    is_fetching: bool,
}

/// A question of the syncer's.
#[derive(Debug)]
struct Asked {
    number: u32,
    versions: Vec<Version>,
}

impl Measure {
    /// The connection is gone, and with it whoever asked.
    pub(super) fn disconnected(&mut self) {
        (self.asked, self.is_fetching) = (None, false);
    }
}

impl Member {
    /// Takes in `message` if it asks for the held-out loss; whether it does. A later question replaces the one before.
    pub(super) fn is_asked(&mut self, message: &Message) -> bool {
        let Message::Measure { run, number, versions } = message else { return false };
        if self.learner.run().is_none_or(|(of, _)| of != *run) {
            return false;
        }
        self.measure.asked = Some(Asked { number: *number, versions: versions.clone() });
        true
    }

    /// What there is to do about the question, once everything else is done: the parameters are at these versions then.
    pub(super) fn measures(&mut self) -> Option<Output> {
        let (run, _) = self.learner.run()?;
        let asked = self.measure.asked.as_ref()?;
        let mut held = self.learner.versions();
        if !asked.versions.iter().all(|wanted| held.next().flatten().is_some_and(|held| held >= *wanted)) {
            return None;
        }
        drop(held);
        if let Some((_, windows)) = self.measure.windows.as_ref().filter(|(of, _)| *of == run) {
            let (windows, number) = (Arc::clone(windows), asked.number);
            self.measure.asked = None;
            return Some(Output::Measure { number, windows });
        }
        let begins = !std::mem::replace(&mut self.measure.is_fetching, true);
        begins.then_some(Output::FetchHeldOut { body_bytes_max: HELD_OUT_BYTES_MAX })
    }

    /// The held-out windows came, or why they did not: then the question is answered by that it cannot be.
    pub(super) fn on_held_out(&mut self, bytes: Result<Vec<u8>, String>) {
        self.measure.is_fetching = false;
        let (Some((run, _)), Some(spec)) = (self.learner.run(), self.supply.spec()) else { return };
        let (context, vocab) = (spec.model.context, spec.model.vocab);
        let parse =
            |bytes: Vec<u8>| parse_held_out(&bytes, context, vocab).map_err(|error| error.to_string());
        match bytes.and_then(parse) {
            Ok(windows) => self.measure.windows = Some((run, windows.into())),
            Err(reason) => {
                self.out.push_back(Output::Trouble { reason: format!("no held-out text: {reason}") });
                if let Some(Asked { number, .. }) = self.measure.asked.take() {
                    self.on_measured(number, None);
                }
            }
        }
    }

    /// The loss of the question `number`, if it could be measured.
    pub(super) fn on_measured(&mut self, number: u32, loss: Option<f32>) {
        if let Some((run, _)) = self.learner.run().filter(|_| self.contact.is_open()) {
            let loss = loss.filter(|loss| loss.is_finite());
            self.out.push_back(Output::Send(Message::Measured { run, number, loss }));
        }
    }
}
