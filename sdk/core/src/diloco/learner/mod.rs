//! Learner of a run, as a state machine.
//!
//! The methods are like those of the syncer: [`Learner::handle`] takes an input, [`Learner::poll`] returns the next
//! output, and [`Learner::deadline`] returns the next wake-up time. The host trains while [`Learner::can_train`]
//! returns true and it has windows, connected or not, and carries out the outputs between steps. No method waits for
//! the network.

mod track;
mod upload;

pub use upload::DrainState;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::window::Window;
use super::{FragmentExpert, Fragments, checksum};
use crate::diloco::binary16;
use crate::wire::{
    ApplyPolicy, Bye, CloseCode, Fate, FragmentId, Hello, Identity, Invite, LayoutHash, LearnerId,
    LearnerState, LeaseGrant, LeaseId, Merged, Message, Millis, PROGRESS_MS, RunId, Serial, Share, Signature,
    Version, Welcome,
};
use track::{Fetch, Meter, Track};
use upload::ANY_VERSION;

/// Settings of a learner: its identity, and the numbers of its updates.
#[derive(Clone, Debug)]
pub struct LearnerConfig {
    /// Public key, the same in each process of the learner.
    pub identity: Identity,
    /// Display name.
    pub name: String,
    /// Display name of the device.
    pub device: String,
    /// Invite, if the owner of the run requires one.
    pub invite: Option<Invite>,
    /// Serial number of the first update. Processes of a learner should use different ranges.
    pub serial_first: u64,
}

/// State machine of one learner.
pub struct Learner {
    config: LearnerConfig,
    connected: bool,
    /// Whether `Welcome` has arrived on this connection. Before that, the outcome of earlier updates is unknown.
    welcomed: bool,
    /// Whether the learner's user has paused training.
    paused: bool,
    /// Whether the learner's page is hidden.
    hidden: bool,
    /// Whether there are no windows to train on.
    starved: bool,
    /// Whether the learner is leaving, and sends its last updates.
    is_draining: bool,
    /// State in the run; `None` before the first `Welcome`.
    part: Option<Part>,
    serial_next: u64,
    meter: Meter,
    out: VecDeque<Output>,
}

/// State of a learner in one run.
struct Part {
    run: RunId,
    learner: LearnerId,
    layout: LayoutHash,
    policy: ApplyPolicy,
    /// State of each fragment, `[P]`.
    tracks: Vec<Track>,
    /// Unanswered requests (`Collect`), oldest first, each with the version that the syncer held.
    asked: VecDeque<(FragmentId, Version)>,
    /// Congestion window of update bodies.
    upload: Window,
    /// Time before which no fragment is fetched while the learner can train, so that other data can use the link, too.
    fetch_after: Millis,
    /// Fragments of the run; `None` until the model is built.
    fragments: Option<Arc<Fragments>>,
    /// Number of windows in one step, once the model is built.
    batch: NonZeroU32,
    /// Tokens credited by the run's schedule, as last received.
    clock_tokens: u64,
    /// The learner's trained tokens since `clock_tokens` was received.
    own_tokens: u64,
    /// Whether `Ready` was sent on this connection.
    ready: bool,
    /// Whether the owner has paused the run, as last received.
    held: bool,
    /// Fraction of its time that the owner of the run allows the learner to train, as last received.
    share: Share,
}

