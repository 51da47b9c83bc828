//! Handlers of rounds: launch, collection, merge, and the fates of updates.

use super::{Event, Output, Syncer};
use crate::diloco::speed::SPEED_SLACK;
use crate::diloco::trust::Trust;
use crate::diloco::{
    Account, AdmittedAnswer, CatchUp, Decision, Entry, Launch, Merge, MergeEntry, MergeFailure, MergeOutcome,
    OuterSpec, Paced, Rounds, SenderInfo, Traffic, USUAL_RATIO, UpdateOutcome, Verified,
};
use crate::wire::{
    Bye, CloseCode, ConnId, Fate, FragmentId, LateReason, LearnerId, Merged, Message, Millis, Refusal,
    Version,
};

impl Syncer {
    /// Launches the due rounds. At the end of the run, launches the last round of each fragment once it is idle.
    pub(super) fn launch_due(&mut self, now: Millis) {
        if self.is_led() {
            return;
        }
        if self.schedule.is_ending() {
            let (live, rounds) = (self.roster.live(), &self.rounds);
            let is_answered = |fragment: &FragmentId| rounds[usize::from(fragment.0)].has_early();
            for launch in self.schedule.last(now, |&fragment| is_busy(rounds, fragment), is_answered, live) {
                self.launch(now, launch);
            }
        }
        while self.launch_at().is_some_and(|at| at <= now) {
            let roster = &self.roster;
            let launch = self.schedule.next(now, roster.live(), |learner| roster.answers(now, learner));
            self.launch(now, launch);
        }
    }

    /// Returns the time of the next launch; `None` if a launch must first wait for an input.
    pub(super) fn launch_at(&self) -> Option<Millis> {
        if self.is_led() {
            return None;
        }
        self.schedule.launch_at(&Traffic {
            in_flight: self.rounds.iter().filter(|rounds| !rounds.is_idle()).count(),
            is_next_busy: is_busy(&self.rounds, self.schedule.next_fragment()),
            live: self.roster.live().len(),
            is_measured: self.roster.is_measured(),
            is_answered: self.rounds.iter().any(Rounds::has_early),
        })
    }

    /// Ends the rounds that are due.
    pub(super) fn close_rounds(&mut self, now: Millis) {
        let outer = self.outer();
        let (roster, established) = (&self.roster, self.trust.established());
        for (fragment, rounds) in self.fragments.ids().zip(&mut self.rounds) {
            if let Some(quorum) = rounds.reach_quorum(now) {
                self.schedule.note_quorum(quorum.after_ms);
                let (round, updates, after_ms) = (quorum.round, quorum.updates, quorum.after_ms);
                self.out.push_back(Output::Event(Event::Quorum { round, fragment, updates, after_ms }));
            }
            let Some(verdict) = rounds.decide(now, self.schedule.timing()) else { continue };
            if verdict.is_new {
                let (round, decision) = (verdict.round, verdict.decision);
                self.out.push_back(Output::Event(Event::Decided { round, fragment, decision }));
            }
            match verdict.decision {
                Decision::Merge { .. } => {
                    let is_established_there =
                        established.iter().any(|&learner| roster.is_awaited(now, learner));
                    let job = rounds.merge(now, outer, is_established_there);
                    self.out.extend(job.map(|job| Output::Merge(Box::new(job))));
                }
                Decision::Abandon { .. } => {
                    rounds.abandon();
                    self.schedule.note_abandoned();
                    self.accounting.note(Entry::Abandoned { round: verdict.round, fragment });
                }
                Decision::AwaitQuorum { .. } | Decision::AwaitGrace { .. } => {}
            }
        }
    }

    /// Sends `Collect` to learners with slow answers ahead of the next round, so that their updates arrive by its
    /// launch. Also sets the time of the next such request. This runs after each input, and nothing else changes it.
    pub(super) fn ask_ahead(&mut self, now: Millis) {
        self.ask_ahead_at = None;
        for (fragment, learner, at) in self.requests_ahead() {
            if at <= now {
                let rounds = &mut self.rounds[usize::from(fragment.0)];
                rounds.ask_ahead(now, learner);
                let collect = Message::Collect { run: self.run, fragment, base: rounds.version() };
                self.out.extend(self.roster.conn(learner).map(|conn| Output::Send(conn, collect)));
            } else {
                self.ask_ahead_at = Some(self.ask_ahead_at.map_or(at, |soonest| soonest.min(at)));
            }
        }
    }

