//! Versions that learners hold, and changes on their way to them.
//!
//! [`Downlink`] bounds the unconfirmed bytes to each learner. A learner that keeps up gets each change of the
//! fragments that it holds, at once or from a short shared history. So nothing queues up for a single learner. A
//! learner that does not keep up is told so and gets no changes: it fetches whole fragments at the pace of its link.
//! After some time it is sent changes again. The downlink does not depend on rounds, leases or parameters.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::window::Window;
use crate::wire::{ConnId, FragmentId, Merged, Millis, Version};
use serde::{Deserialize, Serialize};

/// Limits on the changes on their way to one learner. The defaults are constants of ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DownlinkPolicy {
    /// Smallest window of unconfirmed changes, in bytes.
    pub window_bytes_min: u64,
    /// First window of unconfirmed changes, before anything is known of the link, in bytes.
    pub window_bytes_first: u64,
    /// Floor of the largest window, in bytes. The largest window is a whole turn of changes, or this value if that is
    /// more: a link of 20 Mbit/s carries the default in a second.
    pub unconfirmed_bytes_min: u64,
    /// Floor of the history, in bytes, so that a fetched fragment is not too old for a learner some hundred
    /// milliseconds away.
    pub history_bytes_min: u64,
    /// Time that a change may wait for room in the window, in milliseconds, in addition to the learner's step time
    /// and round trip.
    pub wait_ms_max: u64,
}

impl Default for DownlinkPolicy {
    fn default() -> Self {
        Self {
            window_bytes_min: 16_000,
            window_bytes_first: 128_000,
            unconfirmed_bytes_min: 4 << 20,
            history_bytes_min: 8 << 20,
            wait_ms_max: 2_000,
        }
    }
}

/// Constants of the downlink during a run.
#[derive(Clone, Copy, Debug)]
pub struct DownlinkTerms {
    /// P, at least 1.
    pub fragments: u16,
    /// The policy that the run's owner chose.
    pub policy: DownlinkPolicy,
    /// Largest number of unconfirmed bytes to one learner.
    pub unconfirmed_bytes_max: u64,
    /// Largest size of the history, in bytes over all fragments.
    pub history_bytes_max: u64,
}

/// Messages to one learner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatchUp {
    /// Changes to send, in order.
    pub changes: Vec<Merged>,
    /// Fragments to fetch, since the learner is behind these versions.
    pub behind: Vec<(FragmentId, Version)>,
}

/// Recipients of a new version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipients {
    /// Connections to which the change is sent.
    pub change: Vec<ConnId>,
    /// Connections that cannot keep up. They are told to fetch the fragment instead.
    pub behind: Vec<ConnId>,
}

/// Downlinks to all learners of a run.
#[derive(Debug)]
pub struct Downlink {
    terms: DownlinkTerms,
    history: History,
    links: BTreeMap<ConnId, Link>,
}

impl Downlink {
    /// Creates a downlink without learners. `newest` has the version of each fragment, `[P]`.
    #[must_use]
    pub(crate) fn new(terms: DownlinkTerms, newest: Vec<Version>) -> Self {
        Self { terms, history: History::new(newest, terms.history_bytes_max), links: BTreeMap::new() }
    }

    /// Adds a learner that holds nothing. It is sent nothing before it [trains](Self::trains): until then its link
    /// carries whole fragments and text.
    pub(crate) fn open(&mut self, conn: ConnId) {
        self.links.insert(conn, Link::new(&self.terms));
    }

    /// Removes a connection.
    pub(crate) fn close(&mut self, conn: ConnId) {
        self.links.remove(&conn);
    }

    /// Records that the learner behind `conn` trains. The first call returns the changes that follow the versions that
    /// the learner holds.
    pub(crate) fn trains(&mut self, now: Millis, conn: ConnId) -> CatchUp {
        let mut follow = CatchUp::default();
        if let Some(link) = self.links.get_mut(&conn)
            && link.begin()
        {
            fill(&self.history, link, now, &mut follow);
        }
        follow
    }

