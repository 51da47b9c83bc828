//! Handlers of the driver for events and for the outputs of its core.

use std::sync::Arc;

use super::reconnect::DisconnectCause;
use super::{
    CLOSE_US_MAX, DELIVERY_US_MAX, End, Input, LearnerDriver, Output, Phase, RECEIPTS_US_MAX, Step, millis,
};
use crate::data::{HELD_OUT_BYTES_MAX, parse_held_out};
use crate::diloco::learner;
use crate::diloco::learner::DrainState;
use crate::wire::{
    Bye, Challenge, CloseCode, DecodeError, Fate, Message, REASON_BYTES_MAX, RunId, Version, clip,
};

/// Minimum time between two starts from scratch after too many refusals, in microseconds.
const RESTARTS_US_MIN: u64 = 3_600_000_000;

impl LearnerDriver {
    pub(super) fn react(&mut self, input: Input) {
        let now_us = self.now_us;
        match input {
            Input::Opened => {
                self.contact.opened(now_us);
                self.challenge = None;
            }
            Input::Heard => self.contact.heard(now_us),
            Input::Message(message) => self.on_message(message),
            Input::Garbled(error) => self.on_garbled(&error),
            Input::Closed { code, reason } => self.on_closed(code, reason),
            Input::Failed { device_lost, reason } => self.on_failed(device_lost, &reason),
            Input::Shard { shard, bytes } => self.on_shard(shard, bytes),
            Input::HeldOut { bytes } => self.on_held_out(bytes),
            Input::Measured { number, loss } => self.on_measured(number, loss),
            Input::Stepped(step) => self.on_stepped(step),
            Input::ExpertLoad { seen } => self.pass_to_learner(learner::Input::ExpertLoad { seen }),
            Input::Worked { us } => self.duty_cycle.work(us),
            Input::Waited { us } => {
                if !self.is_starved() {
                    self.duty_cycle.rest(us);
                }
            }
            Input::Duty { permille } => self.duty_cycle.set_duty(permille),
            Input::DrainNow => self.on_drain_now(),
            Input::Leave => self.on_leave(),
            Input::Flushed => self.on_flushed(),
            Input::Timeout => self.on_timeout(),
            Input::Fed => self.stall.end(),
            Input::Unfed { reason } => self.on_unfed(&reason),
            Input::FetchFailed { fragment, reason } => {
                self.on_unfed(&reason);
                self.trouble(format!("fragment {fragment} did not come: {reason}"));
                self.pass_to_learner(learner::Input::FetchFailed { fragment });
            }
            Input::Built { fragments, batch } => {
                self.supply.built(batch);
                self.pass_to_learner(learner::Input::Built { fragments, batch });
            }
            Input::Fetched { fragment, version, values } => {
                self.stall.end();
                self.pass_to_learner(learner::Input::Fetched { fragment, version, values });
            }
            Input::Encoded { serial, fragment, body, digest } => {
                self.pass_to_learner(learner::Input::Encoded { serial, fragment, body, digest });
            }
            Input::Paused(paused) => self.pass_to_learner(learner::Input::Paused(paused)),
            Input::Hidden(hidden) => self.pass_to_learner(learner::Input::Hidden(hidden)),
        }
    }

    fn pass_to_learner(&mut self, input: learner::Input) {
        self.learner.handle(millis(self.now_us), input);
    }

    fn trouble(&mut self, reason: String) {
        self.out.push_back(Output::Trouble { reason });
    }

    fn on_message(&mut self, message: Message) {
        if let Message::Challenge(challenge) = message {
            return self.on_challenge(challenge);
        }
        self.contact.answered(self.now_us);
        if self.take_measure_request(&message) {
            return;
        }
        match &message {
            Message::Welcome(_) => {
                self.contact.welcomed(self.now_us);
                self.supply.retry_now(self.now_us);
                if self.phase == Phase::Greeting {
                    self.phase = Phase::Training;
                }
            }
            Message::Receipt { fate: Fate::Merged { .. }, .. } => self.losses.merged(),
            _ => {}
        }
        self.pass_to_learner(learner::Input::Message(message));
    }

