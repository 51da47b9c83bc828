//! Versions that learners hold, and changes on their way to them.
//!
//! [`Downlink`] bounds the unconfirmed bytes to each learner. A learner that keeps up gets each change of the
//! fragments that it holds, at once or from a short shared history. So nothing queues up for a single learner. A
//! learner that does not keep up is told so and gets no changes: it fetches whole fragments at the pace of its link.
//! After some time it is sent changes again. The downlink does not depend on rounds, leases or parameters.

mod history;
mod link;

use std::collections::BTreeMap;

use history::History;
use link::{Link, Place};
use serde::{Deserialize, Serialize};

use crate::wire::{ConnId, FragmentId, Merged, Millis, Version};

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
    /// Connections that are sent the change.
    pub change: Vec<ConnId>,
    /// Connections that cannot keep up, and are told to fetch the fragment.
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

    /// Records that the learner behind `conn` trains. The first call starts the changes that follow the versions it
    /// holds.
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

#[cfg(test)]
mod tests;
