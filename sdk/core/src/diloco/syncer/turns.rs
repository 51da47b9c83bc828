//! Routing rounds: launch, collect, merge, settle.

use super::{Event, Output, Syncer};
use crate::diloco::{
    Decision, Launch, Merge, MergeFailure, MergeOutcome, OuterSpec, Rounds, Settled, Standing, Traffic,
    Verified,
};
use crate::wire::{Bye, CloseCode, ConnId, FragmentId, LearnerId, Merged, Message, Millis, Round};

impl Syncer {
    /// Launches what is due, or once the run ends the last round of each fragment that is free.
    pub(super) fn launch_due(&mut self, now: Millis) {
        if self.schedule.is_ending() {
            let live = self.roster.live().collect();
            let rounds = &self.rounds;
            for launch in self.schedule.last(now, |&fragment| is_busy(rounds, fragment), &live) {
                self.launch(now, launch);
            }
        }
        while self.launch_at().is_some_and(|at| at <= now) {
            let live = self.roster.live().collect();
            let launch = self.schedule.next(now, &live);
            self.launch(now, launch);
        }
    }

    /// When the next round may be launched; `None` if only an arrival can bring that about.
    pub(super) fn launch_at(&self) -> Option<Millis> {
        self.schedule.launch_at(&Traffic {
            in_flight: self.rounds.iter().filter(|rounds| !rounds.is_idle()).count(),
            is_next_busy: is_busy(&self.rounds, self.schedule.next_fragment()),
            live: self.roster.live().count(),
            is_measured: self.roster.is_measured(),
        })
    }

    /// Ends the rounds whose time has come.
    pub(super) fn close_rounds(&mut self, now: Millis) {
        let outer = self.outer();
        for (fragment, rounds) in self.fragments.ids().zip(&mut self.rounds) {
            let alive = |learner| self.roster.is_live(learner);
            if let Some(quorum) = rounds.reach_quorum(now, &alive) {
                self.schedule.note_quorum(quorum.after_ms);
                let (round, updates, after_ms) = (quorum.round, quorum.updates, quorum.after_ms);
                self.out.push_back(Output::Event(Event::Quorum { round, fragment, updates, after_ms }));
            }
            let Some(verdict) = rounds.decide(now, self.schedule.timing(), &alive) else { continue };
            if verdict.is_new {
                let (round, decision) = (verdict.round, verdict.decision);
                self.out.push_back(Output::Event(Event::Decided { round, fragment, decision }));
            }
            match verdict.decision {
                Decision::Merge { .. } => {
                    let job = rounds.merge(now, outer);
                    self.out.extend(job.map(|job| Output::Merge(Box::new(job))));
                }
                Decision::Abandon { .. } => {
                    rounds.abandon();
                    self.schedule.note_abandoned();
                }
                Decision::AwaitQuorum { .. } | Decision::AwaitGrace { .. } => {}
            }
        }
    }

    pub(super) fn on_pass(&mut self, now: Millis, conn: ConnId, round: Round, fragment: FragmentId) {
        let Some(learner) = self.roster.learner(conn) else { return };
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else {
            return self.refuse(conn, CloseCode::Protocol, format!("there is no fragment {fragment}"));
        };
        let Some(answered) = rounds.pass(now, learner, round) else { return };
        self.event(Event::Answered { round, fragment, learner, tokens: 0, after_ms: answered.after_ms });
    }

    pub(super) fn on_update(&mut self, now: Millis, conn: ConnId, learner: LearnerId, update: Verified) {
        let (round, fragment, tokens) = (update.round, update.fragment, update.tokens);
        if usize::from(fragment.0) >= self.rounds.len() {
            return self.refuse(conn, CloseCode::Protocol, format!("there is no fragment {fragment}"));
        }
        let (standing, issued) = (self.standing(learner, fragment), self.schedule.is_issued(round));
        let rounds = &mut self.rounds[usize::from(fragment.0)];
        self.books.note_update(learner);
        self.schedule.note_answer(now, round);
        match rounds.answer(now, learner, update, &standing, issued) {
            Ok(answered) => {
                let (tokens, after_ms) = (answered.tokens, answered.after_ms);
                self.event(Event::Answered { round, fragment, learner, tokens, after_ms });
            }
            Err(fate) => {
                self.settle(Settled { round, fragment, learner, tokens, fate });
                let refusals = self.books.refusals(learner);
                if refusals >= self.config.refusals_max {
                    let reason = format!(
                        "{refusals} updates in a row were refused: start again with fresh parameters"
                    );
                    self.refuse(conn, CloseCode::Untrusted, reason);
                }
            }
        }
    }

