//! Downlink to one learner.

use std::collections::VecDeque;

use super::{DownlinkPolicy, DownlinkTerms};
use crate::diloco::window::Window;
use crate::wire::{FragmentId, Merged, Millis, Version};

/// First time for which a learner that fell behind fetches whole fragments, in milliseconds. It doubles each time, up
/// to…
const REST_MS_FIRST: u64 = 15_000;
/// …this time. After keeping up for that long, the first time applies again.
const REST_MS_MAX: u64 = 480_000;
/// Round trips in which a window grows from its first size to its largest, with some margin.
const TURNS: f64 = 8.0;

/// Downlink state of one learner.
#[derive(Debug)]
pub(super) struct Link {
    /// Whether the learner has reported training.
    has_begun: bool,
    /// By fragment, `[P]`.
    places: Vec<Place>,
    /// Sent and unconfirmed changes, oldest first.
    unconfirmed: VecDeque<Sent>,
    bytes: u64,
    window: Window,
    /// Start of the wait for room, if a change waits.
    waits_since: Option<Millis>,
    /// Time before which the learner is sent no changes.
    rests_until: Millis,
    rest_ms: u64,
}

/// Position of a learner on one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The learner fetches the fragment, or was told to.
    Away,
    /// The learner holds this version, or will hold it after the changes on their way.
    At(Version),
}

#[derive(Debug)]
struct Sent {
    fragment: FragmentId,
    version: Version,
    bytes: u64,
    at: Millis,
}

impl Link {
    /// Creates the state of a learner that holds nothing.
    pub(super) fn new(terms: &DownlinkTerms) -> Self {
        let DownlinkPolicy { window_bytes_min, window_bytes_first, .. } = terms.policy;
        let most = terms.unconfirmed_bytes_max as f64;
        Self {
            has_begun: false,
            places: vec![Place::Away; usize::from(terms.fragments)],
            unconfirmed: VecDeque::new(),
            bytes: 0,
            window: Window::new(window_bytes_min as f64, window_bytes_first as f64, most),
            waits_since: None,
            rests_until: Millis(0),
            rest_ms: REST_MS_FIRST,
        }
    }

    /// Records that the learner trains. Returns true the first time.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Returns true if the learner has reported training.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns the position on `fragment`.
    pub(super) fn place(&self, fragment: FragmentId) -> Place {
        self.places.get(usize::from(fragment.0)).copied().unwrap_or(Place::Away)
    }

    /// Sets the position on `fragment`.
    pub(super) fn set_place(&mut self, fragment: FragmentId, place: Place) {
        if let Some(old) = self.places.get_mut(usize::from(fragment.0)) {
            *old = place;
        }
    }

    /// Returns true if changes may be sent at `now`.
    pub(super) fn may_follow(&self, now: Millis) -> bool {
        self.rests_until <= now
    }

    /// Returns true if the window has room. One change always has.
    pub(super) fn has_room(&self) -> bool {
        self.unconfirmed.is_empty() || self.window.has_room(self.bytes as f64)
    }

    /// Records whether a change waits for room, and returns the length of the wait in milliseconds.
    pub(super) fn waits(&mut self, now: Millis, waits: bool) -> u64 {
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.waits_since.map_or(0, |since| now.since(since))
    }

    /// Returns how long a change may wait for room, in milliseconds, if the learner reads messages every `step_ms`. A
    /// growing window takes several round trips.
    pub(super) fn patience_ms(&self, step_ms: f64, terms: &DownlinkTerms) -> u64 {
        terms.policy.wait_ms_max.saturating_add((2.0 * step_ms + TURNS * self.window.shortest_ms()) as u64)
    }

    /// Records that `merged` was sent.
    pub(super) fn send(&mut self, now: Millis, merged: &Merged) {
        let bytes = merged.body.len() as u64;
        self.bytes += bytes;
        let Merged { fragment, version, .. } = *merged;
        self.set_place(fragment, Place::At(version));
        self.unconfirmed.push_back(Sent { fragment, version, bytes, at: now });
    }

    /// Records that the learner holds `version` of `fragment`. It reads messages every `step_ms` milliseconds.
    pub(super) fn confirm(&mut self, now: Millis, fragment: FragmentId, version: Version, step_ms: f64) {
        let window = &mut self.window;
        self.unconfirmed.retain(|sent| {
            let confirmed = sent.fragment == fragment && sent.version <= version;
            if confirmed {
                window.confirmed(now, sent.at, sent.bytes as f64, step_ms);
            }
            !confirmed
        });
        self.bytes = self.unconfirmed.iter().map(|sent| sent.bytes).sum();
        if now.since(self.rests_until) > REST_MS_MAX {
            self.rest_ms = REST_MS_FIRST;
        }
    }

    /// Stops changes to the learner for a while, since it cannot keep up.
    pub(super) fn rest(&mut self, now: Millis) {
        self.rests_until = now.after(self.rest_ms);
        self.rest_ms = (2 * self.rest_ms).min(REST_MS_MAX);
        self.waits_since = None;
    }

    /// Returns the unconfirmed bytes.
    #[cfg(test)]
    pub(super) fn unconfirmed_bytes(&self) -> u64 {
        self.bytes
    }
}