impl Learner {
    /// Creates a learner that has not joined a run yet.
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
            is_draining: false,
            part: None,
            meter: Meter::default(),
            out: VecDeque::new(),
        }
    }

    /// Discards all state except the settings, the next serial number, and whether the learner is paused or hidden. The
    /// learner then joins like a new process.
    pub fn restart(&mut self) {
        let fresh = Self::new(self.config.clone());
        let Self { paused, hidden, serial_next, .. } = *self;
        *self = Self { paused, hidden, serial_next, ..fresh };
    }

    /// Handles an input at `now`, which never goes back.
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

    /// Returns the next output; call until it returns `None` after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Returns the time to handle [`Input::Timeout`] if no other input comes first; always after `now`.
    #[must_use]
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        let part = self.part.as_ref()?;
        let retries = self.fetch_at();
        let report = (self.connected && part.ready).then(|| self.report_at(now));
        retries.into_iter().chain(report).min().map(|at| at.max(now.after(1)))
    }

    /// Returns true if all parameters are loaded, and neither the learner's user nor the owner of the run has paused
    /// it.
    #[must_use]
    pub fn can_train(&self) -> bool {
        !self.paused && self.part.as_ref().is_some_and(|part| part.is_loaded() && !part.held)
    }

    /// Returns true if the learner's user has paused it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns true if the learner has sent `Ready` on this connection, so that it takes part in rounds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && self.part.as_ref().is_some_and(|part| part.ready)
    }

    /// Returns the state that the learner reports.
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

    /// Returns the fraction of its time that the owner of the run allows the learner to train.
    #[must_use]
    pub fn share(&self) -> Share {
        self.part.as_ref().map_or(Share::FULL, |part| part.share)
    }

    /// Sets whether there are no windows to train on. If they have just run out, sends a report.
    pub(crate) fn set_starved(&mut self, now: Millis, starved: bool) {
        if self.starved != starved {
            self.starved = starved;
            if starved {
                self.report(now);
            }
        }
    }

    /// Returns the run and the learner's id in it; `None` before the first `Welcome`.
    #[must_use]
    pub fn run(&self) -> Option<(RunId, LearnerId)> {
        self.part.as_ref().map(|part| (part.run, part.learner))
    }

    /// Returns the tokens that determine the learning rate: the tokens credited by the run's schedule, as last
    /// received, plus the learner's own trained tokens since then.
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.clock_tokens.saturating_add(part.own_tokens))
    }

    /// Returns the tokens credited by the run's schedule, as last received.
    #[cfg(test)]
    pub(crate) fn received_clock_tokens(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.clock_tokens)
    }

    /// Returns the version of each fragment that the learner holds, `[P]`; empty before the first `Welcome`.
    pub(crate) fn versions(&self) -> impl Iterator<Item = Option<Version>> {
        self.part.iter().flat_map(|part| part.tracks.iter().map(|track| track.version))
    }

    /// Sends a last report and `Bye`.
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
        let leaves = self.is_draining && part.policy.is_additive();
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

    /// Applies queued changes of `fragment` in order. If `wanted` or a queued version cannot be reached by them,
    /// schedules a fetch of Θ̂ at `fetch_at`.
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

/// Input of the learner.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A connection to the syncer was opened.
    Connected,
    /// The connection was closed.
    Disconnected,
    /// A message was received.
    Message(Message),
    /// The model of [`Output::Build`] is ready, with these fragments. Its steps have `batch` windows, at most
    /// [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// Θ̂ of a fragment was fetched, `[fragment_len]`, with the version that the response names.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// A fetch failed. The learner repeats it at a later [`Input::Timeout`].
    FetchFailed { fragment: FragmentId },
    /// The update of [`Output::Encode`] is coded. `digest` is that of the Θ̂ from which its progress is counted.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// An inner step is finished.
    Stepped(Step),
    /// Tokens routed to each expert of the layout since the previous input of this kind, `[experts]`.
    ExpertLoad { seen: Vec<u64> },
    /// The learner's user paused or resumed training.
    Paused(bool),
    /// The learner's page became hidden or visible.
    Hidden(bool),
    /// The time of [`Learner::deadline`] has come.
    Timeout,
}

/// Result of one inner step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Trained tokens; 0 if an asynchronous engine has not finished any. The duration then belongs to the next step.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// Duration without pauses, in milliseconds.
    pub step_ms: f32,
}

/// Action for the learner's host. Actions must be carried out in order and before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send a message, or drop it if there is no connection. Before, add the finished windows of each lease to a
    /// `Progress` (`data::Feed::progress`).
    Send(Message),
    /// Build the model and the engine of this run, or reuse them if the run is the same. Return [`Input::Built`].
    Build(Box<Welcome>),
    /// Fetch Θ̂ of a fragment, at `version` or a later one. Return [`Input::Fetched`] or [`Input::FetchFailed`].
    Fetch { fragment: FragmentId, version: Version },
    /// Code the current progress on a fragment. Return [`Input::Encoded`], at once or later.
    Encode { serial: Serial, fragment: FragmentId },
    /// Remove the last coded update from the progress, because Θ̂ or the next Θ̂ includes it (`Replica::include`).
    Include { fragment: FragmentId },
    /// Apply a change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Replace Θ̂ of a fragment (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Add these windows to those to train on.
    Grant(LeaseGrant),
    /// Drop all leases except these.
    RetainLeases(Vec<LeaseId>),
    /// Close the connection and reconnect later, after the time in [`Bye::wait_ms`] if that is not 0.
    Reconnect(Bye),
    /// Close the connection and do not reconnect. The reason is for the user.
    Stop(Bye),
}