    /// Answers the first challenge of a connection. Later ones change nothing.
    fn on_challenge(&mut self, challenge: Challenge) {
        self.contact.heard(self.now_us);
        if self.challenge.replace(challenge).is_none() {
            self.pass_to_learner(learner::Input::Connected);
        }
    }

    fn on_garbled(&mut self, error: &DecodeError) {
        let (code, reason) = (error.close_code(), error.to_string());
        let farewell = Bye::new(code, reason.clone());
        // If even this cannot be sent, the close code conveys it.
        self.out.push_back(Output::Send(Message::Bye(Bye::new(code, clip(&reason, REASON_BYTES_MAX)))));
        if code == CloseCode::Version {
            self.out.push_back(Output::Close(farewell.clone()));
            self.end(End::Refused(farewell));
        } else {
            self.disconnect(
                Some(farewell),
                &DisconnectCause { reason: &reason, ..DisconnectCause::default() },
            );
        }
    }

    fn on_closed(&mut self, code: Option<u16>, reason: String) {
        let code = code.and_then(|code| CloseCode::try_from(code).ok()).filter(|_| !self.is_leaving());
        match code {
            // The goodbye was lost, but not its reason.
            Some(code) => self.pass_to_learner(learner::Input::Message(Message::Bye(Bye::new(code, reason)))),
            None => self.disconnect(None, &DisconnectCause { reason: &reason, ..DisconnectCause::default() }),
        }
    }

    /// Starts over after an engine error, if that can help.
    fn on_failed(&mut self, device_lost: bool, reason: &str) {
        if device_lost {
            let Some(wait_ms) = self.losses.lose() else { return self.end(End::DeviceLost) };
            self.contact.postpone(self.now_us.saturating_add(wait_ms * 1_000));
        }
        self.rejoin(reason, Bye::new(CloseCode::Done, "the learner starts afresh"));
    }

    fn on_shard(&mut self, shard: u32, bytes: Result<Vec<u8>, String>) {
        match bytes.map(|bytes| self.supply.add_shard(self.now_us, shard, bytes)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.trouble(format!("the received data cannot be used: {error}")),
            Err(reason) => {
                self.supply.failed(self.now_us, shard);
                self.trouble(format!("data did not come: {reason}"));
            }
        }
    }

    fn on_stepped(&mut self, Step { tokens, loss, busy_us, earlier_us }: Step) {
        self.duty_cycle.work(busy_us);
        let step_us = busy_us.saturating_add(earlier_us);
        // Rest is part of the step time, so that the syncer plans with it.
        let step_ms = (step_us.saturating_add(self.duty_cycle.rest_of(step_us)) as f64 / 1e3) as f32;
        self.stall.complete();
        self.pass_to_learner(learner::Input::Stepped(learner::Step { tokens, loss, step_ms }));
    }

    fn on_drain_now(&mut self) {
        if self.is_leaving() {
            return;
        }
        let trains = self.learner.is_ready() && self.learner.can_train();
        if trains && self.contact.is_doubtful(self.now_us) {
            self.disconnect(
                None,
                &DisconnectCause { reason: "nothing was heard for a while", ..DisconnectCause::default() },
            );
        }
        self.contact.retry_now(self.now_us);
    }

    fn on_leave(&mut self) {
        if !self.contact.is_open() {
            self.end(End::Left);
        } else if !self.is_leaving() {
            self.phase = Phase::Flushing { until_us: self.now_us.saturating_add(DELIVERY_US_MAX) };
            self.learner.drain(millis(self.now_us));
        }
    }

    fn on_flushed(&mut self) {
        let Phase::Flushing { until_us } = &mut self.phase else { return };
        match self.learner.drain_state() {
            DrainState::InFlight => {}
            DrainState::AwaitingFate => {
                *until_us = (*until_us).min(self.now_us.saturating_add(RECEIPTS_US_MAX));
            }
            DrainState::Drained => self.part(),
        }
    }

    /// Sends the goodbye and waits for the connection to close.
    fn part(&mut self) {
        self.learner.leave(millis(self.now_us));
        while let Some(output) = self.learner.poll() {
            self.carry_out(output);
        }
        self.out.push_back(Output::Close(Bye::new(CloseCode::Done, "the learner leaves")));
        self.phase = Phase::Parting { until_us: self.now_us.saturating_add(CLOSE_US_MAX) };
    }

