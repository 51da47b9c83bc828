//! What is on its way to one learner.

use std::collections::VecDeque;

use super::{DownlinkPolicy, DownlinkTerms};
use crate::diloco::window::Window;
use crate::wire::{FragmentId, Merged, Millis, Version};

/// How long one that fell behind fetches whole fragments before it is sent changes again, in milliseconds; twice as
/// long each time, at most…
const REST_MS_FIRST: u64 = 15_000;
/// …this long. One that keeps up for that long starts anew.
const REST_MS_MAX: u64 = 480_000;
/// Turns of confirmations in which a window opens from its first size to its largest, and some more.
const TURNS: f64 = 8.0;

/// One learner, from the syncer's side.
#[derive(Debug)]
pub(super) struct Link {
    /// It was heard of to train.
    has_begun: bool,
    /// By fragment, `[P]`.
    places: Vec<Place>,
    /// Sent and not confirmed, oldest first.
    unconfirmed: VecDeque<Sent>,
    bytes: u64,
    window: Window,
    /// Since when something waits that there is no room for.
    waits_since: Option<Millis>,
    /// It is not sent changes before then.
    rests_until: Millis,
    rest_ms: u64,
}

/// Where a learner is with one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It fetches the fragment, or was told to.
    Away,
    /// It holds this version, or will once it has what is on its way.
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
    /// To one that holds nothing.
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

    /// Notes that it trains; whether that is news.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Whether it was heard of to train.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Where it is with `fragment`.
    pub(super) fn place(&self, fragment: FragmentId) -> Place {
        self.places.get(usize::from(fragment.0)).copied().unwrap_or(Place::Away)
    }

    /// Where it is with `fragment` from now on.
    pub(super) fn set_place(&mut self, fragment: FragmentId, place: Place) {
        if let Some(old) = self.places.get_mut(usize::from(fragment.0)) {
            *old = place;
        }
    }

    /// Whether its link may carry changes, as far as is known.
    pub(super) fn may_follow(&self, now: Millis) -> bool {
        self.rests_until <= now
    }

    /// Whether more may be on its way. One change always may.
    pub(super) fn has_room(&self) -> bool {
        self.unconfirmed.is_empty() || self.window.has_room(self.bytes as f64)
    }

    /// Notes whether something waits for room, and gives for how long, in milliseconds.
    pub(super) fn waits(&mut self, now: Millis, waits: bool) -> u64 {
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.waits_since.map_or(0, |since| now.since(since))
    }

    /// How long something may wait at one that listens every `step_ms`: a window that opens takes some turns of
    /// confirmations. In milliseconds.
    pub(super) fn patience_ms(&self, step_ms: f64, terms: &DownlinkTerms) -> u64 {
        terms.policy.wait_ms_max.saturating_add((2.0 * step_ms + TURNS * self.window.shortest_ms()) as u64)
    }

    /// `merged` is on its way.
    pub(super) fn send(&mut self, now: Millis, merged: &Merged) {
        let bytes = merged.body.len() as u64;
        self.bytes += bytes;
        let Merged { fragment, version, .. } = *merged;
        self.set_place(fragment, Place::At(version));
        self.unconfirmed.push_back(Sent { fragment, version, bytes, at: now });
    }

    /// It holds `version` of `fragment`. It listens every `step_ms`, in milliseconds.
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

    /// It cannot keep up: it is sent no more changes for a while.
    pub(super) fn rest(&mut self, now: Millis) {
        self.rests_until = now.after(self.rest_ms);
        self.rest_ms = (2 * self.rest_ms).min(REST_MS_MAX);
        self.waits_since = None;
    }

    /// Sent and not confirmed, in bytes.
    #[cfg(test)]
    pub(super) fn unconfirmed_bytes(&self) -> u64 {
        self.bytes
    }
}