/// Delay before a fetch is repeated that failed or returned an older version than requested, in milliseconds. A cache
/// may have an older version than the syncer. The delay doubles with each consecutive failure.
const FETCH_RETRY_MS: u64 = 1_000;
/// Maximum number of doublings of [`FETCH_RETRY_MS`].
const FETCH_DOUBLINGS_MAX: u32 = 5;

impl Learner {
    fn on_connected(&mut self) {
        // A host may reconnect before it notices that the old connection is gone.
        self.on_disconnected();
        self.connected = true;
        let hello = Hello {
            run: self.part.as_ref().map(|part| part.run),
            layout: self.part.as_ref().map(|part| part.layout),
            identity: self.config.identity,
            // The host, which has the key, signs later.
            signature: Signature::NONE,
            name: self.config.name.clone(),
            device: self.config.device.clone(),
            invite: self.config.invite.clone(),
        };
        self.out.push_back(Output::Send(Message::Hello(hello)));
    }

    fn on_disconnected(&mut self) {
        (self.connected, self.welcomed) = (false, false);
        if let Some(part) = &mut self.part {
            part.ready = false;
            part.asked.clear();
            part.upload = Part::upload(part.tracks.len());
        }
    }

    fn on_welcome(&mut self, now: Millis, welcome: Box<Welcome>) {
        self.welcomed = true;
        self.out.push_back(Output::RetainLeases(welcome.leases.clone()));
        let same = |part: &&mut Part| part.run == welcome.run && part.layout == welcome.layout;
        let Some(part) = self.part.as_mut().filter(same) else {
            let tracks = welcome.versions.iter().map(|&version| Track::wanting(version, now));
            self.part = Some(Part {
                run: welcome.run,
                learner: welcome.learner,
                layout: welcome.layout,
                policy: welcome.spec.exchange.apply,
                tracks: tracks.collect(),
                asked: VecDeque::new(),
                upload: Part::upload(welcome.versions.len()),
                fetch_after: now,
                fragments: None,
                batch: NonZeroU32::MIN,
                clock_tokens: welcome.clock_tokens,
                own_tokens: 0,
                ready: false,
                held: welcome.held,
                share: welcome.share,
            });
            return self.out.push_back(Output::Build(welcome));
        };
        part.tick(welcome.clock_tokens);
        // A syncer that lost the enrolment in a crash may have assigned another number.
        (part.learner, part.held, part.share) = (welcome.learner, welcome.held, welcome.share);
        let news = welcome.versions.iter().zip(welcome.merged.iter().zip(&welcome.unsettled));
        for (fragment, (track, (&version, (&merged, &unsettled)))) in
            (0..).map(FragmentId).zip(part.tracks.iter_mut().zip(news))
        {
            track.welcome(version, merged, unsettled);
            match track.version.filter(|_| !track.has_drifted) {
                None => track.fetch = Fetch::DueAt(version, now),
                Some(held) => {
                    if track.include(None) {
                        self.out.push_back(Output::Include { fragment });
                    }
                    // The syncer answers with the next changes or `Resync`.
                    let run = welcome.run;
                    self.out.push_back(Output::Send(Message::VersionAck { run, fragment, version: held }));
                }
            }
        }
        self.fetch_due(now);
        self.ready(now);
    }

    fn on_built(&mut self, now: Millis, fragments: Arc<Fragments>, batch: NonZeroU32) {
        let Some(part) = &mut self.part else { return };
        let (ours, theirs) = (fragments.hash(), part.layout);
        if ours != theirs || usize::from(fragments.count()) != part.tracks.len() {
            self.part = None;
            let reason = format!(
                "the syncer lays parameters out as {theirs}, this learner as {ours}: use the same release"
            );
            return self.out.push_back(Output::Stop(Bye::new(CloseCode::Layout, reason)));
        }
        (part.fragments, part.batch) = (Some(fragments), batch);
        self.fetch_due(now);
    }