    /// Returns the requests to send ahead of their rounds, with their times.
    fn requests_ahead(&self) -> Vec<(FragmentId, LearnerId, Millis)> {
        if self.roster.live().len() > self.config.cohort_max as usize {
            // The invited learners of the next round are not known yet.
            return Vec::new();
        }
        let in_time_ms = self.schedule.in_time_ms();
        let far: Vec<_> = self.roster.far(in_time_ms).collect();
        let mut requests = Vec::new();
        for (fragment, rounds) in self.fragments.ids().zip(&self.rounds) {
            let Some(expected) = self.schedule.expected(fragment).filter(|_| !far.is_empty()) else {
                continue;
            };
            for &(learner, answer_ms) in far.iter().filter(|(learner, _)| rounds.may_ask_ahead(*learner)) {
                let lead_ms = (answer_ms - in_time_ms) as u64;
                requests.push((fragment, learner, Millis(expected.0.saturating_sub(lead_ms))));
            }
        }
        requests
    }

    pub(super) fn on_no_update(&mut self, now: Millis, conn: ConnId, fragment: FragmentId) {
        let Some(learner) = self.roster.learner(conn) else { return };
        let is_led = self.is_led();
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else {
            return self.refuse(conn, CloseCode::Protocol, format!("there is no fragment {fragment}"));
        };
        self.roster.note_response(learner);
        if is_led {
            return self.forward_no_update(now, conn, learner, fragment);
        }
        let Some(answered) = rounds.pass(now, learner) else { return };
        self.answered(fragment, learner, answered);
    }

    pub(super) fn on_update(&mut self, now: Millis, conn: ConnId, learner: LearnerId, update: Verified) {
        let (serial, fragment, tokens) = (update.serial, update.fragment, update.tokens);
        if usize::from(fragment.0) >= self.rounds.len() {
            return self.refuse(conn, CloseCode::Protocol, format!("there is no fragment {fragment}"));
        }
        if !self.roster.is_live(learner) {
            return self.refuse(conn, CloseCode::Protocol, "say Ready before the first update".into());
        }
        self.out.push_back(Output::Send(conn, Message::UpdateReceived { run: self.run, fragment, serial }));
        self.roster.note_response(learner);
        if self.is_led() {
            return self.forward(now, conn, learner, update);
        }
        let sender = self.sender_info(now, learner, fragment);
        self.accounting.note_update(learner);
        let unmerged = |fate| UpdateOutcome { round: None, fragment, learner, serial, tokens, fate };
        if self.accounting.last_merged(learner, fragment) == Some(serial) {
            // The update was merged already and must not be merged twice.
            return self.record_outcome(unmerged(Fate::Refused(Refusal::Unsettled)));
        }
        let rounds = &mut self.rounds[usize::from(fragment.0)];
        if update.base.0 >= self.schedule.turn().next_round {
            // Neither this process of the syncer nor an earlier one has made a version with that number.
            rounds.pass(now, learner);
            return self.record_outcome(unmerged(Fate::Late(LateReason::StaleBase)));
        }
        match rounds.answer(now, learner, update, &sender) {
            Ok(answered) => {
                if let Some(after_ms) = answered.after_ms {
                    self.schedule.note_answer(after_ms);
                    self.roster.note_answer(learner, after_ms);
                }
                self.answered(fragment, learner, answered);
            }
            Err(fate) => {
                self.record_outcome(UpdateOutcome { round: None, fragment, learner, serial, tokens, fate });
                self.limit_refusals(conn, learner, &fate);
            }
        }
    }

    /// Closes the connection of a learner after too many consecutive refusals. `fate` is that of its last update.
    pub(super) fn limit_refusals(&mut self, conn: ConnId, learner: LearnerId, fate: &Fate) {
        let refusals = self.accounting.refusals(learner);
        if refusals >= self.config.refusals_max {
            let reason = format!(
                "{refusals} updates in a row were refused, the last one as {}: begin afresh, with fresh parameters and \
                 the learning rate of the run",
                refusal_of(fate)
            );
            self.refuse(conn, CloseCode::Untrusted, reason);
        }
    }

    fn answered(&mut self, fragment: FragmentId, learner: LearnerId, answered: AdmittedAnswer) {
        let AdmittedAnswer { round, tokens, after_ms } = answered;
        self.event(Event::Answered { round, fragment, learner, tokens, after_ms: after_ms.unwrap_or(0) });
    }

    /// Handles the version that the learner at `conn` reports to hold, and sends it the next changes.
    pub(super) fn on_holds(&mut self, now: Millis, conn: ConnId, fragment: FragmentId, version: Version) {
        if usize::from(fragment.0) >= self.rounds.len() {
            return self.refuse(conn, CloseCode::Protocol, format!("there is no fragment {fragment}"));
        }
        let follow = self.downlink.holds(now, conn, fragment, version, self.roster.read_interval_ms(conn));
        self.follow(conn, follow);
    }

