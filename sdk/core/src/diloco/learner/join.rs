//! Joining, coming back and catching up.

use std::sync::Arc;

use super::track::{Fetch, Track};
use super::{Learner, Output, Part};
use crate::diloco::Fragments;
use crate::wire::{Bye, CloseCode, FragmentId, Hello, Message, Millis, Version, Welcome};

/// How long to wait before a failed fetch is tried again.
const FETCH_RETRY_MS: u64 = 1_000;

impl Learner {
    pub(super) fn on_connected(&mut self) {
        // A shell may connect anew before it notices that the old connection is gone.
        self.on_disconnected();
        self.connected = true;
        let hello = Hello {
            run: self.part.as_ref().map(|part| part.run),
            layout: self.part.as_ref().map(|part| part.layout),
            identity: self.config.identity,
            name: self.config.name.clone(),
            device: self.config.device.clone(),
            invite: self.config.invite.clone(),
        };
        self.out.push_back(Output::Send(Message::Hello(hello)));
    }

    pub(super) fn on_disconnected(&mut self) {
        self.connected = false;
        if let Some(part) = &mut self.part {
            part.ready = false;
            for track in &mut part.tracks {
                track.deferred = None;
            }
        }
    }

    pub(super) fn on_welcome(&mut self, now: Millis, welcome: Box<Welcome>) {
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
                fragments: None,
                clock_tokens: welcome.clock_tokens,
                own_tokens: 0,
                ready: false,
                held: welcome.held,
                share: welcome.share,
            });
            return self.out.push_back(Output::Build(welcome));
        };
        part.tick(welcome.clock_tokens);
        (part.held, part.share) = (welcome.held, welcome.share);
        let news = welcome.versions.iter().zip(&welcome.merged_rounds);
        for (track, (&version, &merged_round)) in part.tracks.iter_mut().zip(news) {
            if track.welcome(version, merged_round) {
                track.fetch = Fetch::RetryAt(version, now);
            }
        }
        self.fetch_due(now);
        self.ready(now);
    }

    pub(super) fn on_built(&mut self, now: Millis, fragments: Arc<Fragments>) {
        let Some(part) = &mut self.part else { return };
        let (ours, theirs) = (fragments.hash(), part.layout);
        if ours != theirs || usize::from(fragments.count()) != part.tracks.len() {
            self.part = None;
            let reason = format!(
                "the syncer lays parameters out as {theirs}, this learner as {ours}: use the same release"
            );
            return self.out.push_back(Output::Stop(Bye::new(CloseCode::Layout, reason)));
        }
        part.fragments = Some(fragments);
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
        track.fetch = Fetch::Idle;
        let included = track.advance(version, part.policy);
        self.out.push_back(Output::Load { fragment, values, keep, included });
        self.catch_up(fragment, None);
        self.ready(now);
    }

    pub(super) fn on_fetch_failed(&mut self, now: Millis, fragment: FragmentId) {
        let part = self.part.as_mut();
        if let Some(track) = part.and_then(|part| part.tracks.get_mut(usize::from(fragment.0)))
            && let Fetch::Running(version) = track.fetch
        {
            track.fetch = Fetch::RetryAt(version, now.after(FETCH_RETRY_MS));
        }
    }

    pub(super) fn fetch_due(&mut self, now: Millis) {
        let Some(part) = self.part.as_mut().filter(|part| part.fragments.is_some()) else { return };
        for (p, track) in (0..).zip(&mut part.tracks) {
            if let Fetch::RetryAt(version, at) = track.fetch
                && at <= now
            {
                track.fetch = Fetch::Running(version);
                self.out.push_back(Output::Fetch { fragment: FragmentId(p), version });
            }
        }
    }

    /// Tells the syncer once every fragment is there and current.
    pub(super) fn ready(&mut self, now: Millis) {
        let Some(part) = self.part.as_mut().filter(|_| self.connected) else { return };
        let current = part.tracks.iter().all(|track| track.fetch == Fetch::Idle);
        if part.is_loaded() && current && !part.ready {
            part.ready = true;
            let (run, layout) = (part.run, part.layout);
            self.out.push_back(Output::Send(Message::Ready { run, layout }));
            self.report(now);
        }
    }
}
