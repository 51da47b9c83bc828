//! Uploads: answers to requests, with as many updates in flight as the congestion window allows.

use super::track::{Stage, Track};
use super::{Learner, Output, Part};
use crate::diloco::checksum;
use crate::diloco::window::Window;
use crate::wire::{FragmentId, Message, Millis, Serial, Update, Version};

/// Smallest congestion window, in update bodies.
const UPLOADS_LEAST: f64 = 2.0;

/// Version above all others. A leaving learner uses it to report the progress after a merged update without waiting for
/// the version that includes the update. θ then mixes both states, but it is no longer trained.
pub(super) const ANY_VERSION: Version = Version(u64::MAX);

/// State of the last updates of a leaving learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainState {
    /// An update is being coded or in flight.
    InFlight,
    /// The syncer has received all updates, and at least one has no fate yet.
    AwaitingFate,
    /// All updates have a fate, or there is no connection.
    Drained,
}

impl Learner {
    /// Begins to leave: sends a report, and an update of each fragment with remaining progress. The caller must stop
    /// training, and call [`Self::leave`] once [`Self::drain_state`] is [`DrainState::Drained`], or earlier if it
    /// cannot wait.
    pub fn drain(&mut self, now: Millis) {
        self.is_draining = true;
        self.report(now);
        let Some(part) = self.part.as_mut().filter(|part| self.connected && part.ready) else { return };
        for (fragment, track) in (0..).map(FragmentId).zip(&mut part.tracks) {
            if track.include(part.policy.is_additive().then_some(ANY_VERSION)) {
                self.out.push_back(Output::Include { fragment });
            }
        }
        let asked: Vec<_> = part.asked.iter().map(|&(fragment, _)| fragment).collect();
        let versions = (0..).map(FragmentId).zip(&part.tracks).filter(|(p, _)| !asked.contains(p));
        let unasked: Vec<_> = versions.filter_map(|(p, track)| Some((p, track.version?))).collect();
        part.asked.extend(unasked);
        self.answer();
    }

    /// Returns the state of the last updates.
    #[must_use]
    pub fn drain_state(&self) -> DrainState {
        let Some(part) = self.part.as_ref().filter(|part| self.connected && part.ready) else {
            return DrainState::Drained;
        };
        if part.tracks.iter().any(Track::is_under_way) {
            DrainState::InFlight
        } else if part.tracks.iter().any(Track::has_arrived) {
            DrainState::AwaitingFate
        } else {
            DrainState::Drained
        }
    }

    /// Returns, for each fragment, the tokens of the update that the syncer has received and that has no fate yet,
    /// `[P]`; empty before the first `Welcome`.
    pub fn tokens_unsettled(&self) -> impl Iterator<Item = u64> {
        self.part.iter().flat_map(|part| part.tracks.iter().map(Track::tokens_unsettled))
    }

    pub(super) fn on_collect(&mut self, fragment: FragmentId, base: Version) {
        let Some(part) = &mut self.part else { return };
        if usize::from(fragment.0) < part.tracks.len() {
            part.asked.retain(|&(asked, _)| asked != fragment);
            part.asked.push_back((fragment, base));
            self.answer();
        }
    }

    /// Answers unanswered requests in order, as far as the congestion window allows. For a leaving learner the window
    /// does not apply, since it sends no other data.
    pub(super) fn answer(&mut self) {
        let Some(part) = self.part.as_mut().filter(|part| self.connected && part.ready) else { return };
        let additive = part.policy.is_additive();
        for (fragment, base) in std::mem::take(&mut part.asked) {
            let under_way = part.tracks.iter().filter(|track| track.is_under_way()).count();
            let has_room = self.is_draining || part.upload.has_room(under_way as f64);
            let track = &mut part.tracks[usize::from(fragment.0)];
            let held = track.version.filter(|&held| !track.has_drifted && (additive || held == base));
            match held.filter(|_| track.sent.is_none()) {
                Some(_) if !track.has_progress() => {
                    let pass = Message::NoUpdate { run: part.run, fragment };
                    self.out.push_back(Output::Send(pass));
                }
                Some(held) if has_room => {
                    let serial = Serial(self.serial_next);
                    self.serial_next = self.serial_next.wrapping_add(1);
                    track.code(serial, held);
                    self.out.push_back(Output::Encode { serial, fragment });
                }
                _ => part.asked.push_back((fragment, base)),
            }
        }
    }

    pub(super) fn on_encoded(
        &mut self,
        now: Millis,
        serial: Serial,
        fragment: FragmentId,
        body: Vec<u8>,
        digest: u64,
    ) {
        let Some(part) = &mut self.part else { return };
        let Some(track) = part.tracks.get_mut(usize::from(fragment.0)) else { return };
        let Some(sent) = track.sent(serial) else { return };
        if !(self.connected && part.ready) {
            // Without a connection, the progress goes into the next update.
            track.sent = None;
            return;
        }
        if sent.digest != digest {
            // The engine holds another Θ̂ than the syncer published, so its progress is unknown. The syncer does not
            // repeat the request, so it is answered after Θ̂ is fetched, unless a newer request has arrived.
            if part.asked.iter().all(|&(asked, _)| asked != fragment) {
                part.asked.push_back((fragment, sent.base));
            }
            track.drift(now);
            return self.fetch_due(now);
        }
        sent.stage = Stage::Out(now);
        let (base, steps, tokens, seen) = (sent.base, sent.steps, sent.tokens, sent.seen.clone());
        let checksum = checksum(&body);
        let update = Update { run: part.run, fragment, serial, base, steps, tokens, body, checksum, seen };
        self.out.push_back(Output::Send(Message::Update(update)));
    }

    pub(super) fn on_arrived(&mut self, now: Millis, fragment: FragmentId, serial: Serial) {
        let Some(part) = &mut self.part else { return };
        let track = part.tracks.get_mut(usize::from(fragment.0));
        if let Some(sent) = track.and_then(|track| track.sent(serial))
            && let Stage::Out(at) = sent.stage
        {
            sent.stage = Stage::Arrived;
            part.upload.confirmed(now, at, 1.0, 0.0);
            self.answer();
        }
    }
}

impl Part {
    /// Creates the congestion window of uploads: two bodies at first, and at most one per fragment.
    pub(super) fn upload(fragments: usize) -> Window {
        Window::new(UPLOADS_LEAST, UPLOADS_LEAST, fragments as f64)
    }
}
