//! What waits until the decisions before it are kept.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::{Entry, MergeEntry, RemadeEntry};
use crate::wire::{ConnId, FragmentId, Message};

/// Holds back what is to be told until all that was decided before is safe. What comes out is in the order in which it
/// went in, but for what promises nothing.
#[derive(Debug)]
pub struct Gate<T> {
    /// The newest decision.
    decided: u64,
    /// The newest that is kept.
    safe: u64,
    waiting: VecDeque<(u64, T)>,
    /// How many of those that waited are out.
    out: u64,
    /// How many go out before the newest `Welcome` of each of these, which waits too…
    welcomes: BTreeMap<ConnId, u64>,
    /// …and the same of every one that waits, in order.
    welcomed: VecDeque<(u64, ConnId)>,
    /// The decision that the version of each fragment is from, `[P]`.
    versions: Vec<u64>,
    /// The decision with the owner's last word on whether the run goes on.
    word: u64,
}

impl<T> Gate<T> {
    /// For a run of so many fragments, with nothing decided after row `seq`, which is kept.
    #[must_use]
    pub fn new(seq: u64, fragments: u16) -> Self {
        let versions = vec![seq; fragments.into()];
        let (waiting, welcomes, welcomed) = (VecDeque::new(), BTreeMap::new(), VecDeque::new());
        Self { decided: seq, safe: seq, waiting, out: 0, welcomes, welcomed, versions, word: seq }
    }

    /// The number of `entry`, which is the next decision.
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

    /// The newest decision.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Whether the decision `seq` is kept.
    #[must_use]
    pub fn is_safe(&self, seq: u64) -> bool {
        seq <= self.safe
    }

    /// Whether all that was decided is kept.
    #[must_use]
    pub fn is_all_safe(&self) -> bool {
        self.is_safe(self.decided)
    }

    /// Decisions that are not kept yet.
    #[must_use]
    pub fn unsaved(&self) -> u64 {
        self.decided.saturating_sub(self.safe)
    }

    /// Whether the version of `fragment` is kept, so that it may be given to whoever asks for it.
    #[must_use]
    pub fn is_version_safe(&self, fragment: FragmentId) -> bool {
        self.versions.get(usize::from(fragment.0)).is_none_or(|&seq| self.is_safe(seq))
    }

    /// Everything up to `seq` is kept.
    pub fn reach(&mut self, seq: u64) {
        self.safe = self.safe.max(seq);
    }

    /// Gives `said` back if it may be said at once; else it waits.
    pub fn pass(&mut self, said: T) -> Option<T> {
        if self.waiting.is_empty() && self.is_all_safe() {
            return Some(said);
        }
        self.waiting.push_back((self.decided, said));
        None
    }

    /// The same of `said`, which is `message` to `conns`. A question, and the news that an update arrived, tell of no
    /// decision but the owner's that the run goes on, and wait for no other. They do not overtake a `Welcome`: what
    /// that says of its learner's updates was true before it was asked for another one.
    pub fn pass_message(&mut self, conns: &[ConnId], message: &Message, said: T) -> Option<T> {
        let tells_little = matches!(message, Message::Collect { .. } | Message::Arrived { .. });
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

    /// The next that waited long enough.
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

    /// Goal: a learner hears that its update arrived before the tape is on the disk.
    #[test]
    fn the_news_that_an_update_arrived_waits_for_no_decision() {
        let mut gate = Gate::new(0, 1);
        let arrived = Message::Arrived { run: RunId(1), fragment: FragmentId(0), serial: Serial(5) };
        gate.decide(&SOME);
        assert_eq!(gate.pass("told"), None);
        assert_eq!(gate.pass_message(&[ConnId(1)], &arrived, "arrived"), Some("arrived"));
    }

    /// Goal: who is asked before its `Welcome` comes would hear from that, which is older, that its answer was lost.
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