    fn on_fetched(&mut self, now: Millis, fragment: FragmentId, version: Version, values: Vec<f32>) {
        let Some(part) = &mut self.part else { return };
        let expected = part.fragments.as_ref().map(|fragments| fragments.len(fragment));
        let Some(track) = part.tracks.get_mut(usize::from(fragment.0)) else { return };
        if expected != Some(values.len()) || values.iter().any(|value| !value.is_finite()) {
            return self.on_fetch_failed(now, fragment);
        }
        let keep = track.version.is_some();
        let mut again_at = now;
        if let Fetch::Running(asked, since) = track.fetch {
            // Fetches use at most half of the time, so that other data can use the link.
            part.fetch_after = now.after(now.since(since));
            if version < asked {
                again_at = now.after(FETCH_RETRY_MS);
            }
        }
        track.fetch = Fetch::Idle;
        track.failures = 0;
        if track.include(Some(version)) {
            self.out.push_back(Output::Include { fragment });
        }
        track.advance(version, binary16::digest(&values), part.policy);
        track.has_drifted = false;
        let run = part.run;
        self.out.push_back(Output::Load { fragment, values, keep });
        // With `Welcome`, the learner reports all versions that it holds.
        if self.welcomed {
            self.out.push_back(Output::Send(Message::VersionAck { run, fragment, version }));
        }
        self.catch_up(now, fragment, None, again_at);
        self.fetch_due(now);
        self.ready(now);
    }

    fn on_fetch_failed(&mut self, now: Millis, fragment: FragmentId) {
        let part = self.part.as_mut();
        if let Some(track) = part.and_then(|part| part.tracks.get_mut(usize::from(fragment.0)))
            && let Fetch::Running(version, _) = track.fetch
        {
            track.fetch =
                Fetch::DueAt(version, now.after(FETCH_RETRY_MS << track.failures.min(FETCH_DOUBLINGS_MAX)));
            track.failures += 1;
        }
    }

    /// Handles `Resync`: schedules a fetch of `fragment`, since the syncer sends no more changes of it.
    fn on_behind(&mut self, now: Millis, fragment: FragmentId, version: Version) {
        let part = self.part.as_mut();
        let track = part.and_then(|part| part.tracks.get_mut(usize::from(fragment.0)));
        if let Some(track) =
            track.filter(|track| track.fetch == Fetch::Idle && track.version != Some(version))
        {
            track.fetch = Fetch::DueAt(version, now);
            self.fetch_due(now);
        }
    }

    /// Begins the due fetches. Before all fragments are loaded, these are all at once; afterwards one at a time, the
    /// earliest first.
    fn fetch_due(&mut self, now: Millis) {
        let Some(part) = self.part.as_mut().filter(|part| part.fragments.is_some()) else { return };
        let is_loaded = part.is_loaded();
        let busy = is_loaded && part.tracks.iter().any(|track| matches!(track.fetch, Fetch::Running(..)));
        if busy || is_loaded && (self.starved || now < part.fetch_after) {
            return;
        }
        let mut due: Vec<_> = (0..).map(FragmentId).zip(&mut part.tracks).collect();
        due.retain(|(_, track)| matches!(track.fetch, Fetch::DueAt(_, at) if at <= now));
        due.sort_by_key(|(_, track)| match track.fetch {
            Fetch::DueAt(_, at) => Some(at),
            Fetch::Idle | Fetch::Running(..) => None,
        });
        for (fragment, track) in due.into_iter().take(if is_loaded { 1 } else { usize::MAX }) {
            if let Fetch::DueAt(version, _) = track.fetch {
                track.fetch = Fetch::Running(version, now);
                self.out.push_back(Output::Fetch { fragment, version });
            }
        }
    }

    /// Returns the time at which [`Self::fetch_due`] begins the next fetch; `None` if it must first wait for an input.
    fn fetch_at(&self) -> Option<Millis> {
        let part = self.part.as_ref()?;
        let due = part.tracks.iter().filter_map(|track| match track.fetch {
            Fetch::DueAt(_, at) => Some(at),
            Fetch::Idle | Fetch::Running(..) => None,
        });
        let at = due.min()?;
        if !part.is_loaded() {
            return Some(at);
        }
        let busy = part.tracks.iter().any(|track| matches!(track.fetch, Fetch::Running(..)));
        (!busy && !self.starved).then(|| at.max(part.fetch_after))
    }

    /// Sends `Ready` and a report once all fragments are loaded. Outdated ones may still be fetched while the learner
    /// trains.
    fn ready(&mut self, now: Millis) {
        let Some(part) = self.part.as_mut().filter(|_| self.welcomed) else { return };
        if part.is_loaded() && !part.ready {
            part.ready = true;
            let (run, layout, batch) = (part.run, part.layout, part.batch.get());
            self.out.push_back(Output::Send(Message::Ready { run, layout, batch }));
            self.report(now);
        }
    }
}
