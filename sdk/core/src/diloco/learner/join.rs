//! Joining, reconnecting and catching up.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::track::{Fetch, Track};
use super::{Learner, Output, Part};
use crate::diloco::{Fragments, halves};
use crate::wire::{Bye, CloseCode, FragmentId, Hello, Message, Millis, Signature, Version, Welcome};

/// Delay before a fetch is retried that failed or returned an older version than requested: a cache may lag behind
/// the syncer.
const FETCH_RETRY_MS: u64 = 1_000;
/// Maximum number of doublings of the delay before a failed fetch is retried.
const FETCH_DOUBLINGS_MAX: u32 = 5;

impl Learner {
    pub(super) fn on_connected(&mut self) {
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

    pub(super) fn on_disconnected(&mut self) {
        (self.connected, self.welcomed) = (false, false);
        if let Some(part) = &mut self.part {
            part.ready = false;
            part.asked.clear();
            part.upload = Part::upload(part.tracks.len());
        }
    }

    pub(super) fn on_welcome(&mut self, now: Millis, welcome: Box<Welcome>) {
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

    pub(super) fn on_built(&mut self, now: Millis, fragments: Arc<Fragments>, batch: NonZeroU32) {
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

    pub(super) fn on_fetched(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        version: Version,
        values: Vec<f32>,
    ) {
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

    pub(super) fn on_fetch_failed(&mut self, now: Millis, fragment: FragmentId) {
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
    pub(super) fn on_behind(&mut self, now: Millis, fragment: FragmentId, version: Version) {
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
    pub(super) fn fetch_due(&mut self, now: Millis) {
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
    pub(super) fn fetch_at(&self) -> Option<Millis> {
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
    pub(super) fn ready(&mut self, now: Millis) {
        let Some(part) = self.part.as_mut().filter(|_| self.welcomed) else { return };
        if part.is_loaded() && !part.ready {
            part.ready = true;
            let (run, layout, batch) = (part.run, part.layout, part.batch.get());
            self.out.push_back(Output::Send(Message::Ready { run, layout, batch }));
            self.report(now);
        }
    }
}