    fn on_timeout(&mut self) {
        let now_us = self.now_us;
        match self.phase {
            Phase::Flushing { until_us } if until_us <= now_us => self.part(),
            Phase::Parting { until_us } if until_us <= now_us => self.end(End::Left),
            // The goodbye is sent, or will be at `until_us`.
            Phase::Flushing { .. } | Phase::Parting { .. } | Phase::Over => return,
            Phase::Greeting | Phase::Training => {
                let too_long = self.contact.too_long(now_us).or_else(|| self.stall.too_long(now_us));
                if let Some((waited_ms, reason)) = too_long {
                    return self.end(End::Unreachable { waited_ms, reason });
                }
                let awaited = self.awaits();
                if let Some(reason) = self.contact.timeout_reason(now_us, awaited) {
                    self.disconnect(None, &DisconnectCause { reason: &reason, ..DisconnectCause::default() });
                }
                if self.contact.connect(now_us) {
                    self.out.push_back(Output::Connect);
                }
            }
        }
        self.pass_to_learner(learner::Input::Timeout);
    }

    /// Returns true if the syncer's silence is measured. It is not before the member is ready, or while its owner
    /// pauses it.
    pub(super) fn awaits(&self) -> bool {
        self.learner.is_ready() && !self.learner.is_paused()
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Flushing { .. } | Phase::Parting { .. })
    }

    /// Carries out an output of the core, or passes it to the shell.
    pub(super) fn carry_out(&mut self, output: learner::Output) {
        use learner::Output as Request;
        self.out.push_back(match output {
            Request::Send(Message::Hello(hello)) => {
                let Some(challenge) = self.challenge else { return };
                Output::Greet { hello: Box::new(hello), challenge }
            }
            Request::Send(mut message) => {
                if !self.contact.is_open() {
                    return;
                }
                if let (Message::Progress(progress), Some(feed)) = (&mut message, self.supply.feed()) {
                    progress.leases = feed.progress();
                    feed.reported(&progress.leases);
                }
                Output::Send(message)
            }
            Request::Build(welcome) => {
                let rebuild = self.supply.plan(&welcome);
                Output::Build { welcome, rebuild }
            }
            Request::Fetch { fragment, version } => Output::Fetch { fragment, version },
            Request::Encode { serial, fragment } => Output::Encode { serial, fragment },
            Request::Include { fragment } => Output::Include { fragment },
            Request::Apply { fragment, body } => Output::Apply { fragment, body },
            Request::Load { fragment, values, keep } => Output::Load { fragment, values, keep },
            Request::Grant(grant) => match self.supply.feed().map(|feed| feed.grant(grant)) {
                Some(Err(error)) => Output::Trouble { reason: error.to_string() },
                Some(Ok(())) | None => return,
            },
            Request::RetainLeases(leases) => {
                return self.supply.feed().into_iter().for_each(|feed| feed.retain(&leases));
            }
            Request::Reconnect(bye) => {
                let Bye { code, reason, wait_ms } = bye.clone();
                let ending = DisconnectCause { reason: &reason, code: Some(code), wait_ms };
                return self.disconnect(Some(bye), &ending);
            }
            Request::Stop(bye) => return self.stop(bye),
        });
    }

    fn stop(&mut self, bye: Bye) {
        match bye.code {
            CloseCode::Done => {
                let Bye { code, reason, .. } = bye.clone();
                let ending = DisconnectCause { reason: &reason, code: Some(code), wait_ms: 0 };
                self.disconnect(Some(bye.clone()), &ending);
                self.end(End::Complete(bye));
            }
            CloseCode::WrongRun => self.rejoin(&bye.reason.clone(), bye),
            CloseCode::Untrusted if self.may_restart() => {
                self.restarted_us = Some(self.now_us);
                self.rejoin(&bye.reason.clone(), bye);
            }
            _ => {
                self.out.push_back(Output::Close(bye.clone()));
                self.end(End::Refused(bye));
            }
        }
    }

    /// Returns true if the member may start from scratch after [`CloseCode::Untrusted`]. Its fault may be temporary,
    /// but a second such goodbye within [`RESTARTS_US_MIN`] shows that it is permanent.
    fn may_restart(&self) -> bool {
        let is_rare = self.restarted_us.is_none_or(|at| self.now_us.saturating_sub(at) >= RESTARTS_US_MIN);
        self.phase == Phase::Training && is_rare
    }

    /// Handles a failed download. Before the member is ready, these failures are the only sign that the syncer is
    /// unreachable.
    fn on_unfed(&mut self, reason: &str) {
        if !self.learner.is_ready() {
            self.stall.begin(self.now_us, reason);
        }
    }

    /// Drops the connection, if there is one. If the member is leaving, its membership ends.
    fn disconnect(&mut self, farewell: Option<Bye>, ending: &DisconnectCause<'_>) {
        let Some(retry_ms) = self.contact.end(self.now_us, ending) else { return };
        self.measure.disconnected();
        if self.is_leaving() {
            return self.end(End::Left);
        }
        self.out.push_back(Output::Disconnect { farewell, reason: ending.reason.to_owned(), retry_ms });
        self.pass_to_learner(learner::Input::Disconnected);
    }

    /// Drops everything except the identity and the owner's settings, and joins from scratch.
    pub(super) fn rejoin(&mut self, reason: &str, farewell: Bye) {
        self.out.push_back(Output::Afresh { reason: reason.to_owned() });
        self.disconnect(Some(farewell), &DisconnectCause { reason, ..DisconnectCause::default() });
        self.learner.restart();
        self.supply.clear();
    }

    fn end(&mut self, end: End) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.out.push_back(Output::End(end));
        }
    }
}