    /// Sends the messages of a [`CatchUp`] to `conn`.
    pub(super) fn follow(&mut self, conn: ConnId, CatchUp { changes, behind }: CatchUp) {
        let run = self.run;
        let behind = behind.into_iter().map(|(fragment, version)| Message::Resync { run, fragment, version });
        let messages = changes.into_iter().map(Message::Merged).chain(behind);
        self.out.extend(messages.map(|message| Output::Send(conn, message)));
    }

    pub(super) fn on_merged(&mut self, now: Millis, merged: Result<MergeOutcome, Box<MergeFailure>>) {
        let fragment = match &merged {
            Ok(outcome) => outcome.fragment,
            Err(failure) => failure.fragment,
        };
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else { return };
        if rounds.is_rolling_back() {
            return self.on_rolled_back(now, fragment, merged);
        }
        match merged {
            Ok(outcome) => {
                if let Some(mut merge) = rounds.merged(now, outcome) {
                    let body = std::mem::take(&mut merge.body);
                    self.announce(now, fragment, merge, Some(body));
                }
            }
            Err(failure) => {
                let (round, error) = (failure.round, failure.error.to_string());
                let Some(outcomes) = rounds.failed(*failure) else { return };
                self.schedule.note_abandoned();
                self.accounting.note(Entry::Abandoned { round, fragment });
                outcomes.into_iter().for_each(|outcome| self.record_outcome(outcome));
                self.event(Event::MergeFailed { round, fragment, error });
            }
        }
    }

    /// Sends pending requests to a reconnected learner again, since they may have been lost with its old connection.
    pub(super) fn ask_again(&mut self, now: Millis, conn: ConnId, learner: LearnerId) {
        for (fragment, rounds) in self.fragments.ids().zip(&mut self.rounds) {
            if rounds.ask_again(now, learner) {
                let collect = Message::Collect { run: self.run, fragment, base: rounds.version() };
                self.out.push_back(Output::Send(conn, collect));
            }
        }
    }

    /// Ends the run and closes all connections once the last rounds are over.
    pub(super) fn end_run(&mut self) {
        if !self.schedule.end(self.rounds.iter().all(Rounds::is_idle)) {
            return;
        }
        let late: Vec<_> = self.rounds.iter_mut().flat_map(Rounds::end).collect();
        late.into_iter().for_each(|outcome| self.record_outcome(outcome));
        self.ask_ahead_at = None;
        self.accounting.note(Entry::Finished);
        let bye = Bye::new(CloseCode::Done, "the run is complete: thank you");
        for conn in self.roster.conns().collect::<Vec<_>>() {
            self.close(conn, bye.clone());
        }
        self.out.push_back(Output::Finished);
    }

    fn launch(&mut self, now: Millis, launch: Launch) {
        let (round, fragment) = (launch.round, launch.fragment);
        let rounds = &mut self.rounds[usize::from(fragment.0)];
        let collect = Message::Collect { run: self.run, fragment, base: rounds.version() };
        let invited = launch.invited.len() as u32;
        let asked = rounds.launch(now, launch);
        asked.iter().for_each(|&learner| self.roster.note_asked(now, learner));
        let conns: Vec<_> = asked.into_iter().filter_map(|learner| self.roster.conn(learner)).collect();
        if !conns.is_empty() {
            self.out.push_back(Output::Broadcast(conns, collect));
        }
        let step_ms = self.schedule.timing().step_ms;
        self.event(Event::Launched { round, fragment, invited, step_ms });
    }

    /// Records a merge, sends each sender its receipt, and publishes the new version. Without a `body`, the version is
    /// not published, because learners cannot follow.
    pub(super) fn announce(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        merge: Merge,
        body: Option<Vec<u8>>,
    ) {
        let Merge { entry, outcomes, collect_ms, sync_ms, paces, .. } = merge;
        let MergeEntry { round, base, version, checksum, digest, norm, .. } = entry;
        self.schedule.note_merged(sync_ms);
        self.accounting.note_merge(entry);
        // Claimed tokens give a learner no more influence on the median step time than on the schedule.
        let usual = self.ledger().usual_tokens(fragment);
        let most = if usual > 0 { usual.saturating_mul(USUAL_RATIO) } else { u64::MAX };
        for Paced { learner, tokens, step_ms } in paces {
            self.roster.note_merged(learner, tokens.min(most), step_ms);
        }
        self.measure();
        let (updates, tokens) = (outcomes.len() as u32, outcomes.iter().map(|outcome| outcome.tokens).sum());
        outcomes.into_iter().for_each(|outcome| self.record_outcome(outcome));
        if let Some(body) = body {
            let (run, clock_tokens) = (self.run, self.ledger().schedule_tokens());
            self.publish(now, Merged { run, fragment, base, version, clock_tokens, body, checksum, digest });
        }
        self.event(Event::Merged { round, fragment, version, updates, tokens, norm, collect_ms, sync_ms });
    }

