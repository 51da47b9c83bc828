//! The learner of a run, as a state machine.
//!
//! It has the same three kinds of methods as the syncer: [`Learner::handle`] takes an input, [`Learner::poll`]
//! returns the next output, and [`Learner::deadline`] returns the next wake-up time. The shell trains whenever
//! [`Learner::can_train`] and it has windows, connected or not, and drains `poll` between steps. Nothing here ever
//! waits for the network.

mod io;
mod join;
mod meter;
mod track;
mod upload;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

pub use io::{Input, Output, Step};
use upload::ANY_VERSION;
pub use upload::HandsIn;

use super::checksum;
use super::window::Window;
use super::{FragmentExpert, Fragments};
use crate::wire::{
    ApplyPolicy, Bye, CloseCode, Fate, FragmentId, Identity, Invite, LayoutHash, LearnerId, LearnerState,
    Merged, Message, Millis, PROGRESS_MS, RunId, Serial, Share, Version,
};
use meter::Meter;
use track::{Fetch, Track};

/// Identity of a learner, as it introduces itself.
#[derive(Clone, Debug)]
pub struct LearnerConfig {
    /// Public key, the same at each start.
    pub identity: Identity,
    /// Display name.
    pub name: String,
    /// Display name of the device.
    pub device: String,
    /// Invite, if the run's owner requires one.
    pub invite: Option<Invite>,
    /// Number of the first update. Each process of a learner should have a range of its own.
    pub serial_first: u64,
}

/// State machine of one learner.
pub struct Learner {
    config: LearnerConfig,
    connected: bool,
    /// Whether the learner was welcomed on this connection. Before that, the outcome of earlier updates is unknown.
    welcomed: bool,
    paused: bool,
    hidden: bool,
    starved: bool,
    /// Whether the learner is leaving, and sends its last updates.
    hands_in: bool,
    part: Option<Part>,
    serial_next: u64,
    meter: Meter,
    out: VecDeque<Output>,
}

/// State in one run.
struct Part {
    run: RunId,
    learner: LearnerId,
    layout: LayoutHash,
    policy: ApplyPolicy,
    tracks: Vec<Track>,
    /// Open questions, oldest first, each with the version that the syncer held.
    asked: VecDeque<(FragmentId, Version)>,
    /// Window of bodies on their way to the syncer.
    upload: Window,
    /// Time before which no fragment is fetched while the learner can train: its link has other data to carry, too.
    fetch_after: Millis,
    /// `None` until the model is built.
    fragments: Option<Arc<Fragments>>,
    /// Windows in one step, once the model is built.
    batch: NonZeroU32,
    /// Merged tokens of the run that count for its schedule, as last received, and own tokens since then.
    clock_tokens: u64,
    own_tokens: u64,
    /// Whether it reported on this connection that it is ready.
    ready: bool,
    /// Whether the run's owner has paused it, as last received.
    held: bool,
    /// Share that the run's owner allows it, as last received.
    share: Share,
}

impl Learner {
    /// Creates a learner that has not joined a run.
    #[must_use]
    pub fn new(config: LearnerConfig) -> Self {
        Self {
            serial_next: config.serial_first,
            config,
            connected: false,
            welcomed: false,
            paused: false,
            hidden: false,
            starved: false,
            hands_in: false,
            part: None,
            meter: Meter::default(),
            out: VecDeque::new(),
        }
    }

    /// Discards all state but its identity, its numbering and its owner's settings, so that it joins as a new
    /// learner.
    pub fn restart(&mut self) {
        let fresh = Self::new(self.config.clone());
        let Self { paused, hidden, serial_next, .. } = *self;
        *self = Self { paused, hidden, serial_next, ..fresh };
    }

    /// Takes an input at `now`, which never goes back.
    pub fn handle(&mut self, now: Millis, input: Input) {
        match input {
            Input::Connected => self.on_connected(),
            Input::Disconnected => self.on_disconnected(),
            Input::Message(message) => self.on_message(now, message),
            Input::Built { fragments, batch } => self.on_built(now, fragments, batch),
            Input::Fetched { fragment, version, values } => self.on_fetched(now, fragment, version, values),
            Input::FetchFailed { fragment } => self.on_fetch_failed(now, fragment),
            Input::Encoded { serial, fragment, body, digest } => {
                self.on_encoded(now, serial, fragment, body, digest);
            }
            Input::Stepped(step) => self.on_stepped(now, step),
            Input::ExpertLoad { seen } => self.on_saw(&seen),
            Input::Paused(paused) => {
                self.paused = paused;
                self.report(now);
            }
            Input::Hidden(hidden) => {
                self.hidden = hidden;
                self.report(now);
            }
            Input::Timeout => self.on_timeout(now),
        }
    }

