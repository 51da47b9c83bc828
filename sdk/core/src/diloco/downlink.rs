//! Versions that learners hold, and flow control of the changes that are sent to them.
//!
//! [`Downlink`] bounds the unconfirmed bytes to each learner. A learner whose link is fast enough gets each change of
//! the fragments that it holds, at once or from a short history that all learners share. There are no queues of single
//! learners. If the link is too slow, the learner gets `Resync` instead of changes for some time, and fetches whole
//! fragments at the speed of its link. The downlink does not depend on rounds, leases or parameters.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::window::Window;
use crate::wire::{ConnId, FragmentId, Merged, Millis, Version};
use serde::{Deserialize, Serialize};

/// Limits on the changes in flight to one learner. The defaults are our own constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DownlinkPolicy {
    /// Smallest congestion window, in bytes.
    pub window_bytes_min: u64,
    /// Initial congestion window, in bytes.
    pub window_bytes_first: u64,
    /// Lower bound on the largest congestion window, in bytes. The largest window is one change of each fragment, or
    /// this value if that is more. A link of 20 Mbit/s transfers the default in less than two seconds.
    pub unconfirmed_bytes_min: u64,
    /// Lower bound on the history of changes, in bytes. A learner needs the changes since the version that it fetched,
    /// so the history must cover the time of a fetch.
    pub history_bytes_min: u64,
    /// Longest time that a change may wait for space in the window, in milliseconds. Two step times and several round
    /// trips of the learner are added to it.
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

/// Settings of the downlink.
#[derive(Clone, Copy, Debug)]
pub struct DownlinkTerms {
    /// P, at least 1.
    pub fragments: u16,
    /// Policy of the run.
    pub policy: DownlinkPolicy,
    /// Largest congestion window, in bytes.
    pub unconfirmed_bytes_max: u64,
    /// Largest size of the history over all fragments, in bytes.
    pub history_bytes_max: u64,
}

/// Messages to send to one learner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatchUp {
    /// Changes to send, in order.
    pub changes: Vec<Merged>,
    /// Fragments that the learner must fetch whole, at this version or a later one (`Resync`).
    pub behind: Vec<(FragmentId, Version)>,
}

/// Recipients of a new version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipients {
    /// Connections to send the change to.
    pub change: Vec<ConnId>,
    /// Connections to send `Resync` to, since their links are too slow for changes.
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
    /// Creates a downlink without learners. `newest` is the current version of each fragment, `[P]`.
    #[must_use]
    pub(crate) fn new(terms: DownlinkTerms, newest: Vec<Version>) -> Self {
        Self { terms, history: History::new(newest, terms.history_bytes_max), links: BTreeMap::new() }
    }

    /// Adds a learner that holds no fragment. It gets no changes until it [trains](Self::trains), so that they do not
    /// delay its initial downloads.
    pub(crate) fn open(&mut self, conn: ConnId) {
        self.links.insert(conn, Link::new(&self.terms));
    }

    /// Removes a connection.
    pub(crate) fn close(&mut self, conn: ConnId) {
        self.links.remove(&conn);
    }

    /// Records that the learner behind `conn` trains. The first call returns the changes after the versions that the
    /// learner holds.
    pub(crate) fn trains(&mut self, now: Millis, conn: ConnId) -> CatchUp {
        let mut follow = CatchUp::default();
        if let Some(link) = self.links.get_mut(&conn)
            && link.begin()
        {
            fill(&self.history, link, now, &mut follow);
        }
        follow
    }

    /// Records that the learner behind `conn` holds `version` of `fragment`, and returns the next changes. The learner
    /// reads messages every `step_ms` milliseconds.
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
            link.set_state(fragment, SyncState::At(version));
            return follow;
        }
        link.confirm(now, fragment, version, step_ms);
        if link.state(fragment) == SyncState::Fetching {
            let newest = self.history.newest(fragment);
            let reaches = link.may_follow(now) && self.history.after(fragment, version).is_some();
            if version == newest || reaches {
                link.set_state(fragment, SyncState::At(version));
            } else {
                follow.behind.push((fragment, newest));
            }
        }
        fill(&self.history, link, now, &mut follow);
        follow
    }

    /// Adds the change to a new version to the history, and returns its recipients. `step_ms` returns the interval at
    /// which the learner behind a connection reads messages, in milliseconds.
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
            let SyncState::At(version) = link.state(fragment) else { continue };
            if link.may_follow(now) && version == merged.base && link.has_room() {
                link.send(now, merged);
                audience.change.push(conn);
                continue;
            }
            if link.may_follow(now) {
                let waited = link.waits(now, true) > link.patience_ms(step_ms(conn), &self.terms);
                if waited || self.history.after(fragment, version).is_none() {
                    link.suspend(now);
                }
            }
            if !link.may_follow(now) {
                link.set_state(fragment, SyncState::Fetching);
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

    /// Returns true if the learner behind `conn` fetches whole fragments, because its link is too slow for every
    /// change.
    #[must_use]
    pub(crate) fn is_thin(&self, now: Millis, conn: ConnId) -> bool {
        self.links.get(&conn).is_some_and(|link| !link.may_follow(now))
    }
}