    /// Sends the change to a new version to the learners that can apply it, and `Resync` to those that cannot.
    pub(super) fn publish(&mut self, now: Millis, merged: Merged) {
        let (run, fragment, version) = (self.run, merged.fragment, merged.version);
        let audience = self.downlink.publish(now, &merged, |conn| self.roster.read_interval_ms(conn));
        if !audience.change.is_empty() {
            self.out.push_back(Output::Broadcast(audience.change, Message::Merged(merged)));
        }
        if !audience.behind.is_empty() {
            let behind = Message::Resync { run, fragment, version };
            self.out.push_back(Output::Broadcast(audience.behind, behind));
        }
    }

    /// Records the fate of an update and sends its receipt.
    pub(super) fn record_outcome(&mut self, outcome: UpdateOutcome) {
        let UpdateOutcome { round, fragment, learner, serial, tokens, fate } = outcome;
        self.accounting.record_outcome(&outcome);
        if matches!(fate, Fate::Merged { .. }) {
            self.trust.merged(self.accounting.ledger(), learner);
        }
        if let Some(conn) = self.roster.conn(learner) {
            let receipt = Message::Receipt { run: self.run, fragment, serial, fate };
            self.out.push_back(Output::Send(conn, receipt));
        }
        self.event(Event::Settled { round, fragment, learner, serial, tokens, fate });
    }

    /// Returns the outer step with the momentum at this point of its warm-up.
    fn outer(&self) -> OuterSpec {
        let warmup_tokens = self.config.momentum_warmup_ratio * self.spec.inner.total_tokens as f64;
        match warmup_tokens > 0.0 {
            true => {
                self.config.outer.with_momentum_share(self.ledger().schedule_tokens() as f64 / warmup_tokens)
            }
            false => self.config.outer,
        }
    }
}

/// Returns a description of a refused update, for the sentence in `limit_refusals`.
fn refusal_of(fate: &Fate) -> &'static str {
    match fate {
        Fate::Refused(Refusal::Norm) => "longer than its steps can have made it",
        Fate::Refused(Refusal::NotFinite) => "not finite",
        Fate::Refused(Refusal::Shape) => "of another shape than its fragment",
        Fate::Refused(Refusal::Checksum) => "not what its checksum says",
        Fate::Refused(Refusal::Empty) => "without steps or tokens",
        Fate::Refused(Refusal::Unleased) => "of more tokens than were leased",
        Fate::Refused(Refusal::NotInvited | Refusal::Unsettled) | Fate::Late(_) | Fate::Merged { .. } => {
            "not asked for"
        }
    }
}

fn is_busy(rounds: &[Rounds], fragment: FragmentId) -> bool {
    rounds.get(usize::from(fragment.0)).is_some_and(|rounds| !rounds.is_idle())
}

impl Syncer {
    /// Returns the facts about `learner` that admission of its updates on `fragment` needs.
    pub(super) fn sender_info(&self, now: Millis, learner: LearnerId, fragment: FragmentId) -> SenderInfo {
        let (ledger, step_tokens) = (self.ledger(), self.step_tokens(learner));
        let at = usize::from(fragment.0);
        let is_stranger = |account: &Account| account.tokens_merged.get(at) == Some(&0);
        let is_stranger = ledger.account(learner).is_some_and(is_stranger);
        let trust = self.trust.sender(ledger, learner);
        SenderInfo {
            steps_max: Trust::steps_max(ledger, trust, fragment, step_tokens),
            stranger_ms: is_stranger.then(|| self.roster.connected_ms(now, learner)),
            step_tokens,
            step_ms_least: self.step_ms_credited(now, learner),
            unmerged_tokens: self.accounting.unmerged_tokens(learner, fragment),
            trust,
            is_in_norm_stats: trust.level.is_trusted() || !self.is_established_there(now),
            clock_tokens: ledger.schedule_tokens(),
        }
    }

    /// Returns the lower bound on the time of a step of `learner`, in milliseconds.
    pub(super) fn step_ms_credited(&self, now: Millis, learner: LearnerId) -> f64 {
        let claimed = self.roster.step_ms_credited(now, learner);
        match self.trust.pace_max(self.ledger(), learner) {
            Some(pace_max) => claimed.max(SPEED_SLACK * self.step_tokens(learner) as f64 / pace_max),
            None => claimed,
        }
    }

    /// Returns true if any established learner is connected and expected to answer.
    fn is_established_there(&self, now: Millis) -> bool {
        self.trust.established().iter().any(|&learner| self.roster.is_awaited(now, learner))
    }

    /// Returns the number of tokens in one step of `learner`, above 0.
    pub(super) fn step_tokens(&self, learner: LearnerId) -> u64 {
        let batch = self.roster.session(learner).map_or(0, |session| session.batch);
        u64::from(batch.max(1)) * u64::from(self.spec.model.context.max(1))
    }
}
