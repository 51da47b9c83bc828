//! Measurement of the held-out loss by a member, on request of the syncer. Only trusted learners are asked.

use std::sync::Arc;

use super::{LearnerDriver, Output};
use crate::data::{HELD_OUT_BYTES_MAX, parse_held_out};
use crate::wire::{Message, RunId, Version};

/// Open request, and the windows to measure on.
#[derive(Debug, Default)]
pub(super) struct Measure {
    asked: Option<Asked>,
    /// Held-out windows, `[n, context + 1]`, and their run.
    windows: Option<(RunId, Arc<[u32]>)>,
    is_fetching: bool,
}

/// A request from the syncer.
#[derive(Debug)]
struct Asked {
    number: u32,
    versions: Vec<Version>,
}

impl Measure {
    /// Drops the request along with the lost connection.
    pub(super) fn disconnected(&mut self) {
        (self.asked, self.is_fetching) = (None, false);
    }
}

impl LearnerDriver {
    /// Accepts `message` if it requests the held-out loss, and returns whether it does. A later request replaces an
    /// open one.
    pub(super) fn is_asked(&mut self, message: &Message) -> bool {
        let Message::Measure { run, number, versions } = message else { return false };
        if self.learner.run().is_none_or(|(of, _)| of != *run) {
            return false;
        }
        self.measure.asked = Some(Asked { number: *number, versions: versions.clone() });
        true
    }

    /// Returns the next action for the request, once all other output is done and the parameters have the requested
    /// versions.
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

    /// Handles the held-out windows. If they are missing or invalid, the answer is that the loss cannot be measured.
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

    /// Sends the loss for the request `number`; `None` if it could not be measured.
    pub(super) fn on_measured(&mut self, number: u32, loss: Option<f32>) {
        if let Some((run, _)) = self.learner.run().filter(|_| self.contact.is_open()) {
            let loss = loss.filter(|loss| loss.is_finite());
            self.out.push_back(Output::Send(Message::Measured { run, number, loss }));
        }
    }
}