    /// Records that the learner behind `conn` holds `version` of `fragment`. It reads messages every `step_ms`
    /// milliseconds.
    pub(crate) fn holds(
        &mut self,
        now: Millis,
        conn: ConnId,
        fragment: FragmentId,
        version: Version,
        step_ms: f64,
    ) -> CatchUp {
        let mut follow = CatchUp::default();
        let Some(link) = self.links.get_mut(&conn) else { return follow };
        if !link.has_begun() {
            link.set_place(fragment, Place::At(version));
            return follow;
        }
        link.confirm(now, fragment, version, step_ms);
        if link.place(fragment) == Place::Away {
            let newest = self.history.newest(fragment);
            let reaches = link.may_follow(now) && self.history.after(fragment, version).is_some();
            if version == newest || reaches {
                link.set_place(fragment, Place::At(version));
            } else {
                follow.behind.push((fragment, newest));
            }
        }
        fill(&self.history, link, now, &mut follow);
        follow
    }

    /// Adds a new version of a fragment to the history, and returns the recipients. `step_ms` returns the interval in
    /// milliseconds at which the learner behind a connection reads messages.
    pub(crate) fn publish(
        &mut self,
        now: Millis,
        merged: &Merged,
        step_ms: impl Fn(ConnId) -> f64,
    ) -> Recipients {
        let mut audience = Recipients::default();
        self.history.add(merged);
        let fragment = merged.fragment;
        for (&conn, link) in self.links.iter_mut().filter(|(_, link)| link.has_begun()) {
            let Place::At(version) = link.place(fragment) else { continue };
            if link.may_follow(now) && version == merged.base && link.has_room() {
                link.send(now, merged);
                audience.change.push(conn);
                continue;
            }
            if link.may_follow(now) {
                let waited = link.waits(now, true) > link.patience_ms(step_ms(conn), &self.terms);
                if waited || self.history.after(fragment, version).is_none() {
                    link.rest(now);
                }
            }
            if !link.may_follow(now) {
                link.set_place(fragment, Place::Away);
                audience.behind.push(conn);
            }
        }
        audience
    }

    /// Returns the unconfirmed bytes to the learner behind `conn`.
    #[cfg(test)]
    fn unconfirmed_bytes(&self, conn: ConnId) -> u64 {
        self.links.get(&conn).map_or(0, Link::unconfirmed_bytes)
    }

    /// Returns true if the learner behind `conn` fetches whole fragments, since its link cannot carry every change.
    #[must_use]
    pub(crate) fn is_thin(&self, now: Millis, conn: ConnId) -> bool {
        self.links.get(&conn).is_some_and(|link| !link.may_follow(now))
    }
}

/// Sends changes that wait for room on `link`, as far as there is room now.
fn fill(history: &History, link: &mut Link, now: Millis, follow: &mut CatchUp) {
    let mut waits = false;
    for fragment in history.fragments() {
        while let Place::At(version) = link.place(fragment)
            && version != history.newest(fragment)
        {
            let Some(change) = history.after(fragment, version).filter(|_| link.may_follow(now)) else {
                link.set_place(fragment, Place::Away);
                follow.behind.push((fragment, history.newest(fragment)));
                break;
            };
            if !link.has_room() {
                waits = true;
                break;
            }
            link.send(now, change);
            follow.changes.push(change.clone());
        }
    }
    link.waits(now, waits);
}

/// Newest version of each fragment, and the changes that led to it, bounded in bytes.
#[derive(Debug)]
struct History {
    /// By fragment, `[P]`.
    courses: Vec<Course>,
    /// Limit for each fragment.
    bytes_max: u64,
}

#[derive(Debug)]
struct Course {
    newest: Version,
    bytes: u64,
    /// Oldest first.
    changes: VecDeque<Merged>,
}

impl History {
    /// Creates an empty history of at most `bytes_max` over all fragments.
    fn new(newest: Vec<Version>, bytes_max: u64) -> Self {
        let bytes_max = bytes_max / (newest.len() as u64).max(1);
        let course = |newest| Course { newest, bytes: 0, changes: VecDeque::new() };
        Self { courses: newest.into_iter().map(course).collect(), bytes_max }
    }