/// Sends changes that wait for space in the window of `link`, as far as there is space now.
fn fill(history: &History, link: &mut Link, now: Millis, follow: &mut CatchUp) {
    let mut waits = false;
    for fragment in history.ids() {
        while let SyncState::At(version) = link.state(fragment)
            && version != history.newest(fragment)
        {
            let Some(change) = history.after(fragment, version).filter(|_| link.may_follow(now)) else {
                link.set_state(fragment, SyncState::Fetching);
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

/// History of the latest changes of each fragment, bounded in bytes.
#[derive(Debug)]
struct History {
    /// History of each fragment, `[P]`.
    fragments: Vec<FragmentHistory>,
    /// Largest size of the changes of one fragment, in bytes.
    bytes_max: u64,
}

#[derive(Debug)]
struct FragmentHistory {
    /// Newest version.
    newest: Version,
    /// Total size of `changes`, in bytes.
    bytes: u64,
    /// Latest changes, oldest first.
    changes: VecDeque<Merged>,
}

impl History {
    /// Creates an empty history of at most `bytes_max` bytes over all fragments.
    fn new(newest: Vec<Version>, bytes_max: u64) -> Self {
        let bytes_max = bytes_max / (newest.len() as u64).max(1);
        let empty = |newest| FragmentHistory { newest, bytes: 0, changes: VecDeque::new() };
        Self { fragments: newest.into_iter().map(empty).collect(), bytes_max }
    }

    /// Returns all fragments, in order.
    fn ids(&self) -> impl Iterator<Item = FragmentId> + use<> {
        (0..self.fragments.len() as u16).map(FragmentId)
    }

    /// Returns the newest version of `fragment`, or version 0 if there is no such fragment.
    fn newest(&self, fragment: FragmentId) -> Version {
        self.fragments.get(usize::from(fragment.0)).map_or(Version(0), |history| history.newest)
    }

    /// Adds the change `merged`, and drops the oldest changes beyond the limit.
    fn add(&mut self, merged: &Merged) {
        let Some(history) = self.fragments.get_mut(usize::from(merged.fragment.0)) else { return };
        history.newest = merged.version;
        history.changes.push_back(merged.clone());
        history.bytes += merged.body.len() as u64;
        while history.bytes > self.bytes_max
            && let Some(oldest) = history.changes.pop_front()
        {
            history.bytes -= oldest.body.len() as u64;
        }
    }

    /// Returns the change whose base is `version`; `None` if `version` is the newest, too old or unknown.
    fn after(&self, fragment: FragmentId, version: Version) -> Option<&Merged> {
        let changes = &self.fragments.get(usize::from(fragment.0))?.changes;
        // Bases are in ascending order.
        let at = changes.partition_point(|merged| merged.base < version);
        changes.get(at).filter(|merged| merged.base == version)
    }
}

/// First time for which changes to a learner with a slow link are suspended, in milliseconds. The time doubles with
/// each suspension, up to [`SUSPENSION_MS_MAX`].
const SUSPENSION_MS_FIRST: u64 = 15_000;
/// Longest suspension, in milliseconds. After this time without a suspension, the first one is short again.
const SUSPENSION_MS_MAX: u64 = 480_000;
/// Number of round trips in which a window grows from its first to its largest size, with a margin.
const GROWTH_ROUND_TRIPS: f64 = 8.0;

/// Downlink state of one learner.
#[derive(Debug)]
struct Link {
    /// Whether the learner has reported training.
    has_begun: bool,
    /// State of each fragment, `[P]`.
    states: Vec<SyncState>,
    /// Sent and unconfirmed changes, oldest first.
    unconfirmed: VecDeque<Sent>,
    /// Total size of `unconfirmed`, in bytes.
    bytes: u64,
    window: Window,
    /// Time since which a change waits for space in the window; `None` if none waits.
    waits_since: Option<Millis>,
    /// End of the last suspension of changes.
    suspended_until: Millis,
    /// Length of the next suspension, in milliseconds.
    suspension_ms: u64,
}

/// State of a learner on one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    /// The learner fetches the whole fragment, and gets no changes until it confirms a version.
    Fetching,
    /// The learner holds this version, or will hold it after the changes in flight.
    At(Version),
}

/// Change in flight.
#[derive(Debug)]
struct Sent {
    fragment: FragmentId,
    version: Version,
    /// Size of the body, in bytes.
    bytes: u64,
    /// Time of sending.
    at: Millis,
}

impl Link {
    /// Creates the state of a learner that holds no fragment.
    fn new(terms: &DownlinkTerms) -> Self {
        let DownlinkPolicy { window_bytes_min, window_bytes_first, .. } = terms.policy;
        let most = terms.unconfirmed_bytes_max as f64;
        Self {
            has_begun: false,
            states: vec![SyncState::Fetching; usize::from(terms.fragments)],
            unconfirmed: VecDeque::new(),
            bytes: 0,
            window: Window::new(window_bytes_min as f64, window_bytes_first as f64, most),
            waits_since: None,
            suspended_until: Millis(0),
            suspension_ms: SUSPENSION_MS_FIRST,
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

    /// Returns the state of `fragment`.
    fn state(&self, fragment: FragmentId) -> SyncState {
        self.states.get(usize::from(fragment.0)).copied().unwrap_or(SyncState::Fetching)
    }

    /// Sets the state of `fragment`.
    fn set_state(&mut self, fragment: FragmentId, state: SyncState) {
        if let Some(old) = self.states.get_mut(usize::from(fragment.0)) {
            *old = state;
        }
    }

    /// Returns true if changes are not suspended at `now`.
    fn may_follow(&self, now: Millis) -> bool {
        self.suspended_until <= now
    }

    /// Returns true if a change may be sent: the window has space, or no change is in flight.
    fn has_room(&self) -> bool {
        self.unconfirmed.is_empty() || self.window.has_room(self.bytes as f64)
    }

    /// Records whether a change waits for space in the window, and returns the waiting time in milliseconds.
    fn waits(&mut self, now: Millis, waits: bool) -> u64 {
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.waits_since.map_or(0, |since| now.since(since))
    }

    /// Returns the longest time that a change may wait for space in the window, in milliseconds. The learner reads
    /// messages every `step_ms` milliseconds, and a window needs several round trips to grow.
    fn patience_ms(&self, step_ms: f64, terms: &DownlinkTerms) -> u64 {
        let more_ms = 2.0 * step_ms + GROWTH_ROUND_TRIPS * self.window.shortest_ms();
        terms.policy.wait_ms_max.saturating_add(more_ms as u64)
    }

    /// Records that `merged` was sent.
    fn send(&mut self, now: Millis, merged: &Merged) {
        let bytes = merged.body.len() as u64;
        self.bytes += bytes;
        let Merged { fragment, version, .. } = *merged;
        self.set_state(fragment, SyncState::At(version));
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
        if now.since(self.suspended_until) > SUSPENSION_MS_MAX {
            self.suspension_ms = SUSPENSION_MS_FIRST;
        }
    }

    /// Suspends changes to the learner for a while, because its link is too slow for them.
    fn suspend(&mut self, now: Millis) {
        self.suspended_until = now.after(self.suspension_ms);
        self.suspension_ms = (2 * self.suspension_ms).min(SUSPENSION_MS_MAX);
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
    /// Size of each change. The first window of a link has space for three, and the history for four.
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

    /// Creates a downlink to one learner that trains and holds version 1 of the first fragment, the newest version.
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

    fn resync() -> Recipients {
        Recipients { change: vec![], behind: vec![CONN] }
    }

    fn changes(versions: std::ops::RangeInclusive<u64>) -> CatchUp {
        CatchUp { changes: versions.map(merged).collect(), behind: vec![] }
    }

    fn behind(version: u64) -> CatchUp {
        CatchUp { changes: vec![], behind: vec![(P, Version(version))] }
    }

    /// Goal: changes do not delay the initial downloads of a joining learner.
    #[test]
    fn joining_learner_gets_no_changes_until_it_trains() {
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
    fn changes_are_sent_to_holders_of_the_fragment() {
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
    fn changes_beyond_the_window_wait_in_the_history() {
        let mut downlink = followed();
        (2..=4).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), sent()));
        (5..=6).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), Recipients::default()));
        assert_eq!(downlink.unconfirmed_bytes(CONN), 150_000);
        // The first confirmation makes space for one change, and grows the window by one, since no change was slow.
        assert_eq!(holds(&mut downlink, 10, 2), changes(5..=6));
        assert_eq!(holds(&mut downlink, 10, 6), CatchUp::default());
        assert_eq!(publish(&mut downlink, 10, 7), sent());
    }

    #[test]
    fn changes_are_suspended_without_confirmations() {
        let mut downlink = followed();
        (2..=4).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), sent()));
        assert_eq!(publish(&mut downlink, 0, 5), Recipients::default());
        assert_eq!(publish(&mut downlink, 1_001, 6), resync(), "that was too long");
        assert_eq!(publish(&mut downlink, 1_001, 7), Recipients::default(), "it is told once");
        assert_eq!(downlink.unconfirmed_bytes(CONN), 150_000);
        assert!(downlink.is_thin(Millis(1_001), CONN));
    }

    #[test]
    fn long_steps_extend_the_wait() {
        let mut downlink = followed();
        (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(downlink.publish(Millis(1_900), &merged(6), |_| 500.0), Recipients::default());
        assert_eq!(downlink.publish(Millis(2_100), &merged(7), |_| 500.0), resync());
    }

    #[test]
    fn changes_after_a_fetched_version_are_sent() {
        let mut downlink = opened();
        (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(holds(&mut downlink, 0, 3), changes(4..=5));
        // Version 0 is older than the history, and version 9 is unknown.
        for version in [0, 9] {
            let mut downlink = opened();
            (2..=6).for_each(|version| drop(publish(&mut downlink, 0, version)));
            assert_eq!(holds(&mut downlink, 0, version), behind(6));
        }
    }

    /// Goal: a suspension does not count as waiting, so it does not cause another one.
    #[test]
    fn suspension_does_not_count_as_waiting() {
        let of = |fragment, version| Merged { fragment: FragmentId(fragment), ..merged(version) };
        let mut downlink = Downlink::new(DownlinkTerms { fragments: 3, ..TERMS }, vec![Version(1); 3]);
        downlink.open(CONN);
        for fragment in 0..3 {
            downlink.holds(Millis(0), CONN, FragmentId(fragment), Version(1), 0.0);
        }
        downlink.trains(Millis(0), CONN);
        (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(publish(&mut downlink, 1_001, 6), resync());
        holds(&mut downlink, 1_100, 4);
        assert_eq!(downlink.publish(Millis(2_000), &of(1, 2), |_| 0.0), resync(), "it rests");
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
    fn suspensions_end_and_become_longer() {
        let mut downlink = followed();
        let (mut now, mut version) = (0, 1);
        let mut rests = Vec::new();
        for _ in 0..3 {
            // The learner confirms no change before it gets `Resync`.
            while publish(&mut downlink, now, version + 1) != resync() {
                (version, now) = (version + 1, now + 500);
            }
            version += 1;
            let from = now;
            while downlink.is_thin(Millis(now), CONN) {
                now += 1_000;
                assert_eq!(holds(&mut downlink, now, version), CatchUp::default());
                if downlink.is_thin(Millis(now), CONN) {
                    version += 1;
                    assert_eq!(publish(&mut downlink, now, version), resync());
                }
            }
            rests.push((now - from) / 1_000);
        }
        assert_eq!(rests, [15, 30, 60]);
    }
}
