//! The syncer's side: who committed to what, whom it asks, and what is shown.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::shelf::Shelf;
use super::{Claim, Facts, Fault, STEPS_MAX, Verdict};
use crate::rng::{self, Rng};
use crate::wire::{
    Commitment, ConnId, EVIDENCE_BYTES, FragmentId, LearnerId, LeaseGrant, LeaseId, Millis, Serial,
    StateHash, Version,
};

/// Audits under way at once, each of which holds an answer in memory.
const CASES_MAX: usize = 4;
/// Time to answer: so long, and one millisecond more for each of so many bytes that the answer may have, as over a thin
/// link. Constants of ours.
const ANSWER_MS: u64 = 60_000;
const ANSWER_BYTES_PER_MS: u64 = 8;
/// Leases of a learner that are remembered, and updates of it that were merged.
const GRANTS_MAX: usize = 512;
const MERGED_MAX: usize = 1_024;
/// Commitments whose updates are still to come.
const PENDING_MAX: usize = 1_024;
/// Bytes that a list of what an engine was given may have, beside the state.
const OPS_BYTES_MAX: u64 = 1 << 20;
/// Bytes of state for each parameter: θ and two moments of 4 bytes, Θ̂ of 2, and at most 4 of what was reported.
const STATE_BYTES_PER_PARAM: u64 = 18;

/// Everything that it takes to do a span again.
#[derive(Clone, Debug)]
pub struct AuditJob {
    /// Whose it is.
    pub learner: LearnerId,
    /// What it committed to.
    pub commitment: Commitment,
    /// What its update says.
    pub claim: Claim,
    /// What it shows: a [`super::Span`].
    pub evidence: Vec<u8>,
    /// What the syncer knows.
    pub facts: Facts,
}

/// The end of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Whose.
    pub learner: LearnerId,
    /// The update that was audited.
    pub serial: Serial,
    /// How it ended.
    pub verdict: Verdict,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Next {
    /// Ask for this piece.
    Ask(Serial, u32),
    /// All of it came.
    Verify(Box<AuditJob>),
}

/// Commitments, and the audits under way.
#[derive(Debug)]
pub struct Docket {
    /// The share of updates that are audited, of those that can be.
    share: f64,
    seed: u64,
    bytes_max: u64,
    shelf: Shelf,
    files: BTreeMap<LearnerId, File>,
}

#[derive(Debug, Default)]
struct File {
    /// It agreed to audits on this connection.
    agreed: Option<ConnId>,
    /// The state it was committed to last.
    last: Option<StateHash>,
    /// Commitments whose updates are still to come, and whether they follow on what is known.
    pending: VecDeque<(Commitment, bool)>,
    grants: BTreeMap<LeaseId, LeaseGrant>,
    merged: VecDeque<(FragmentId, Serial)>,
    case: Option<Case>,
}

#[derive(Debug)]
struct Case {
    commitment: Commitment,
    claim: Claim,
    /// As of when it was asked; `None` once it is being verified.
    facts: Option<Facts>,
    evidence: Vec<u8>,
    total: Option<u32>,
    until: Millis,
}

impl Docket {
    /// Audits this share of updates, 0 to 1, drawn by `seed`, which no learner should know; of a run of so many
    /// parameters.
    #[must_use]
    pub fn new(share: f64, seed: u64, params: u64) -> Self {
        let bytes_max = params.saturating_mul(STATE_BYTES_PER_PARAM).saturating_add(OPS_BYTES_MAX);
        Self { share, seed, bytes_max, shelf: Shelf::default(), files: BTreeMap::new() }
    }

