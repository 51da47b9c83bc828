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