    pub(super) fn on_merged(&mut self, now: Millis, merged: Result<MergeOutcome, Box<MergeFailure>>) {
        let fragment = match &merged {
            Ok(outcome) => outcome.fragment,
            Err(failure) => failure.fragment,
        };
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else { return };
        match merged {
            Ok(outcome) => {
                if let Some(merge) = rounds.merged(now, outcome) {
                    self.announce(fragment, merge);
                }
            }
            Err(failure) => {
                let (round, error) = (failure.round, failure.error.to_string());
                let Some(settled) = rounds.failed(*failure) else { return };
                self.schedule.note_abandoned();
                settled.into_iter().for_each(|settled| self.settle(settled));
                self.event(Event::MergeFailed { round, fragment, error });
            }
        }
    }

    /// Asks one that came back for what its rounds still wait for: the question may have been lost with its
    /// connection.
    pub(super) fn ask_again(&mut self, conn: ConnId, learner: LearnerId) {
        for (fragment, rounds) in self.fragments.ids().zip(&self.rounds) {
            if let Some(round) = rounds.awaits(learner) {
                let collect = Message::Collect { run: self.run, round, fragment, base: rounds.version() };
                self.out.push_back(Output::Send(conn, collect));
            }
        }
    }

    /// Sends everyone home once the last round is merged.
    pub(super) fn say_goodbye(&mut self) {
        if !self.schedule.is_over(self.rounds.iter().all(Rounds::is_idle)) {
            return;
        }
        let bye = Bye::new(CloseCode::Done, "the run is complete: thank you");
        for conn in self.roster.conns().collect::<Vec<_>>() {
            self.close(conn, bye.clone());
        }
        self.out.push_back(Output::Finished);
    }

    fn launch(&mut self, now: Millis, launch: Launch) {
        let (round, fragment) = (launch.round, launch.fragment);
        let rounds = &mut self.rounds[usize::from(fragment.0)];
        let collect = Message::Collect { run: self.run, round, fragment, base: rounds.version() };
        let conns = launch.invited.iter().filter_map(|learner| self.roster.conn(*learner)).collect();
        let invited = launch.invited.len() as u32;
        rounds.launch(now, launch);
        self.out.push_back(Output::Broadcast(conns, collect));
        let step_ms = self.schedule.timing().step_ms;
        self.event(Event::Launched { round, fragment, invited, step_ms });
    }

    /// Tells everyone of a new version, and each of its senders what became of its update.
    fn announce(&mut self, fragment: FragmentId, merge: Merge) {
        let Merge { round, base, version, settled, body, checksum, norm, collect_ms, sync_ms } = merge;
        self.schedule.note_merged(sync_ms);
        let (updates, tokens) = (settled.len() as u32, settled.iter().map(|settled| settled.tokens).sum());
        settled.into_iter().for_each(|settled| self.settle(settled));
        let clock_tokens = self.ledger().clock_tokens();
        let run = self.run;
        let merged = Merged { run, round, fragment, base, version, clock_tokens, body, checksum };
        self.out.push_back(Output::Broadcast(self.roster.conns().collect(), Message::Merged(merged)));
        self.event(Event::Merged {
            round,
            fragment,
            version,
            updates,
            tokens,
            norm,
            clock_tokens,
            collect_ms,
            sync_ms,
        });
    }

    /// Books the fate of an update and tells its learner.
    fn settle(&mut self, settled: Settled) {
        let Settled { round, fragment, learner, tokens, fate } = settled;
        self.books.settle(&settled);
        if let Some(conn) = self.roster.conn(learner) {
            let receipt = Message::Receipt { run: self.run, round, fragment, fate };
            self.out.push_back(Output::Send(conn, receipt));
        }
        self.event(Event::Settled { round, fragment, learner, tokens, fate });
    }

    fn standing(&self, learner: LearnerId, fragment: FragmentId) -> Standing {
        Standing {
            step_ms_least: self.roster.step_ms_least(learner),
            unmerged_tokens: self.books.unmerged_tokens(learner, fragment),
            clock_tokens: self.ledger().clock_tokens(),
        }
    }

    /// The outer step at this point of the run.
    fn outer(&self) -> OuterSpec {
        let warmup_tokens = self.config.momentum_warmup_ratio * self.spec.inner.total_tokens as f64;
        match warmup_tokens > 0.0 {
            true => {
                self.config.outer.with_momentum_share(self.ledger().clock_tokens() as f64 / warmup_tokens)
            }
            false => self.config.outer,
        }
    }
}

fn is_busy(rounds: &[Rounds], fragment: FragmentId) -> bool {
    rounds.get(usize::from(fragment.0)).is_some_and(|rounds| !rounds.is_idle())
}
