//! Recent changes, for learners slightly behind the newest version.

use std::collections::VecDeque;

use crate::wire::{FragmentId, Merged, Version};

/// Newest version of each fragment, and the changes that led to it, bounded in bytes.
#[derive(Debug)]
pub(super) struct History {
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
    pub(super) fn new(newest: Vec<Version>, bytes_max: u64) -> Self {
        let bytes_max = bytes_max / (newest.len() as u64).max(1);
        let course = |newest| Course { newest, bytes: 0, changes: VecDeque::new() };
        Self { courses: newest.into_iter().map(course).collect(), bytes_max }
    }

    /// Returns every fragment.
    pub(super) fn fragments(&self) -> impl Iterator<Item = FragmentId> + use<> {
        (0..self.courses.len() as u16).map(FragmentId)
    }

    /// Returns the newest version of `fragment`, or version 0 if there is no such fragment.
    pub(super) fn newest(&self, fragment: FragmentId) -> Version {
        self.courses.get(usize::from(fragment.0)).map_or(Version(0), |course| course.newest)
    }

    /// Adds `merged`, and drops the oldest changes beyond the limit.
    pub(super) fn add(&mut self, merged: &Merged) {
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
    pub(super) fn after(&self, fragment: FragmentId, version: Version) -> Option<&Merged> {
        let changes = &self.courses.get(usize::from(fragment.0))?.changes;
        // Versions only grow.
        let at = changes.partition_point(|merged| merged.base < version);
        changes.get(at).filter(|merged| merged.base == version)
    }
}
