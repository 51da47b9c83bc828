//! Which learner holds which version, and what is on its way to it.
//!
//! [`Downlink`] bounds what is sent to one learner and not confirmed. Whoever keeps up gets each change of the
//! fragments that it holds, at once or from a short history that all share, so that nothing queues up for one learner.
//! Whoever does not keep up is told so and gets none: it fetches whole fragments at the pace of its link, and is sent
//! changes again when some time has passed. It knows nothing of rounds, leases or parameters.

mod history;
mod link;

use std::collections::BTreeMap;

use history::History;
use link::{Link, Place};
use serde::{Deserialize, Serialize};

use crate::wire::{ConnId, FragmentId, Merged, Millis, Version};

/// How much is on the way down to one learner. The defaults are constants of ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DownlinkPolicy {
    /// Bytes of changes that may always be on their way.
    pub window_bytes_min: u64,
    /// Bytes of changes that may be on their way before anything is known of the link.
    pub window_bytes_first: u64,
    /// However fast the link, no more changes are on their way than those of a whole turn, or this many bytes if that
    /// is more: a link of 20 Mbit/s carries the default in a second.
    pub unconfirmed_bytes_min: u64,
    /// Changes that are kept in any case, in bytes: a learner some hundred milliseconds away must not find that what it
    /// fetched is too old.
    pub history_bytes_min: u64,
    /// A change may wait this long for room on the way to a learner, beside what its steps and its distance take, in
    /// milliseconds.
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

/// What does not change about it during a run.
#[derive(Clone, Copy, Debug)]
pub struct DownlinkTerms {
    /// P, at least 1.
    pub fragments: u16,
    /// What its owner chose.
    pub policy: DownlinkPolicy,
    /// Changes that are on their way to one learner and not confirmed, in bytes, at most.
    pub unconfirmed_bytes_max: u64,
    /// Changes that are kept for those who are not quite up to date, in bytes over all fragments, at most.
    pub history_bytes_max: u64,
}

/// What one learner is to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follow {
    /// These changes, in order.
    pub changes: Vec<Merged>,
    /// That it is behind these versions, and is to fetch the fragments.
    pub behind: Vec<(FragmentId, Version)>,
}

/// Who is to hear of a new version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Those to whom the change is sent.
    pub change: Vec<ConnId>,
    /// Those who cannot keep up: they are told to fetch the fragment.
    pub behind: Vec<ConnId>,
}

/// The way down to every learner of a run.
#[derive(Debug)]
pub struct Downlink {
    terms: DownlinkTerms,
    history: History,
    links: BTreeMap<ConnId, Link>,
}

impl Downlink {
    /// Nobody is there. `newest` has the version of each fragment, `[P]`.
    #[must_use]
    pub(crate) fn new(terms: DownlinkTerms, newest: Vec<Version>) -> Self {
        Self { terms, history: History::new(newest, terms.history_bytes_max), links: BTreeMap::new() }
    }

    /// A learner is there, who holds nothing. It is sent nothing before it [trains](Self::trains): until then its link
    /// has to carry whole fragments and the text.
    pub(crate) fn open(&mut self, conn: ConnId) {
        self.links.insert(conn, Link::new(&self.terms));
    }

    /// A connection is gone.
    pub(crate) fn close(&mut self, conn: ConnId) {
        self.links.remove(&conn);
    }

    /// The learner behind `conn` trains, as it says from time to time: from the first time on it is sent what follows
    /// on that which it holds.
    pub(crate) fn trains(&mut self, now: Millis, conn: ConnId) -> Follow {
        let mut follow = Follow::default();
        if let Some(link) = self.links.get_mut(&conn)
            && link.begin()
        {
            fill(&self.history, link, now, &mut follow);
        }
        follow
    }

    /// The learner behind `conn` says that it holds `version` of `fragment`. It listens every `step_ms`, in
    /// milliseconds.
    pub(crate) fn holds(
        &mut self,
        now: Millis,
        conn: ConnId,
        fragment: FragmentId,
        version: Version,
        step_ms: f64,
    ) -> Follow {
        let mut follow = Follow::default();
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

    /// A fragment has a new version: who hears of it, and how. `step_ms` gives how often the learner behind a
    /// connection listens, in milliseconds.
    pub(crate) fn publish(
        &mut self,
        now: Millis,
        merged: &Merged,
        step_ms: impl Fn(ConnId) -> f64,
    ) -> Audience {
        let mut audience = Audience::default();
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

    /// Changes on their way to the learner behind `conn`, in bytes.
    #[cfg(test)]
    fn unconfirmed_bytes(&self, conn: ConnId) -> u64 {
        self.links.get(&conn).map_or(0, Link::unconfirmed_bytes)
    }

    /// Whether the learner behind `conn` fetches whole fragments, since its link cannot carry every change.
    #[must_use]
    pub(crate) fn is_thin(&self, now: Millis, conn: ConnId) -> bool {
        self.links.get(&conn).is_some_and(|link| !link.may_follow(now))
    }
}

/// Sends what waits for room on `link`, as far as there is some now.
fn fill(history: &History, link: &mut Link, now: Millis, follow: &mut Follow) {
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

#[cfg(test)]
mod tests;
