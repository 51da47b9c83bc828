//! The learner's side: what its engine was given, and the states that it may still be asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Op, Span, Tally, inputs_hash, state_hash, steps};
use crate::wire::{ApplyPolicy, Commitment, EVIDENCE_BYTES, LeaseId, Message, RunId, Serial, StateHash};

/// Steps that may be taken without an update: whoever trains for so long beyond its syncer begins afresh.
const OPS_MAX: usize = 1 << 16;

/// Records what one engine is given, from the moment in which it was built.
///
/// Each update closes a span. Its opening state is kept until the syncer says that the update arrived, for it asks
/// before that or never; there is one for each update on its way, of some 15 bytes for a parameter.
#[derive(Debug)]
pub struct Recorder {
    run: RunId,
    policy: ApplyPolicy,
    window_tokens: u64,
    /// Where the span that is open began.
    opening: Arc<Point>,
    tally: Tally,
    ops: Vec<Op>,
    /// Spans that are closed and may be asked for, or were never sent, the oldest first.
    closed: VecDeque<Closed>,
    /// What the syncer asks for.
    shown: Option<(Serial, Vec<u8>)>,
}

/// A state between two spans.
#[derive(Debug)]
struct Point {
    hash: StateHash,
    state: Vec<u8>,
    tally: Tally,
}

#[derive(Debug)]
struct Closed {
    serial: Serial,
    opening: Arc<Point>,
    ops: Vec<Op>,
    closing: Arc<Point>,
    is_sent: bool,
}

impl Recorder {
    /// Of an engine that was just built, in a run of so many fragments whose windows have so many tokens.
    #[must_use]
    pub fn new(run: RunId, fragments: u16, policy: ApplyPolicy, window_tokens: u64) -> Self {
        let tally = Tally::new(fragments);
        let fresh = Point { hash: StateHash::FRESH, state: Vec::new(), tally: tally.clone() };
        Self {
            run,
            policy,
            window_tokens,
            opening: Arc::new(fresh),
            tally,
            ops: Vec::new(),
            closed: VecDeque::new(),
            shown: None,
        }
    }

    /// The engine takes a step at the rate of `base + own` tokens on these windows.
    pub fn step(&mut self, base: u64, own: u64, windows: Vec<(LeaseId, u32, u32)>) {
        self.note(Op::Step { base, own, windows });
    }

    /// The engine is given something.
    pub fn note(&mut self, op: Op) {
        self.tally.take(&op, self.window_tokens, self.policy);
        self.ops.push(op);
    }

