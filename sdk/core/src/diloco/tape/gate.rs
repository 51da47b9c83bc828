//! Output that waits until earlier decisions are stored.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::{Entry, MergeEntry, RemadeEntry};
use crate::wire::{ConnId, FragmentId, Message};

/// Queue that delays output until all earlier decisions are stored. Output leaves in the order in which it came,
/// except messages that reveal no decision.
#[derive(Debug)]
pub struct Gate<T> {
    /// Newest decision.
    decided: u64,
    /// Newest stored decision.
    safe: u64,
    waiting: VecDeque<(u64, T)>,
    /// Number of delayed outputs that were released.
    out: u64,
    /// Position of the newest delayed `Welcome` to each connection, in the same count…
    welcomes: BTreeMap<ConnId, u64>,
    /// …and of every delayed `Welcome`, in order.
    welcomed: VecDeque<(u64, ConnId)>,
    /// Decision that made the version of each fragment, `[P]`.
    versions: Vec<u64>,
    /// The owner's last decision to pause or resume the run.
    word: u64,
}

impl<T> Gate<T> {
    /// Creates a gate for a run of `fragments` fragments. Row `seq` is the newest decision, and stored.
    #[must_use]
    pub fn new(seq: u64, fragments: u16) -> Self {
        let versions = vec![seq; fragments.into()];
        let (waiting, welcomes, welcomed) = (VecDeque::new(), BTreeMap::new(), VecDeque::new());
        Self { decided: seq, safe: seq, waiting, out: 0, welcomes, welcomed, versions, word: seq }
    }

    /// Numbers `entry`, the next decision.
    pub fn decide(&mut self, entry: &Entry) -> u64 {
        self.decided += 1;
        match entry {
            Entry::Merged(MergeEntry { fragment, .. }) | Entry::Remade(RemadeEntry { fragment, .. }) => {
                if let Some(version) = self.versions.get_mut(usize::from(fragment.0)) {
                    *version = self.decided;
                }
            }
            Entry::Held { .. } => self.word = self.decided,
            _ => {}
        }
        self.decided
    }

    /// Returns the newest decision.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Returns true if the decision `seq` is stored.
    #[must_use]
    pub fn is_safe(&self, seq: u64) -> bool {
        seq <= self.safe
    }

    /// Returns true if all decisions are stored.
    #[must_use]
    pub fn is_all_safe(&self) -> bool {
        self.is_safe(self.decided)
    }

    /// Returns the number of decisions that are not stored yet.
    #[must_use]
    pub fn unsaved(&self) -> u64 {
        self.decided.saturating_sub(self.safe)
    }

    /// Returns true if the version of `fragment` is stored, so that it may be served.
    #[must_use]
    pub fn is_version_safe(&self, fragment: FragmentId) -> bool {
        self.versions.get(usize::from(fragment.0)).is_none_or(|&seq| self.is_safe(seq))
    }

    /// Records that all decisions up to `seq` are stored.
    pub fn reach(&mut self, seq: u64) {
        self.safe = self.safe.max(seq);
    }

    /// Returns `said` if it may be sent at once. Otherwise queues it.
    pub fn pass(&mut self, said: T) -> Option<T> {
        if self.waiting.is_empty() && self.is_all_safe() {
            return Some(said);
        }
        self.waiting.push_back((self.decided, said));
        None
    }

    /// Does the same for `said`, which is `message` to `conns`. A question, or the confirmation that an update
    /// arrived, reveals no decision except that the owner lets the run go on, and waits for that one only. It does
    /// not overtake a `Welcome`, whose state of the learner's updates is older than the question.
    pub fn pass_message(&mut self, conns: &[ConnId], message: &Message, said: T) -> Option<T> {
        let tells_little = matches!(message, Message::Collect { .. } | Message::UpdateReceived { .. });
        let is_welcomed = |conn: &ConnId| !self.welcomes.contains_key(conn);
        if tells_little && self.is_safe(self.word) && conns.iter().all(is_welcomed) {
            return Some(said);
        }
        let before = self.out + self.waiting.len() as u64;
        let passed = self.pass(said);
        if passed.is_none() && matches!(message, Message::Welcome(_)) {
            self.welcomes.extend(conns.iter().map(|&conn| (conn, before)));
            self.welcomed.extend(conns.iter().map(|&conn| (before, conn)));
        }
        passed
    }