    /// One that audits nobody, and remembers nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::new(0.0, 0, 0)
    }

    /// Whether anybody is audited.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.share > 0.0
    }

    /// Whether `learner` agreed to audits on the connection that it has.
    #[must_use]
    pub fn has_agreed(&self, learner: LearnerId) -> bool {
        self.files.get(&learner).is_some_and(|file| file.agreed.is_some())
    }

    /// A version is published, with the run's clock at `clock_tokens`.
    pub fn publish(&mut self, fragment: FragmentId, version: Version, hat: Arc<Vec<f32>>, clock_tokens: u64) {
        if self.is_on() {
            self.shelf.publish(fragment, version, hat);
            self.shelf.tick(clock_tokens);
        }
    }

    /// The run's clock is told to somebody.
    pub fn tick(&mut self, clock_tokens: u64) {
        if self.is_on() {
            self.shelf.tick(clock_tokens);
        }
    }

    /// Windows were leased to `learner`.
    pub fn lease(&mut self, learner: LearnerId, grant: LeaseGrant) {
        if self.is_on() {
            let grants = &mut self.files.entry(learner).or_default().grants;
            grants.insert(grant.lease, grant);
            if grants.len() > GRANTS_MAX {
                grants.pop_first();
            }
        }
    }

    /// An update of `learner` was merged.
    pub fn merged(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial) {
        if let Some(file) = self.files.get_mut(&learner) {
            file.merged.push_back((fragment, serial));
            if file.merged.len() > MERGED_MAX {
                file.merged.pop_front();
            }
        }
    }

    /// `learner` has a new connection; the state that it was committed to last, if it is known.
    pub fn welcome(&mut self, learner: LearnerId) -> Option<StateHash> {
        self.files.get(&learner)?.last
    }

    /// `learner` is gone; the audit that ends with that.
    pub fn leave(&mut self, learner: LearnerId) -> Option<Judged> {
        let file = self.files.get_mut(&learner)?;
        file.agreed = None;
        file.pending.clear();
        let case = file.case.take_if(|case| case.facts.is_some())?;
        Some(Judged { learner, serial: case.claim.serial, verdict: Verdict::Left })
    }

    /// `learner` was forgotten.
    pub fn forget(&mut self, learner: LearnerId) {
        self.files.remove(&learner);
    }

    /// A commitment came.
    ///
    /// # Errors
    /// [`Fault::Chain`]: it does not begin where the one before ended.
    pub fn commit(&mut self, conn: ConnId, learner: LearnerId, commitment: Commitment) -> Result<(), Fault> {
        if !self.is_on() {
            return Ok(());
        }
        let file = self.files.entry(learner).or_default();
        let is_fresh = commitment.opening == StateHash::FRESH;
        let follows = file.last.map(|last| last == commitment.opening);
        if !is_fresh && follows == Some(false) || file.pending.len() >= PENDING_MAX {
            return Err(Fault::Chain);
        }
        (file.agreed, file.last) = (Some(conn), Some(commitment.closing));
        file.pending.push_back((commitment, is_fresh || follows == Some(true)));
        Ok(())
    }

    /// An update of `learner` came, whose last merged one of each fragment was `merged`, `[P]`; whether its span is to
    /// be shown.
    ///
    /// # Errors
    /// [`Fault::Uncommitted`]: it has agreed and did not commit to this one.
    pub fn update(
        &mut self,
        now: Millis,
        (conn, learner): (ConnId, LearnerId),
        claim: Claim,
        merged: &[Option<Serial>],
    ) -> Result<bool, Fault> {
        let cases = self.files.values().filter(|file| file.case.is_some()).count();
        let Some(file) = self.files.get_mut(&learner).filter(|file| file.agreed == Some(conn)) else {
            return Ok(false);
        };
        let at = file.pending.iter().position(|(commitment, _)| commitment.serial == claim.serial);
        let (commitment, is_anchored) =
            file.pending.remove(at.ok_or(Fault::Uncommitted)?).expect("it is there");
        let drawn = Rng::new(rng::key(&[self.seed, learner.0.into(), claim.serial.0])).unit() < self.share;
        let is_short = commitment.steps <= STEPS_MAX;
        if !(drawn && is_anchored && is_short) || file.case.is_some() || cases >= CASES_MAX {
            return Ok(false);
        }
        let known = (0..).map(FragmentId).zip(merged).filter_map(|(p, &serial)| Some((p, serial?)));
        let facts = Facts {
            grants: file.grants.clone(),
            clocks: self.shelf.clocks.clone(),
            hats: self.shelf.hats.clone(),
            merged: file.merged.iter().copied().chain(known).collect::<BTreeSet<_>>(),
        };
        let until = now.after(ANSWER_MS + self.bytes_max / ANSWER_BYTES_PER_MS);
        let (evidence, total) = (Vec::new(), None);
        file.case = Some(Case { commitment, claim, facts: Some(facts), evidence, total, until });
        Ok(true)
    }

    /// A piece of an answer came; what follows.
    ///
    /// # Errors
    /// [`Fault::Malformed`]: it is not the piece that was asked for. `None` beside it: nothing was asked.
    pub fn evidence(
        &mut self,
        learner: LearnerId,
        (serial, piece, total): (Serial, u32, u32),
        body: &[u8],
    ) -> Result<Next, Option<Fault>> {
        let bytes_max = self.bytes_max;
        let case = self.files.get_mut(&learner).and_then(|file| file.case.as_mut());
        let case = case.filter(|case| case.claim.serial == serial && case.facts.is_some()).ok_or(None)?;
        let expected = case.evidence.len() as u64 / u64::from(EVIDENCE_BYTES);
        let known = *case.total.get_or_insert(total);
        let rest = u64::from(known).saturating_sub(case.evidence.len() as u64);
        let is_next = u64::from(piece) == expected && total == known && u64::from(known) <= bytes_max;
        if !is_next || body.len() as u64 != rest.min(EVIDENCE_BYTES.into()) {
            return Err(Some(Fault::Malformed));
        }
        case.evidence.extend_from_slice(body);
        if case.evidence.len() < known as usize {
            return Ok(Next::Ask(serial, piece + 1));
        }
        let facts = case.facts.take().expect("it is not being verified");
        Ok(Next::Verify(Box::new(AuditJob {
            learner,
            commitment: case.commitment,
            claim: case.claim.clone(),
            evidence: std::mem::take(&mut case.evidence),
            facts,
        })))
    }

    /// An audit is over; false if there was none.
    pub fn close(&mut self, judged: &Judged) -> bool {
        let file = self.files.get_mut(&judged.learner);
        let case = file.and_then(|file| file.case.take_if(|case| case.claim.serial == judged.serial));
        case.is_some()
    }

    /// The update that `learner` is asked about, if it is.
    #[must_use]
    pub fn case_of(&self, learner: LearnerId) -> Option<Serial> {
        self.files.get(&learner)?.case.as_ref().map(|case| case.claim.serial)
    }

    /// Audits that were not answered in time.
    #[must_use]
    pub fn expired(&self, now: Millis) -> Vec<Judged> {
        let late = |(&learner, file): (&LearnerId, &File)| {
            let case = file.case.as_ref().filter(|case| case.facts.is_some() && case.until <= now)?;
            let verdict = Verdict::Failed(Fault::Unanswered);
            Some(Judged { learner, serial: case.claim.serial, verdict })
        };
        self.files.iter().filter_map(late).collect()
    }

    /// When [`Self::expired`] has something to say.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        let asked = |case: &Case| case.facts.is_some().then_some(case.until);
        self.files.values().filter_map(|file| file.case.as_ref().and_then(asked)).min()
    }
}