/// State of the measurement of the held-out loss: the open request, and the windows to measure on.
#[derive(Debug, Default)]
pub(super) struct Measure {
    request: Option<MeasureRequest>,
    /// Held-out windows, `[n, context + 1]`, and their run.
    windows: Option<(RunId, Arc<[u32]>)>,
    is_fetching: bool,
}

/// Request of the syncer for the held-out loss.
#[derive(Debug)]
struct MeasureRequest {
    number: u32,
    versions: Vec<Version>,
}

impl Measure {
    /// Drops the request, because the connection was lost.
    pub(super) fn disconnected(&mut self) {
        (self.request, self.is_fetching) = (None, false);
    }
}

impl LearnerDriver {
    /// Stores `message` if it requests the held-out loss, and returns whether it has handled the message. A later
    /// request replaces an open one.
    pub(super) fn take_measure_request(&mut self, message: &Message) -> bool {
        let Message::Measure { run, number, versions } = message else { return false };
        if self.learner.run().is_none_or(|(of, _)| of != *run) {
            return false;
        }
        self.measure.request = Some(MeasureRequest { number: *number, versions: versions.clone() });
        true
    }

    /// Returns the next action for the open request. The caller has drained all other output. Until the parameters
    /// have the requested versions, there is no action.
    pub(super) fn next_measurement(&mut self) -> Option<Output> {
        let (run, _) = self.learner.run()?;
        let request = self.measure.request.as_ref()?;
        let mut held = self.learner.versions();
        if !request.versions.iter().all(|wanted| held.next().flatten().is_some_and(|held| held >= *wanted)) {
            return None;
        }
        drop(held);
        if let Some((_, windows)) = self.measure.windows.as_ref().filter(|(of, _)| *of == run) {
            let (windows, number) = (Arc::clone(windows), request.number);
            self.measure.request = None;
            return Some(Output::Measure { number, windows });
        }
        let begins = !std::mem::replace(&mut self.measure.is_fetching, true);
        begins.then_some(Output::FetchHeldOut { body_bytes_max: HELD_OUT_BYTES_MAX })
    }

    /// Handles the downloaded held-out windows. If they are missing or invalid, the member answers that it cannot
    /// measure the loss.
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
                if let Some(MeasureRequest { number, .. }) = self.measure.request.take() {
                    self.on_measured(number, None);
                }
            }
        }
    }

    /// Sends the loss for the request `number`, in nats per token; `None` if it could not be measured.
    pub(super) fn on_measured(&mut self, number: u32, loss: Option<f32>) {
        if let Some((run, _)) = self.learner.run().filter(|_| self.contact.is_open()) {
            let loss = loss.filter(|loss| loss.is_finite());
            self.out.push_back(Output::Send(Message::Measured { run, number, loss }));
        }
    }
}