    /// Returns every fragment.
    fn fragments(&self) -> impl Iterator<Item = FragmentId> + use<> {
        (0..self.courses.len() as u16).map(FragmentId)
    }

    /// Returns the newest version of `fragment`, or version 0 if there is no such fragment.
    fn newest(&self, fragment: FragmentId) -> Version {
        self.courses.get(usize::from(fragment.0)).map_or(Version(0), |course| course.newest)
    }

    /// Adds `merged`, and drops the oldest changes beyond the limit.
    fn add(&mut self, merged: &Merged) {
        let Some(course) = self.courses.get_mut(usize::from(merged.fragment.0)) else { return };
        course.newest = merged.version;
        course.changes.push_back(merged.clone());
        course.bytes += merged.body.len() as u64;
        while course.bytes > self.bytes_max
            && let Some(oldest) = course.changes.pop_front()
        {
            course.bytes -= oldest.body.len() as u64;
        }
    }

    /// Returns the change that follows `version`, unless that is the newest or too old.
    fn after(&self, fragment: FragmentId, version: Version) -> Option<&Merged> {
        let changes = &self.courses.get(usize::from(fragment.0))?.changes;
        // Versions only grow.
        let at = changes.partition_point(|merged| merged.base < version);
        changes.get(at).filter(|merged| merged.base == version)
    }
}

/// First time for which a learner that fell behind fetches whole fragments, in milliseconds. It doubles each time, up
/// to [`REST_MS_MAX`].
const REST_MS_FIRST: u64 = 15_000;
/// Longest such time, in milliseconds. After a learner has kept up for that long, the first time applies again.
const REST_MS_MAX: u64 = 480_000;
/// Round trips in which a window grows from its first size to its largest, with some margin.
const TURNS: f64 = 8.0;