    /// Returns the next output. Call it until `None` after every [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Returns the time at which to handle [`Input::Timeout`] if nothing else happens before; always after `now`.
    #[must_use]
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        let part = self.part.as_ref()?;
        let retries = self.fetch_at();
        let report = (self.connected && part.ready).then(|| self.report_at(now));
        retries.into_iter().chain(report).min().map(|at| at.max(now.after(1)))
    }

    /// Returns true if there are parameters to train, and neither its owner nor the run's owner has paused it.
    #[must_use]
    pub fn can_train(&self) -> bool {
        !self.paused && self.part.as_ref().is_some_and(|part| part.is_loaded() && !part.held)
    }

    /// Returns true if its owner has paused it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns true if it reported on this connection that it holds the parameters. From then on it takes part in
    /// rounds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && self.part.as_ref().is_some_and(|part| part.ready)
    }

    /// Returns its present state.
    #[must_use]
    pub(crate) fn state(&self) -> LearnerState {
        match self {
            Self { paused: true, .. } => LearnerState::Paused,
            Self { part: Some(Part { held: true, .. }), .. } => LearnerState::Held,
            _ if !self.can_train() => LearnerState::Joining,
            Self { starved: true, .. } => LearnerState::Starved,
            Self { hidden: true, .. } => LearnerState::Hidden,
            _ => LearnerState::Training,
        }
    }

    /// Returns the part of its pace that the run's owner allows.
    #[must_use]
    pub fn share(&self) -> Share {
        self.part.as_ref().map_or(Share::FULL, |part| part.share)
    }

    /// Sets whether there are no windows to train on, and reports to the syncer when they run out.
    pub(crate) fn set_starved(&mut self, now: Millis, starved: bool) {
        if self.starved != starved {
            self.starved = starved;
            if starved {
                self.report(now);
            }
        }
    }

    /// Returns the run and its id in it, once welcomed.
    #[must_use]
    pub fn run(&self) -> Option<(RunId, LearnerId)> {
        self.part.as_ref().map(|part| (part.run, part.learner))
    }

    /// Returns the clock of the inner schedule: the run's merged tokens that count for it, as last received, plus own
    /// tokens since then.
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.clock_tokens.saturating_add(part.own_tokens))
    }

    /// Returns the run's merged tokens that count for the inner schedule, as last received.
    #[cfg(test)]
    pub(crate) fn heard_tokens(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.clock_tokens)
    }

    /// Returns the version of each fragment held, `[P]`; empty before the first `Welcome`.
    pub(crate) fn versions(&self) -> impl Iterator<Item = Option<Version>> {
        self.part.iter().flat_map(|part| part.tracks.iter().map(|track| track.version))
    }

    /// Sends a last report and a goodbye.
    pub fn leave(&mut self, now: Millis) {
        self.report(now);
        let bye = Bye::new(CloseCode::Done, "the learner was stopped by its owner");
        self.out.push_back(Output::Send(Message::Bye(bye)));
    }

    fn on_message(&mut self, now: Millis, message: Message) {
        match message {
            Message::Welcome(welcome) => self.on_welcome(now, welcome),
            Message::Bye(bye) => self.out.push_back(match bye.code {
                CloseCode::Restart
                | CloseCode::Silent
                | CloseCode::SlowReader
                | CloseCode::Full
                | CloseCode::Malformed
                | CloseCode::TooLarge
                | CloseCode::Protocol
                | CloseCode::Dropped => Output::Reconnect(bye),
                CloseCode::Done
                | CloseCode::Version
                | CloseCode::WrongRun
                | CloseCode::Layout
                | CloseCode::Replaced
                | CloseCode::Untrusted
                | CloseCode::Invite
                | CloseCode::Identity
                | CloseCode::Banned => Output::Stop(bye),
            }),
            Message::Collect { run, fragment, base } if self.is_part_of(run) => {
                self.on_collect(fragment, base)
            }
            Message::UpdateReceived { run, fragment, serial } if self.is_part_of(run) => {
                self.on_arrived(now, fragment, serial);
            }
            Message::Receipt { run, fragment, serial, fate } if self.is_part_of(run) => {
                self.on_receipt(fragment, serial, &fate);
            }
            Message::Merged(merged) if self.is_part_of(merged.run) => self.on_merged(now, merged),
            Message::Resync { run, fragment, version } if self.is_part_of(run) => {
                self.on_behind(now, fragment, version);
            }
            Message::SetPaused { run, held } if self.is_part_of(run) => {
                self.part.as_mut().expect("it is part of the run").held = held;
                self.report(now);
            }
            Message::SetDutyCycle { run, share } if self.is_part_of(run) => {
                self.part.as_mut().expect("it is part of the run").share = share;
            }
            Message::Lease { run, grant } if self.is_part_of(run) => self.out.push_back(Output::Grant(grant)),
            other => {
                let reason = format!("a syncer must not send message {} here", other.tag() as u8);
                self.out.push_back(Output::Reconnect(Bye::new(CloseCode::Protocol, reason)));
            }
        }
    }

    fn on_receipt(&mut self, fragment: FragmentId, serial: Serial, fate: &Fate) {
        let Some(part) = &mut self.part else { return };
        let leaves = self.hands_in && part.policy.is_additive();
        if let Some(track) = part.tracks.get_mut(usize::from(fragment.0)) {
            track.receipt(serial, fate);
            if track.include(leaves.then_some(ANY_VERSION)) {
                self.out.push_back(Output::Include { fragment });
            }
            self.answer();
        }
    }

    fn on_merged(&mut self, now: Millis, merged: Merged) {
        let Some(part) = &mut self.part else { return };
        part.tick(merged.clock_tokens);
        let fragment = merged.fragment;
        let Some(track) = part.tracks.get_mut(usize::from(fragment.0)) else { return };
        if track.version == Some(merged.version) {
            return;
        }
        let wanted = merged.version;
        if checksum(&merged.body) == merged.checksum {
            track.queue(merged);
        }
        if track.fetch == Fetch::Idle && track.version.is_some() {
            self.catch_up(now, fragment, Some(wanted), now);
        }
    }

    fn on_stepped(&mut self, now: Millis, step: Step) {
        let Some(part) = &mut self.part else { return };
        for track in &mut part.tracks {
            track.step(step.tokens);
        }
        part.own_tokens = part.own_tokens.saturating_add(step.tokens);
        let is_news = self.meter.step(step);
        if is_news || now >= self.report_at(now) {
            self.report(now);
        }
    }

    fn on_saw(&mut self, seen: &[u64]) {
        let Some(part) = &mut self.part else { return };
        let Some(fragments) = part.fragments.clone() else { return };
        for (fragment, track) in (0..).map(FragmentId).zip(&mut part.tracks) {
            let of = |expert: &FragmentExpert| seen.get(expert.index as usize).copied().unwrap_or(0);
            track.saw(fragments.experts(fragment).iter().map(of));
        }
    }

    fn on_timeout(&mut self, now: Millis) {
        self.fetch_due(now);
        if now >= self.report_at(now) {
            self.report(now);
        }
    }

    /// Applies queued changes of `fragment`. If there is a gap before `wanted`, it schedules a fetch of Θ̂ at
    /// `fetch_at`.
    fn catch_up(&mut self, now: Millis, fragment: FragmentId, wanted: Option<Version>, fetch_at: Millis) {
        let Some(part) = &mut self.part else { return };
        let Some(track) = part.tracks.get_mut(usize::from(fragment.0)) else { return };
        let run = part.run;
        while let Some(merged) = track.next_queued() {
            let version = merged.version;
            if track.include(Some(version)) {
                self.out.push_back(Output::Include { fragment });
            }
            track.advance(version, merged.digest, part.policy);
            self.out.push_back(Output::Apply { fragment, body: merged.body });
            self.out.push_back(Output::Send(Message::VersionAck { run, fragment, version }));
        }
        let missing =
            track.gap().or(wanted.filter(|&wanted| track.version.is_none_or(|version| version < wanted)));
        if let Some(version) = missing {
            track.fetch = Fetch::DueAt(version, fetch_at);
            self.fetch_due(now);
        }
        self.answer();
    }

    fn report_at(&self, now: Millis) -> Millis {
        self.meter.reported.map_or(now, |reported| reported.after(PROGRESS_MS))
    }

    fn report(&mut self, now: Millis) {
        let state = self.state();
        let Some(part) = self.part.as_ref().filter(|part| self.connected && part.ready) else { return };
        let progress = self.meter.report(now, part.run, state);
        self.out.push_back(Output::Send(Message::Progress(progress)));
    }

    fn is_part_of(&self, run: RunId) -> bool {
        self.part.as_ref().is_some_and(|part| part.run == run)
    }
}

impl Part {
    fn is_loaded(&self) -> bool {
        self.fragments.is_some() && self.tracks.iter().all(|track| track.version.is_some())
    }

    fn tick(&mut self, clock_tokens: u64) {
        (self.clock_tokens, self.own_tokens) = (clock_tokens, 0);
    }
}
