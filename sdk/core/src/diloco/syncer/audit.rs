//! Routing audits: whom to ask, what is shown, and what follows from the verdict.

use super::{DROP_MS_MAX, Event, Output, Syncer};
use crate::audit::{AuditJob, Claim, Docket, Fault, Judged, Next, Verdict};
use crate::diloco::Verified;
use crate::wire::{Bye, CloseCode, Commitment, ConnId, FragmentId, LearnerId, Message, Millis, Serial};

impl Syncer {
    /// From now on this share of the updates of learners who agreed is audited, 0 to 1, drawn by `seed`, which is not
    /// to be known to any of them: nobody knows before it has committed whether it will be asked.
    pub fn audit(&mut self, share: f64, seed: u64) {
        let params = self.fragments.ids().map(|p| self.fragments.len(p) as u64).sum();
        self.docket = Docket::new(share, seed, params);
        for fragment in self.fragments.ids() {
            self.shelve(fragment);
        }
        let leased: Vec<_> = self.books.leases().grants().collect();
        leased.into_iter().for_each(|(learner, grant)| self.docket.lease(learner, grant));
    }

    /// Whether `learner` agreed to audits on the connection that it has.
    #[must_use]
    pub fn has_agreed(&self, learner: LearnerId) -> bool {
        self.docket.has_agreed(learner)
    }

    /// Whether `learner` failed an audit, and was not forgiven.
    pub(super) fn is_convicted(&self, learner: LearnerId) -> bool {
        self.ledger().account(learner).is_some_and(|account| account.audits_failed > 0)
    }

    /// Keeps what is published of `fragment`.
    pub(super) fn shelve(&mut self, fragment: FragmentId) {
        let clock_tokens = self.ledger().schedule_tokens();
        if let Some((version, hat)) = self.hat(fragment).filter(|_| self.docket.is_on()) {
            self.docket.publish(fragment, version, hat, clock_tokens);
        }
    }

    pub(super) fn on_commit(&mut self, conn: ConnId, learner: LearnerId, commitment: Commitment) {
        if let Err(fault) = self.docket.commit(conn, learner, commitment) {
            self.judge_audit(Judged { learner, serial: commitment.serial, verdict: fault.into() });
        }
    }

    /// Draws whether the span of `update` is to be shown; false if its sender was sent away.
    pub(super) fn draw_audit(
        &mut self,
        now: Millis,
        conn: ConnId,
        learner: LearnerId,
        update: &Verified,
    ) -> bool {
        let Some(body) = update.shared().filter(|_| self.docket.has_agreed(learner)) else { return true };
        let &Verified { serial, fragment, steps, tokens, .. } = update;
        let claim = Claim { serial, fragment, steps, tokens, body };
        let merged = self.books.ledger().account(learner).map_or(&[][..], |account| &account.merged);
        match self.docket.update(now, (conn, learner), claim, merged) {
            Ok(is_drawn) => {
                if is_drawn {
                    self.ask_for(conn, serial, 0);
                }
                true
            }
            Err(fault) => {
                self.judge_audit(Judged { learner, serial, verdict: fault.into() });
                false
            }
        }
    }

    pub(super) fn on_evidence(
        &mut self,
        conn: ConnId,
        learner: LearnerId,
        (serial, piece, total): (Serial, u32, u32),
        body: &[u8],
    ) {
        match self.docket.evidence(learner, (serial, piece, total), body) {
            Ok(Next::Ask(serial, piece)) => self.ask_for(conn, serial, piece),
            Ok(Next::Verify(job)) => self.out.push_back(Output::Audit(job)),
            Err(Some(fault)) => self.on_audited(Judged { learner, serial, verdict: fault.into() }),
            Err(None) => {
                let reason = format!("nobody asked what led to update {serial}");
                self.refuse(conn, CloseCode::Protocol, reason);
            }
        }
    }

    pub(super) fn expire_audits(&mut self, now: Millis) {
        for judged in self.docket.expired(now) {
            self.on_audited(judged);
        }
    }

    /// Takes in how an audit ended.
    pub(super) fn on_audited(&mut self, judged: Judged) {
        if self.docket.close(&judged) {
            self.judge_audit(judged);
        }
    }

    /// Nobody does `job`.
    pub(super) fn give_up(&mut self, job: &AuditJob) {
        let judged =
            Judged { learner: job.learner, serial: job.commitment.serial, verdict: Verdict::Undecided };
        if self.docket.close(&judged) {
            self.tell_audit(judged);
        }
    }

    pub(super) fn tell_audit(&mut self, Judged { learner, serial, verdict }: Judged) {
        self.event(Event::Audited { learner, serial, verdict });
    }

    fn ask_for(&mut self, conn: ConnId, serial: Serial, piece: u32) {
        self.out.push_back(Output::Send(conn, Message::Audit { run: self.run, serial, piece }));
    }

    /// Writes a verdict down. Who failed is out until the owner of the run lets it back, and what it sent and nobody
    /// merged yet is not merged.
    fn judge_audit(&mut self, judged: Judged) {
        let Judged { learner, verdict, .. } = judged;
        if !self.knows(learner) || self.schedule.is_over() {
            return;
        }
        match verdict {
            Verdict::Passed => self.books.audited(learner, None),
            Verdict::Failed(fault) => {
                let waiting: Vec<_> =
                    self.rounds.iter_mut().filter_map(|rounds| rounds.discard(learner)).collect();
                waiting.into_iter().for_each(|settled| self.settle(settled));
                self.books.audited(learner, Some(fault));
            }
            Verdict::Undecided | Verdict::Left => {}
        }
        self.tell_audit(judged);
        if let (Verdict::Failed(fault), Some(conn)) = (verdict, self.roster.conn(learner)) {
            self.turn_out_for(conn, Some(fault));
            self.measure();
        }
    }

    /// Sends one away that failed an audit before.
    pub(super) fn turn_out_convicted(&mut self, conn: ConnId) {
        self.turn_out_for(conn, None);
    }

    fn turn_out_for(&mut self, conn: ConnId, fault: Option<Fault>) {
        let found = fault.map_or(String::new(), |fault| format!(" ({fault})"));
        let reason = format!("this learner failed an audit{found}: ask the owner of the run to let it back");
        self.close(conn, Bye { wait_ms: DROP_MS_MAX, ..Bye::new(CloseCode::Dropped, reason) });
    }
}