/// Downlink state of one learner.
#[derive(Debug)]
struct Link {
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
enum Place {
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
    fn new(terms: &DownlinkTerms) -> Self {
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
    fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Returns true if the learner has reported training.
    fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns the position on `fragment`.
    fn place(&self, fragment: FragmentId) -> Place {
        self.places.get(usize::from(fragment.0)).copied().unwrap_or(Place::Away)
    }

    /// Sets the position on `fragment`.
    fn set_place(&mut self, fragment: FragmentId, place: Place) {
        if let Some(old) = self.places.get_mut(usize::from(fragment.0)) {
            *old = place;
        }
    }

    /// Returns true if changes may be sent at `now`.
    fn may_follow(&self, now: Millis) -> bool {
        self.rests_until <= now
    }

    /// Returns true if the window has room. One change always has.
    fn has_room(&self) -> bool {
        self.unconfirmed.is_empty() || self.window.has_room(self.bytes as f64)
    }

    /// Records whether a change waits for room, and returns the length of the wait in milliseconds.
    fn waits(&mut self, now: Millis, waits: bool) -> u64 {
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.waits_since.map_or(0, |since| now.since(since))
    }

    /// Returns how long a change may wait for room, in milliseconds, if the learner reads messages every `step_ms`. A
    /// growing window takes several round trips.
    fn patience_ms(&self, step_ms: f64, terms: &DownlinkTerms) -> u64 {
        terms.policy.wait_ms_max.saturating_add((2.0 * step_ms + TURNS * self.window.shortest_ms()) as u64)
    }

    /// Records that `merged` was sent.
    fn send(&mut self, now: Millis, merged: &Merged) {
        let bytes = merged.body.len() as u64;
        self.bytes += bytes;
        let Merged { fragment, version, .. } = *merged;
        self.set_place(fragment, Place::At(version));
        self.unconfirmed.push_back(Sent { fragment, version, bytes, at: now });
    }

    /// Records that the learner holds `version` of `fragment`. It reads messages every `step_ms` milliseconds.
    fn confirm(&mut self, now: Millis, fragment: FragmentId, version: Version, step_ms: f64) {
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
    fn rest(&mut self, now: Millis) {
        self.rests_until = now.after(self.rest_ms);
        self.rest_ms = (2 * self.rest_ms).min(REST_MS_MAX);
        self.waits_since = None;
    }

    /// Returns the unconfirmed bytes.
    #[cfg(test)]
    fn unconfirmed_bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RunId;

    const CONN: ConnId = ConnId(1);
    const P: FragmentId = FragmentId(0);
    /// Changes of 50 kB: the first window of a link holds three, and the history four.
    const BODY_BYTES: usize = 50_000;
    const TERMS: DownlinkTerms = DownlinkTerms {
        fragments: 2,
        policy: DownlinkPolicy {
            window_bytes_min: 16_000,
            window_bytes_first: 128_000,
            unconfirmed_bytes_min: 400_000,
            history_bytes_min: 400_000,
            wait_ms_max: 1_000,
        },
        unconfirmed_bytes_max: 400_000,
        history_bytes_max: 400_000,
    };

    fn merged(version: u64) -> Merged {
        Merged {
            run: RunId(1),
            fragment: P,
            base: Version(version - 1),
            version: Version(version),
            clock_tokens: 0,
            body: vec![0; BODY_BYTES],
            checksum: 0,
            digest: 0,
        }
    }

    fn opened() -> Downlink {
        let mut downlink = Downlink::new(TERMS, vec![Version(1); 2]);
        downlink.open(CONN);
        assert_eq!(downlink.trains(Millis(0), CONN), CatchUp::default());
        downlink
    }

    /// Creates a downlink to one learner that holds version 1 of the first fragment, the newest.
    fn followed() -> Downlink {
        let mut downlink = opened();
        assert_eq!(holds(&mut downlink, 0, 1), CatchUp::default());
        downlink
    }

    fn publish(downlink: &mut Downlink, now: u64, version: u64) -> Recipients {
        downlink.publish(Millis(now), &merged(version), |_| 0.0)
    }

    fn holds(downlink: &mut Downlink, now: u64, version: u64) -> CatchUp {
        downlink.holds(Millis(now), CONN, P, Version(version), 0.0)
    }

    fn sent() -> Recipients {
        Recipients { change: vec![CONN], behind: vec![] }
    }

    fn told() -> Recipients {
        Recipients { change: vec![], behind: vec![CONN] }
    }

    fn changes(versions: std::ops::RangeInclusive<u64>) -> CatchUp {
        CatchUp { changes: versions.map(merged).collect(), behind: vec![] }
    }

    fn behind(version: u64) -> CatchUp {
        CatchUp { changes: vec![], behind: vec![(P, Version(version))] }
    }

    /// Goal: nothing competes with the parameters and the text that a joiner waits for.
    #[test]
    fn who_does_not_train_yet_is_sent_nothing() {
        let mut downlink = Downlink::new(TERMS, vec![Version(1); 2]);
        downlink.open(CONN);
        assert_eq!(holds(&mut downlink, 0, 1), CatchUp::default());
        assert_eq!(publish(&mut downlink, 10, 2), Recipients::default());
        assert_eq!(publish(&mut downlink, 20, 3), Recipients::default());
        assert_eq!(downlink.trains(Millis(30), CONN), changes(2..=3), "and then all that it missed");
        assert_eq!(downlink.trains(Millis(40), CONN), CatchUp::default());
        assert_eq!(publish(&mut downlink, 50, 4), sent());

        let mut downlink = Downlink::new(TERMS, vec![Version(1); 2]);
        downlink.open(CONN);
        assert_eq!(holds(&mut downlink, 0, 1), CatchUp::default());
        (2..40)
            .for_each(|version| assert_eq!(publish(&mut downlink, version, version), Recipients::default()));
        assert_eq!(downlink.trains(Millis(50), CONN), behind(39), "or that it missed too much");
    }

    #[test]
    fn changes_go_to_those_who_hold_the_fragment() {
        assert_eq!(publish(&mut opened(), 0, 2), Recipients::default(), "it holds nothing yet");
        let mut downlink = followed();
        for version in 2..20 {
            assert_eq!(publish(&mut downlink, version, version), sent());
            assert_eq!(holds(&mut downlink, version, version), CatchUp::default());
        }
        assert_eq!(downlink.unconfirmed_bytes(CONN), 0);
        downlink.close(CONN);
        assert_eq!(publish(&mut downlink, 30, 20), Recipients::default());
    }

    #[test]
    fn what_there_is_no_room_for_waits_in_the_history_that_all_share() {
        let mut downlink = followed();
        (2..=4).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), sent()));
        (5..=6).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), Recipients::default()));
        assert_eq!(downlink.unconfirmed_bytes(CONN), 150_000);
        // The first confirmation makes room for one change, and for another one since no change was slow.
        assert_eq!(holds(&mut downlink, 10, 2), changes(5..=6));
        assert_eq!(holds(&mut downlink, 10, 6), CatchUp::default());
        assert_eq!(publish(&mut downlink, 10, 7), sent());
    }

    #[test]
    fn who_confirms_nothing_is_sent_no_more_than_the_bound() {
        let mut downlink = followed();
        (2..=4).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), sent()));
        assert_eq!(publish(&mut downlink, 0, 5), Recipients::default());
        assert_eq!(publish(&mut downlink, 1_001, 6), told(), "that was too long");
        assert_eq!(publish(&mut downlink, 1_001, 7), Recipients::default(), "it is told once");
        assert_eq!(downlink.unconfirmed_bytes(CONN), 150_000);
        assert!(downlink.is_thin(Millis(1_001), CONN));
    }

    #[test]
    fn one_with_long_steps_has_longer() {
        let mut downlink = followed();
        (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(downlink.publish(Millis(1_900), &merged(6), |_| 500.0), Recipients::default());
        assert_eq!(downlink.publish(Millis(2_100), &merged(7), |_| 500.0), told());
    }

    #[test]
    fn who_fetched_a_version_gets_what_followed_on_it() {
        let mut downlink = opened();
        (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(holds(&mut downlink, 0, 3), changes(4..=5));
        // Version 1 is older than the history, and version 9 is of another timeline.
        for version in [0, 9] {
            let mut downlink = opened();
            (2..=6).for_each(|version| drop(publish(&mut downlink, 0, version)));
            assert_eq!(holds(&mut downlink, 0, version), behind(6));
        }
    }

    /// Goal: changes that were held back during a rest do not cause another rest.
    #[test]
    fn a_rest_does_not_count_as_waiting() {
        let of = |fragment, version| Merged { fragment: FragmentId(fragment), ..merged(version) };
        let mut downlink = Downlink::new(DownlinkTerms { fragments: 3, ..TERMS }, vec![Version(1); 3]);
        downlink.open(CONN);
        for fragment in 0..3 {
            downlink.holds(Millis(0), CONN, FragmentId(fragment), Version(1), 0.0);
        }
        downlink.trains(Millis(0), CONN);
        (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(publish(&mut downlink, 1_001, 6), told());
        holds(&mut downlink, 1_100, 4);
        assert_eq!(downlink.publish(Millis(2_000), &of(1, 2), |_| 0.0), told(), "it rests");
        let mut later = (2..20).map(|version| downlink.publish(Millis(20_000), &of(2, version), |_| 0.0));
        assert_eq!(later.next(), Some(sent()));
        assert_eq!(
            later.find(|audience| *audience != sent()),
            Some(Recipients::default()),
            "it waits, and no more"
        );
        drop(later);
        assert!(!downlink.is_thin(Millis(20_000), CONN));
    }

    #[test]
    fn after_a_rest_changes_are_tried_again_and_longer_rests_follow() {
        let mut downlink = followed();
        let (mut now, mut version) = (0, 1);
        let mut rests = Vec::new();
        for _ in 0..3 {
            // Nothing is confirmed before the learner is told that it is behind.
            while publish(&mut downlink, now, version + 1) != told() {
                (version, now) = (version + 1, now + 500);
            }
            version += 1;
            let from = now;
            while downlink.is_thin(Millis(now), CONN) {
                now += 1_000;
                assert_eq!(holds(&mut downlink, now, version), CatchUp::default());
                if downlink.is_thin(Millis(now), CONN) {
                    version += 1;
                    assert_eq!(publish(&mut downlink, now, version), told());
                }
            }
            rests.push((now - from) / 1_000);
        }
        assert_eq!(rests, [15, 30, 60]);
    }
}