    /// Whether more was recorded than a span may hold.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ops.len() >= OPS_MAX
    }

    /// The engine's state just after it coded the update `serial`.
    pub fn close(&mut self, serial: Serial, state: Vec<u8>) {
        let tally = self.tally.clone();
        let closing = Arc::new(Point { hash: state_hash(&state, &tally), state, tally });
        let opening = std::mem::replace(&mut self.opening, Arc::clone(&closing));
        let ops = std::mem::take(&mut self.ops);
        self.closed.push_back(Closed { serial, opening, ops, closing, is_sent: false });
    }

    /// What to say before the update `serial` is sent. Spans before it whose updates were never sent are part of it.
    pub fn commit(&mut self, serial: Serial) -> Option<Message> {
        let at = self.closed.iter().position(|closed| closed.serial == serial)?;
        let first = (0..at).rev().find(|&before| self.closed[before].is_sent).map_or(0, |before| before + 1);
        let mut ops = Vec::new();
        for closed in self.closed.range_mut(first..=at) {
            ops.append(&mut closed.ops);
        }
        let opening = Arc::clone(&self.closed[first].opening);
        self.closed.drain(first..at);
        let closed = &mut self.closed[first];
        (closed.opening, closed.ops, closed.is_sent) = (opening, ops, true);
        Some(Message::Commit(Commitment {
            run: self.run,
            serial,
            opening: closed.opening.hash,
            inputs: inputs_hash(&closed.ops),
            closing: closed.closing.hash,
            steps: steps(&closed.ops),
        }))
    }

    /// The syncer has the update `serial`, and will not ask for its span if it has not by now.
    pub fn arrived(&mut self, serial: Serial) {
        self.closed.retain(|closed| closed.serial != serial || !closed.is_sent);
    }

    /// A new connection stands: of what was sent on the one before, nothing is known to have come.
    pub fn welcomed(&mut self) {
        self.shown = None;
        self.closed.iter_mut().for_each(|closed| closed.is_sent = false);
    }

    /// The syncer knows this state as the last one; whether that is one from which this learner came.
    pub fn anchored(&mut self, state: StateHash) -> bool {
        if let Some(at) = self.closed.iter().position(|closed| closed.closing.hash == state) {
            self.closed.drain(..=at);
            return true;
        }
        let first = self.closed.front().map_or(&self.opening, |closed| &closed.opening);
        // An engine that was just built begins a chain of its own.
        first.hash == state || first.hash == StateHash::FRESH
    }

    /// The answer to a question; `None` if the syncer may not ask that.
    pub fn answer(&mut self, serial: Serial, piece: u32) -> Option<Message> {
        if self.shown.as_ref().is_none_or(|(shown, _)| *shown != serial) {
            let closed = self.closed.iter().find(|closed| closed.serial == serial && closed.is_sent)?;
            let Point { state, tally, .. } = &*closed.opening;
            let span = Span { state: state.clone(), tally: tally.clone(), ops: closed.ops.clone() };
            self.shown = Some((serial, span.to_bytes()));
        }
        let (_, bytes) = self.shown.as_ref()?;
        let mut pieces = bytes.chunks(EVIDENCE_BYTES as usize);
        let total = u32::try_from(bytes.len()).ok()?;
        let body = pieces.nth(piece as usize)?.to_vec().into();
        let is_last = pieces.next().is_none();
        if is_last {
            self.shown = None;
            self.arrived(serial);
        }
        Some(Message::Evidence { run: self.run, serial, piece, total, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FragmentId, Version};

    const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: true };

    /// One that has taken a step and coded an update, for each of `serials`.
    fn after(serials: &[u64]) -> Recorder {
        let mut recorder = Recorder::new(RunId(1), 2, KEEP, 10);
        for &serial in serials {
            recorder.step(0, 0, vec![(LeaseId(1), 0, 1)]);
            recorder.note(Op::Encode { serial: Serial(serial), fragment: FragmentId(0) });
            recorder.close(Serial(serial), vec![serial as u8; 3]);
        }
        recorder
    }

    fn commit(recorder: &mut Recorder, serial: u64) -> Commitment {
        match recorder.commit(Serial(serial)) {
            Some(Message::Commit(commitment)) => commitment,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_commitment_begins_where_the_one_before_ended() {
        let mut recorder = after(&[5, 6]);
        let (first, second) = (commit(&mut recorder, 5), commit(&mut recorder, 6));
        assert_eq!((first.opening, second.opening), (StateHash::FRESH, first.closing));
        assert_eq!((first.steps, second.steps), (1, 1));
        assert_ne!(first.closing, second.closing);
        assert_eq!(recorder.commit(Serial(7)), None, "nothing was coded as that");
    }

    /// Goal: what was lost on its way is part of what comes next, and the chain has no hole.
    #[test]
    fn spans_that_were_lost_become_one() {
        let mut recorder = after(&[5, 6, 7]);
        let commitment = commit(&mut recorder, 7);
        assert_eq!((commitment.opening, commitment.steps), (StateHash::FRESH, 3), "never sent");

        let mut recorder = after(&[5, 6, 7, 8]);
        let (first, _, _) = (commit(&mut recorder, 5), commit(&mut recorder, 6), commit(&mut recorder, 7));
        recorder.welcomed();
        assert!(recorder.anchored(first.closing));
        let commitment = commit(&mut recorder, 8);
        assert_eq!((commitment.opening, commitment.steps), (first.closing, 3), "6 and 7 did not come");
        recorder.arrived(Serial(8));
        recorder.welcomed();
        assert!(recorder.anchored(commitment.closing), "it is where it is");
        assert!(!recorder.anchored(first.closing), "a syncer that went back knows another history");
        assert!(after(&[5]).anchored(first.closing), "an engine that was just built begins anew");
    }

    #[test]
    fn what_arrived_without_a_question_is_not_kept() {
        let mut recorder = after(&[5, 6]);
        for serial in [5, 6] {
            commit(&mut recorder, serial);
        }
        recorder.arrived(Serial(5));
        assert_eq!((recorder.answer(Serial(5), 0), recorder.closed.len()), (None, 1));
        assert!(recorder.answer(Serial(6), 0).is_some());
        assert_eq!(recorder.closed.len(), 0, "it was shown");
    }

    #[test]
    fn a_span_is_shown_piece_by_piece_though_it_arrived() {
        let mut recorder = Recorder::new(RunId(1), 2, KEEP, 10);
        let code = |serial| Op::Encode { serial: Serial(serial), fragment: FragmentId(1) };
        recorder.note(code(5));
        recorder.close(Serial(5), vec![7; 2 * EVIDENCE_BYTES as usize]);
        recorder.note(Op::Take { fragment: FragmentId(0), version: Version(3), keep: true });
        recorder.note(code(6));
        recorder.close(Serial(6), vec![8; 9]);
        for serial in [5, 6] {
            commit(&mut recorder, serial);
        }
        let mut shown = Vec::new();
        for piece in 0..3 {
            let Some(Message::Evidence { total, body, .. }) = recorder.answer(Serial(6), piece) else {
                panic!("piece {piece}");
            };
            shown.extend(body.into_vec());
            assert_eq!(shown.len() == total as usize, piece == 2);
            recorder.arrived(Serial(6));
        }
        let span = Span::from_bytes(&shown).unwrap();
        assert_eq!((span.state.len(), span.ops.len(), span.steps()), (2 * EVIDENCE_BYTES as usize, 2, 0));
        assert_eq!(recorder.answer(Serial(6), 0), None);
    }
}