    /// Returns the next output whose decisions are stored.
    pub fn release(&mut self) -> Option<T> {
        let (_, said) = self.waiting.pop_front_if(|(after, _)| *after <= self.safe)?;
        self.out += 1;
        let out = self.out;
        while let Some((before, conn)) = self.welcomed.pop_front_if(|(before, _)| *before < out) {
            if self.welcomes.get(&conn) == Some(&before) {
                self.welcomes.remove(&conn);
            }
        }
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{RunId, Serial, Version};

    const SOME: Entry = Entry::Finishing;

    #[test]
    fn nothing_overtakes_a_decision_that_is_not_safe() {
        let mut gate = Gate::new(7, 1);
        assert_eq!(gate.pass("a"), Some("a"), "nothing was decided");
        assert_eq!(gate.decide(&SOME), 8);
        assert_eq!((gate.pass("b"), gate.release()), (None, None));
        assert_eq!((gate.decide(&SOME), gate.unsaved()), (9, 2));
        assert_eq!(gate.pass("c"), None);
        gate.reach(8);
        assert_eq!(gate.pass("d"), None, "it comes after what waits");
        assert_eq!((gate.release(), gate.release()), (Some("b"), None));
        gate.reach(9);
        assert_eq!((gate.release(), gate.release(), gate.release()), (Some("c"), Some("d"), None));
        assert_eq!(gate.pass("e"), Some("e"));
        gate.reach(3);
        assert!(gate.is_safe(9), "what is on the disk stays there");
    }

    #[test]
    fn a_question_waits_for_the_owners_word_alone() {
        let mut gate = Gate::new(0, 1);
        let (run, fragment, base) = (RunId(1), FragmentId(0), Version(0));
        let question = Message::Collect { run, fragment, base };
        gate.decide(&SOME);
        assert_eq!(
            (gate.pass("told"), gate.pass_message(&[ConnId(1)], &question, "asked")),
            (None, Some("asked"))
        );
        gate.decide(&Entry::Held { held: false });
        assert_eq!(gate.pass_message(&[ConnId(1)], &question, "asked again"), None);
        gate.reach(2);
        assert_eq!((gate.release(), gate.release()), (Some("told"), Some("asked again")));
    }

    /// Goal: a learner is told that its update arrived before the tape is on disk.
    #[test]
    fn the_news_that_an_update_arrived_waits_for_no_decision() {
        let mut gate = Gate::new(0, 1);
        let arrived = Message::UpdateReceived { run: RunId(1), fragment: FragmentId(0), serial: Serial(5) };
        gate.decide(&SOME);
        assert_eq!(gate.pass("told"), None);
        assert_eq!(gate.pass_message(&[ConnId(1)], &arrived, "arrived"), Some("arrived"));
    }

    /// Goal: no question overtakes a `Welcome`. Otherwise that older `Welcome` would report the answer as lost.
    #[test]
    fn no_question_overtakes_a_welcome() {
        let mut gate = Gate::new(0, 1);
        let question = Message::Collect { run: RunId(1), fragment: FragmentId(0), base: Version(0) };
        let welcome = Message::Welcome(Box::new(crate::wire::tests::welcome()));
        gate.decide(&SOME);
        assert_eq!(gate.pass("told"), None);
        assert_eq!(gate.pass_message(&[ConnId(1)], &welcome, "welcome"), None);
        assert_eq!(gate.pass_message(&[ConnId(2)], &question, "to another"), Some("to another"));
        assert_eq!(gate.pass_message(&[ConnId(1), ConnId(2)], &question, "question"), None);
        gate.reach(1);
        assert_eq!((gate.release(), gate.release()), (Some("told"), Some("welcome")));
        assert_eq!(gate.pass_message(&[ConnId(1)], &question, "welcomed"), Some("welcomed"));
        assert_eq!((gate.release(), gate.release()), (Some("question"), None));
    }
}
