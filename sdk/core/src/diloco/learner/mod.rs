//! The learner of a run, as a state machine.
//!
//! It has the same three kinds of methods as the syncer: [`Learner::handle`] takes an input, [`Learner::poll`]
//! returns the next output, and [`Learner::deadline`] returns the next wake-up time. The shell trains whenever
//! [`Learner::can_train`] and it has windows, connected or not, and drains `poll` between steps. Nothing here ever
//! waits for the network.

mod track;
mod upload;

pub use upload::HandsIn;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::window::Window;
use super::{FragmentExpert, Fragments, checksum};
use crate::diloco::halves;
use crate::wire::{
    ApplyPolicy, Bye, CloseCode, Fate, FragmentId, Hello, Identity, Invite, LayoutHash, LearnerId,
    LearnerState, LeaseGrant, LeaseId, Merged, Message, Millis, PROGRESS_MS, RunId, Serial, Share, Signature,
    Version, Welcome,
};
use track::{Fetch, Meter, Track};
use upload::ANY_VERSION;

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

/// Inputs of the learner.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A connection to the syncer was opened.
    Connected,
    /// The connection was closed.
    Disconnected,
    /// A message was received.
    Message(Message),
    /// The model of [`Output::Build`] is ready. It has these fragments, and trains `batch` windows in one step, at
    /// most [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// Θ̂ of one fragment was fetched by HTTP, `[fragment_len]`, at the version that the response named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// A fetch failed. It is tried again at an [`Input::Timeout`].
    FetchFailed { fragment: FragmentId },
    /// The body for [`Output::Encode`], and the digest of the Θ̂ that it is relative to.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// One inner step was finished.
    Stepped(Step),
    /// Tokens of the last steps that were routed to each expert of the layout, since the previous report.
    ExpertLoad { seen: Vec<u64> },
    /// The owner paused or resumed training.
    Paused(bool),
    /// The page became hidden or visible.
    Hidden(bool),
    /// [`Learner::deadline`] was reached.
    Timeout,
}

/// One inner step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Trained tokens. 0 if the call returned before any, and its time is then part of the next step.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// Duration in milliseconds, without pauses.
    pub step_ms: f32,
}

/// Outputs of the learner, to be carried out in this order before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send a message, or drop it without a connection. The owner of the leases writes their finished windows into a
    /// `Progress` (`data::Feed::progress`).
    Send(Message),
    /// Build the model and the engine of this run, or reuse them if the run is the same; answer with
    /// [`Input::Built`].
    Build(Box<Welcome>),
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Code the present progress on a fragment; answer with [`Input::Encoded`], which may come later.
    Encode { serial: Serial, fragment: FragmentId },
    /// The last coded update is part of Θ̂, or of the next one (`Replica::include`).
    Include { fragment: FragmentId },
    /// Apply a merged change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Load a whole Θ̂ (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Train on these windows too.
    Grant(LeaseGrant),
    /// Drop every lease but these.
    RetainLeases(Vec<LeaseId>),
    /// Close the connection and reconnect later, after `wait_ms` if that is not 0.
    Reconnect(Bye),
    /// Close the connection for good; the reason is for the user.
    Stop(Bye),
}

/// Delay before a fetch is retried that failed or returned an older version than requested: a cache may lag behind
/// the syncer.
const FETCH_RETRY_MS: u64 = 1_000;
/// Maximum number of doublings of the delay before a failed fetch is retried.
const FETCH_DOUBLINGS_MAX: u32 = 5;

impl Learner {
    fn on_connected(&mut self) {
        // A shell may reconnect before it notices that the old connection is gone.
        self.on_disconnected();
        self.connected = true;
        let hello = Hello {
            run: self.part.as_ref().map(|part| part.run),
            layout: self.part.as_ref().map(|part| part.layout),
            identity: self.config.identity,
            // The holder of the key signs later.
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
        // A syncer that lost the enrolment in a crash may have given another number.
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
                    // The syncer sends the changes that follow, or reports that it cannot.
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
            // Half of the link's time is left for everything else.
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
        track.advance(version, halves::digest(&values), part.policy);
        track.has_drifted = false;
        let run = part.run;
        self.out.push_back(Output::Load { fragment, values, keep });
        // Before the welcome there is no recipient, and after it the learner reports all versions that it holds.
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

    /// Schedules a fetch of the whole `fragment`, since the syncer sends no more changes of it.
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

    /// Begins due fetches: all missing fragments at once, and otherwise one old fragment at a time, the one due
    /// first.
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

    /// Returns the time at which [`Self::fetch_due`] has work to do, if no fetch ends before.
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

    /// Reports to the syncer once every fragment is there. Old fragments are fetched while the learner trains.
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
