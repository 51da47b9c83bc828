//! Remote rounds: this syncer serves learners as a gateway, and other processes, the leaders, decide on their updates.
//!
//! The gateway admits learners, leases text, sends `Collect` when a round begins, and forwards the answers. It reads
//! the outcomes from the tape of each fragment. All gateways read the same tapes and therefore have the same ledger, so
//! a learner may change its gateway.
//!
//! An update belongs to the round for which it was requested, or to a later one if its sender is known to be connected
//! then: see [`LateUpdates`]. A returning learner is admitted once every round that was under way is over. None of its
//! updates is then unsettled anywhere: see [`super::LeaderRequest::Introduce`]. This requires that a learner answers
//! each request once, and sends an update without a request only before it leaves, as learners do.
//!
//! An update that is too late for its round waits for a later one. This is common on links on which the transfer of an
//! update takes longer than a round.
//!
//! A learner that moves to another gateway is admitted there once each fragment's tape has one more record than at its
//! arrival. From then on, nothing that it sent to the old gateway may be merged. An update may therefore join a later
//! round only if its sender was connected here after the previous round was over. Data from the socket does not prove
//! this, because it may have been sent before. The gateway therefore sends a number that the peer echoes, as in a
//! WebSocket ping. If round n was the newest finished round when the number was sent, the echo permits the update to
//! join rounds up to n + 1.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    Answer, Event, LeaderRequest, Output, Paces, RemoteMerge, Rounds, Syncer, SyncerConfig, SyncerError, plan,
};
use crate::diloco::accounting::LEASE_WINDOWS_MAX;
use crate::diloco::{FragmentState, Layout, Merge, Paced, Part, Timing, UpdateOutcome, Verified};
use crate::wire::{
    ConnId, Fate, FragmentId, LateReason, LearnerId, LeaseGrant, LeaseId, Message, Millis, Refusal, Round,
    RunId, RunSpec, Serial, Version,
};

/// Number of low bits of an epoch number that hold the epoch; the other bits identify the process.
const EPOCH_BITS: u32 = 16;
/// Size of each process's range of lease numbers.
const LEASES_OF_A_PROCESS: u64 = 1 << 32;

/// State of remote rounds.
#[derive(Debug)]
pub(super) struct RemoteRounds {
    /// High bits of this process's epoch numbers, which distinguish them from those of other processes.
    salt: u16,
    /// Requests (`Collect`) without an answer.
    asked: BTreeMap<(FragmentId, LearnerId), PendingRequest>,
    /// Newest known round of each fragment, and the time at which it became known.
    newest: BTreeMap<FragmentId, (Round, Millis)>,
    /// Newest round of each fragment that is known to be over.
    over: BTreeMap<FragmentId, Round>,
    /// Late updates that wait for another round.
    late: LateUpdates,
    /// Paces at the last report to the leaders.
    reported: Paces,
    /// Whether [`LeaderRequest::Enough`] was sent.
    is_enough: bool,
}

/// Request to a learner that it has not answered.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    /// Time of the request.
    since: Millis,
    /// Round for which the request was sent.
    round: Round,
    /// Newest round that needs the answer, at least `round`.
    newest: Round,
}

impl Syncer {
    /// Creates the syncer of a gateway for a new run. `hats`, `[P]` of `[fragment_len]`, is Θ̂ of each fragment, as
    /// computed by [`crate::diloco::binary16::nearest`]. Call [`Self::into_gateway`] next.
    ///
    /// # Errors
    /// The errors of [`Self::new`] about `spec`; [`SyncerError::FragmentCount`] or [`SyncerError::Fragment`] if `hats`
    /// do not fit the layout.
    pub fn before_others(
        run: RunId,
        spec: RunSpec,
        config: SyncerConfig,
        layout: &Layout,
        hats: Vec<Arc<Vec<f32>>>,
    ) -> Result<Self, SyncerError> {
        let fragments = plan(&spec, layout)?;
        let (expected, actual) = (usize::from(fragments.count()), hats.len());
        if expected != actual {
            return Err(SyncerError::FragmentCount { expected, actual });
        }
        for (fragment, hat) in fragments.ids().zip(&hats) {
            let (expected, actual) = (fragments.len(fragment), hat.len());
            if expected != actual {
                return Err(SyncerError::Fragment { fragment, expected, actual });
            }
        }
        let states = hats.into_iter().map(|hat| FragmentState::of_hat(Version(0), hat)).collect();
        Self::begin(run, spec, config, fragments, states)
    }

    /// Makes this syncer a gateway, whose rounds other processes lead. `process` is a random number that identifies
    /// this process.
    ///
    /// From now on no round is launched or merged here. The syncer keeps only Θ̂ of each fragment, and uses it in place
    /// of Θ.
    #[must_use]
    pub fn into_gateway(mut self, process: u64) -> Self {
        // Another process may have granted leases to the same learner.
        self.accounting.number_leases_from(LeaseId((process & 0x7fff_ffff) * LEASES_OF_A_PROCESS));
        let salt = (process >> 48) as u16;
        let (asked, newest, over) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (late, reported, is_enough) = (LateUpdates::default(), Paces::default(), false);
        self.rounds.iter_mut().for_each(Rounds::keep_hat);
        self.led = Some(RemoteRounds { salt, asked, newest, over, late, reported, is_enough });
        self
    }

    /// Returns true if other processes lead the rounds.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.led.is_some()
    }

    /// Sends `request` to the leaders if the rounds are remote.
    pub(super) fn request_leader(&mut self, request: impl FnOnce() -> LeaderRequest) {
        if self.is_led() {
            self.out.push_back(Output::LeaderRequest(request()));
        }
    }

    /// Reports the paces of learners to remote leaders if either changed by more than a tenth since the last report.
    pub(super) fn report_pace(&mut self) {
        let &Timing { step_ms, answer_ms, .. } = self.schedule.timing();
        let paces = Paces { step_ms, answer_ms };
        let is_due =
            |last: Paces| has_changed(last.step_ms, step_ms) || has_changed(last.answer_ms, answer_ms);
        if let Some(led) = self.led.as_mut().filter(|led| is_due(led.reported)) {
            led.reported = paces;
            self.out.push_back(Output::LeaderRequest(LeaderRequest::Pace(paces)));
        }
    }

    /// Handles a run that has reached its number of tokens: finishes it, or informs remote leaders once.
    pub(super) fn on_enough(&mut self) {
        let Some(led) = &mut self.led else { return self.finish() };
        if !std::mem::replace(&mut led.is_enough, true) {
            self.request_leader(|| LeaderRequest::Enough);
        }
    }

    /// Handles the end of the last round of `fragment`.
    pub(super) fn on_closed(&mut self, fragment: FragmentId) {
        if self.is_led() {
            self.finish();
            self.schedule.close(fragment);
        }
    }

    /// Adds the process's number to the epoch of a lease if the rounds are remote, so that each gateway traverses the
    /// text in a different order.
    pub(super) fn with_process_epoch(&self, grant: LeaseGrant) -> LeaseGrant {
        let Some(led) = &self.led else { return grant };
        let epochs = (1 << EPOCH_BITS) - 1;
        LeaseGrant { epoch: u32::from(led.salt) << EPOCH_BITS | grant.epoch & epochs, ..grant }
    }

    /// Credits `learner` for tokens that other gateways leased and merged. A returning learner with merged updates may
    /// hold further leases of other gateways, and is credited for them as after a restart of the syncer.
    pub(super) fn credit(&mut self, learner: LearnerId, returns: bool) {
        let is_merged = self.ledger().account(learner).is_some_and(|account| !account.is_stranger());
        let windows = match returns && is_merged {
            true => 2 * self.leases().epoch_windows().min(u64::from(LEASE_WINDOWS_MAX)),
            false => 0,
        };
        self.accounting.credit(learner, windows * u64::from(self.spec.model.context));
    }

    /// Handles the leader's request for the progress of `learner` at `conn` in `round`.
    pub(super) fn on_asked(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        learner: LearnerId,
        conn: ConnId,
        round: Round,
    ) {
        let is_there = self.roster.conn(learner) == Some(conn) && self.roster.is_live(learner);
        let Some(led) = self.led.as_mut().filter(|_| is_there) else { return };
        let is_new = led.newest.get(&fragment).is_none_or(|(newest, _)| *newest < round);
        if is_new {
            led.newest.insert(fragment, (round, now));
            // Rounds of a fragment follow one another.
            led.note_over(fragment, Round(round.0.saturating_sub(1)));
        }
        let over = led.over(fragment);
        let next = led.late.ask((fragment, learner), conn, round, over);
        let at = (fragment, learner);
        let asks = matches!(next, Next::Absent) && !led.asked.contains_key(&at);
        if matches!(next, Next::Absent) {
            // The answer to a pending request belongs to the round of that request.
            let request = led.asked.entry(at).or_insert(PendingRequest { since: now, round, newest: round });
            request.newest = request.newest.max(round);
        }
        if is_new {
            // The rate limit of learners grows with the number of rounds.
            self.schedule.take_round();
            let (invited, step_ms) = (self.roster.live().len() as u32, self.schedule.timing().step_ms);
            self.event(Event::Launched { round, fragment, invited, step_ms });
        }
        match next {
            Next::Absent if asks => self.ask(now, fragment, learner, conn),
            Next::Absent | Next::Wait => {}
            Next::Send(number) => self.out.push_back(Output::Probe(conn, number)),
            Next::Found(update) => self.forward_in(now, conn, learner, round, *update),
        }
    }

    /// Handles the echo of `number` on `conn`.
    pub(super) fn on_probed(&mut self, now: Millis, conn: ConnId, number: u64) {
        let permitted = self.led.as_mut().and_then(|led| led.late.echo(conn, number));
        if let Some((learner, round, update)) = permitted {
            self.forward_in(now, conn, learner, round, update);
        }
    }

    fn ask(&mut self, now: Millis, fragment: FragmentId, learner: LearnerId, conn: ConnId) {
        let Some(rounds) = self.rounds.get(usize::from(fragment.0)) else { return };
        self.roster.note_asked(now, learner);
        let collect = Message::Collect { run: self.run, fragment, base: rounds.version() };
        self.out.push_back(Output::Send(conn, collect));
    }

    /// Returns the round to which an answer of `learner` belongs, and ends its pending request.
    ///
    /// # Errors
    /// The newest round, if one is known. The answer is late, or was not requested, as when a learner leaves. It must
    /// not join the newest round directly: it could be merged after its sender returned at another gateway.
    fn answered_in(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        learner: LearnerId,
    ) -> Result<Round, Option<Round>> {
        let led = self.led.as_mut().ok_or(None)?;
        let Some(PendingRequest { since, round, newest }) = led.asked.remove(&(fragment, learner)) else {
            return Err(led.newest.get(&fragment).map(|(newest, _)| *newest));
        };
        let is_over = led.over(fragment) >= round;
        let after_ms = now.since(since);
        self.roster.note_answer(learner, after_ms);
        self.schedule.note_answer(after_ms);
        if round == newest && !is_over { Ok(round) } else { Err(Some(newest)) }
    }

    /// Forwards an update to its leader, or keeps it for a later round.
    pub(super) fn forward(&mut self, now: Millis, conn: ConnId, learner: LearnerId, update: Verified) {
        let fragment = update.fragment;
        let answered = self.answered_in(now, fragment, learner);
        if let Ok(round) = answered {
            return self.forward_in(now, conn, learner, round, update);
        }
        let Some(led) = &mut self.led else { return };
        let over = led.over(fragment);
        let (number, before) = led.late.keep(learner, conn, update, over);
        self.out.push_back(Output::Probe(conn, number));
        if let Some(before) = before {
            self.lose(fragment, learner, before.serial, before.tokens);
        }
        if let Err(Some(newest)) = answered
            && newest > over
        {
            // The newest round is under way.
            self.on_asked(now, fragment, learner, conn, newest);
        }
    }

    /// Forwards an update to its leader for `round`.
    fn forward_in(&mut self, now: Millis, conn: ConnId, learner: LearnerId, round: Round, update: Verified) {
        let (fragment, tokens) = (update.fragment, update.tokens);
        let sender = self.sender_info(now, learner, fragment);
        let since = self.led.as_ref().and_then(|led| led.newest.get(&fragment)).map(|(_, since)| *since);
        let after_ms = now.since(since.unwrap_or(now));
        self.report_pace();
        self.event(Event::Answered { round: Some(round), fragment, learner, tokens, after_ms });
        let answer = Answer::Update(Box::new(update), sender);
        self.request_leader(|| LeaderRequest::Answer(fragment, learner, conn, round, answer));
    }

    /// Forwards the answer of `learner` that it has no update. If its round is over and another is under way, asks the
    /// learner again.
    pub(super) fn forward_no_update(
        &mut self,
        now: Millis,
        conn: ConnId,
        learner: LearnerId,
        fragment: FragmentId,
    ) {
        match self.answered_in(now, fragment, learner) {
            Ok(round) => {
                self.request_leader(|| LeaderRequest::Answer(fragment, learner, conn, round, Answer::Nothing))
            }
            Err(Some(newest)) if self.led.as_ref().is_some_and(|led| newest > led.over(fragment)) => {
                let request = PendingRequest { since: now, round: newest, newest };
                if let Some(led) = &mut self.led {
                    led.asked.insert((fragment, learner), request);
                }
                self.ask(now, fragment, learner, conn);
            }
            // The next round asks the learner again.
            Err(_) => {}
        }
    }

    /// Handles an update of `learner` at `conn` that its leader did not merge.
    pub(super) fn on_unmerged(
        &mut self,
        fragment: FragmentId,
        (learner, conn): (LearnerId, ConnId),
        serial: Serial,
        refusal: Option<Refusal>,
    ) {
        if self.roster.conn(learner) != Some(conn) {
            return;
        }
        match refusal.map(Fate::Refused) {
            None => self.lose(fragment, learner, serial, 0),
            Some(fate) => {
                self.accounting.note_update(learner);
                let outcome = UpdateOutcome { round: None, fragment, learner, serial, tokens: 0, fate };
                self.record_outcome(outcome);
                self.limit_refusals(conn, learner, &fate);
            }
        }
    }

    fn lose(&mut self, fragment: FragmentId, learner: LearnerId, serial: Serial, tokens: u64) {
        let fate = Fate::Late(LateReason::RoundOver);
        self.accounting.note_update(learner);
        self.record_outcome(UpdateOutcome { round: None, fragment, learner, serial, tokens, fate });
    }

    /// Notes that a round was abandoned or lost its leader.
    pub(super) fn on_over(&mut self, fragment: FragmentId, round: Round) {
        if let Some(led) = &mut self.led {
            led.note_over(fragment, round);
        }
    }

    /// Records a merge that another process decided, informs its senders, and publishes the change.
    pub(super) fn on_followed(&mut self, now: Millis, followed: RemoteMerge) {
        let RemoteMerge { merge: entry, led } = followed;
        let (round, fragment) = (entry.round, entry.fragment);
        let Some(ours) = &mut self.led else { return };
        ours.note_over(fragment, round);
        let newest = &ours.newest;
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else { return };
        let launched = newest.get(&fragment).filter(|(newest, _)| *newest == round);
        let collect_ms = launched.map_or(0, |(_, since)| now.since(*since));
        let body = led.map(|(state, body)| {
            rounds.follow(state);
            body
        });
        for part in &entry.parts {
            self.accounting.know(part.learner);
            self.accounting.note_update(part.learner);
        }
        let paced =
            |part: &Part| Paced { learner: part.learner, tokens: part.tokens, step_ms: part.step_ms() };
        let paces = entry.parts.iter().map(paced).collect();
        let outcomes = entry.outcomes().collect();
        let merge = Merge { entry, outcomes, body: Vec::new(), collect_ms, sync_ms: 0, paces };
        self.announce(now, fragment, merge, body);
    }

    /// Drops all pending requests to `learner`, and its late updates.
    pub(super) fn forget_requests(&mut self, learner: LearnerId) {
        if let Some(led) = &mut self.led {
            led.asked.retain(|(_, asked), _| *asked != learner);
            led.late.forget(learner);
        }
    }
}

impl RemoteRounds {
    /// Returns the newest round of `fragment` that is known to be over.
    fn over(&self, fragment: FragmentId) -> Round {
        self.over.get(&fragment).copied().unwrap_or(Round(0))
    }

    fn note_over(&mut self, fragment: FragmentId, round: Round) {
        let over = self.over.entry(fragment).or_insert(round);
        *over = (*over).max(round);
    }
}

/// Returns true if two times differ by more than a tenth of the larger.
fn has_changed(before: f64, now: f64) -> bool {
    (before - now).abs() > 0.1 * before.max(now)
}

/// Late updates that wait for another round, at most one per learner and fragment.
#[derive(Debug, Default)]
struct LateUpdates {
    waiting: BTreeMap<(FragmentId, LearnerId), Waiting>,
    /// Last number sent to a peer. Each is sent once, so that an echo identifies its update.
    numbers: u64,
}

/// Late update.
#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    update: Verified,
    /// Newest round that the update may join; `None` before the first echo.
    fit: Option<Round>,
    /// Last number without an echo, and the newest round that its echo permits.
    sent: Option<(u64, Round)>,
    /// Newest round that requested the update.
    asked: Option<Round>,
}

/// Next action after a leader's request.
#[derive(Debug)]
enum Next {
    /// Ask the learner, which has no waiting update.
    Absent,
    /// Forward this waiting update.
    Found(Box<Verified>),
    /// Send this number to the peer, which echoes it.
    Send(u64),
    /// Wait for the echo of a number.
    Wait,
}

impl LateUpdates {
    /// Keeps `update`, which arrived over `conn` when `over` was the newest finished round. Returns the number to send
    /// to the peer, and the older update of the same learner and fragment that `update` replaces.
    fn keep(
        &mut self,
        learner: LearnerId,
        conn: ConnId,
        update: Verified,
        over: Round,
    ) -> (u64, Option<Verified>) {
        let number = self.number();
        let sent = Some((number, after(over)));
        let at = (update.fragment, learner);
        let before = self.waiting.insert(at, Waiting { conn, update, fit: None, sent, asked: None });
        (number, before.map(|before| before.update))
    }

    /// Handles the leader's request to `learner` at `conn` in `round`. `over` is the newest finished round.
    fn ask(
        &mut self,
        (fragment, learner): (FragmentId, LearnerId),
        conn: ConnId,
        round: Round,
        over: Round,
    ) -> Next {
        let number = self.number();
        let at = (fragment, learner);
        let Some(waiting) = self.waiting.get_mut(&at).filter(|waiting| waiting.conn == conn) else {
            return Next::Absent;
        };
        if waiting.fit >= Some(round) {
            let found = self.waiting.remove(&at);
            return found.map_or(Next::Absent, |found| Next::Found(Box::new(found.update)));
        }
        waiting.asked = waiting.asked.max(Some(round));
        if waiting.sent.is_some_and(|(_, fit)| fit >= round) {
            return Next::Wait;
        }
        waiting.sent = Some((number, after(over)));
        Next::Send(number)
    }

    /// Handles the echo of `number`. Returns a waiting update, with its learner and round, if that round requested it
    /// and the echo permits it.
    fn echo(&mut self, conn: ConnId, number: u64) -> Option<(LearnerId, Round, Verified)> {
        let is_it =
            |waiting: &Waiting| waiting.conn == conn && waiting.sent.is_some_and(|(sent, _)| sent == number);
        let (&at, waiting) = self.waiting.iter_mut().find(|(_, waiting)| is_it(waiting))?;
        waiting.fit = waiting.sent.take().map(|(_, fit)| fit);
        let round = waiting.asked.filter(|round| waiting.fit >= Some(*round))?;
        let found = self.waiting.remove(&at)?;
        Some((at.1, round, found.update))
    }

    /// Drops the updates of `learner`, whose connection is gone. The learner still has its progress.
    fn forget(&mut self, learner: LearnerId) {
        self.waiting.retain(|(_, of), _| *of != learner);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

fn after(round: Round) -> Round {
    Round(round.0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    //! Tests of remote rounds at a gateway.

    use std::sync::Arc;

    use crate::diloco::syncer::{
        Answer, Input, LeaderRequest, Output, RemoteMerge, Syncer, SyncerConfig, SyncerError,
    };
    use crate::diloco::{Codec, FragmentState, checksum};
    use crate::testing::{larger, merge, part};
    use crate::wire::{
        CloseCode, ConnId, Fate, FragmentId, Hello, Identity, LearnerId, LearnerState, Message, Millis,
        Progress, Refusal, Round, RunId, Serial, Share, Signature, Update, Version,
    };

    const RUN: RunId = RunId(7);
    const P: FragmentId = FragmentId(0);
    const LEARNER: LearnerId = LearnerId(5);
    const CONN: ConnId = ConnId(1);

    fn syncer(config: SyncerConfig) -> Syncer {
        let (spec, layout) = larger();
        let theta = vec![0.0; layout.len()];
        Syncer::new(RUN, spec, config, &layout, &theta).unwrap().into_gateway(1)
    }

    fn hello() -> Hello {
        Hello {
            run: None,
            layout: None,
            identity: Identity([5; 32]),
            signature: Signature::NONE,
            name: String::new(),
            device: String::new(),
            invite: None,
        }
    }

    fn says(syncer: &mut Syncer, input: Input) -> Vec<Output> {
        syncer.handle(Millis(60_000), input);
        std::iter::from_fn(|| syncer.poll()).collect()
    }

    fn update(syncer: &Syncer) -> Message {
        let (codec, segments) =
            (Codec::new(&syncer.spec().exchange).unwrap(), syncer.fragments().segments(P).unwrap());
        let body = codec.encode(segments, &vec![0.1; syncer.fragments().len(P)]);
        let (serial, checksum) = (Serial(2), checksum(&body));
        let (base, seen) = (Version(0), Vec::new());
        Message::Update(Update {
            run: RUN,
            fragment: P,
            serial,
            base,
            steps: 1,
            tokens: 32,
            body,
            checksum,
            seen,
        })
    }

    /// Creates a gateway's syncer with a learner that trains. Other gateways leased far more tokens to it, which were
    /// merged.
    fn with_learner() -> Syncer {
        let mut syncer = syncer(SyncerConfig::default());
        let followed = RemoteMerge { merge: merge(P, part(LEARNER, 50_000_000)), led: None };
        says(&mut syncer, Input::Followed(Box::new(followed)));
        let said = says(&mut syncer, Input::Message(CONN, Message::Hello(hello())));
        let [Output::LeaderRequest(LeaderRequest::Introduce(CONN, hello))] =
            <[_; 1]>::try_from(said).unwrap()
        else {
            panic!("it is asked who that is");
        };
        let said = says(&mut syncer, Input::Introduced { conn: CONN, learner: LEARNER, hello });
        let welcome = said.iter().find_map(|output| match output {
            Output::Send(CONN, Message::Welcome(welcome)) => Some(welcome),
            _ => None,
        });
        assert_eq!(welcome.unwrap().merged[0], Some(Serial(1)), "it hears what was merged elsewhere");
        let layout = syncer.fragments().hash();
        says(&mut syncer, Input::Message(CONN, Message::Ready { run: RUN, layout, batch: 4 }));
        let state = LearnerState::Training;
        let (leases, tokens) = (Vec::new(), 32);
        let progress = Progress { run: RUN, leases, steps: 1, tokens, step_ms: 1_000.0, loss: 1.0, state };
        says(&mut syncer, Input::Message(CONN, Message::Progress(progress)));
        syncer
    }

    fn asked(round: u64) -> Input {
        Input::Asked { fragment: P, learner: LEARNER, conn: CONN, round: Round(round) }
    }

    /// Returns the rounds of the forwarded answers.
    fn answers(said: &[Output]) -> Vec<Round> {
        let round = |output: &Output| match output {
            Output::LeaderRequest(LeaderRequest::Answer(P, LEARNER, CONN, round, _)) => Some(*round),
            _ => None,
        };
        said.iter().filter_map(round).collect()
    }

    /// Returns the numbers sent to the peer.
    fn numbers(said: &[Output]) -> Vec<u64> {
        let number = |output: &Output| match output {
            Output::Probe(CONN, number) => Some(*number),
            _ => None,
        };
        said.iter().filter_map(number).collect()
    }

    /// Goal: a learner with more merged tokens than this gateway leased to it is credited from its first lease here on.
    /// This also holds in a new process of the gateway. The learner's answer belongs to the round of the request.
    #[test]
    fn merges_of_other_gateways_do_not_reduce_credit() {
        let mut syncer = with_learner();
        says(&mut syncer, asked(8));
        let answer = update(&syncer);
        let said = says(&mut syncer, Input::Message(CONN, answer));
        let sender = said.iter().find_map(|output| match output {
            Output::LeaderRequest(LeaderRequest::Answer(
                P,
                LEARNER,
                CONN,
                Round(8),
                Answer::Update(_, sender),
            )) => Some(sender),
            _ => None,
        });
        assert!(sender.unwrap().unmerged_tokens > 0, "{sender:?}");
    }

    /// Goal: an answer that arrives after its round is forwarded for a later round once an echo shows that its sender
    /// is connected, and for no round after that.
    #[test]
    fn late_update_is_forwarded_after_an_echo() {
        let mut syncer = with_learner();
        // The learner is asked in one round and answers in the next.
        says(&mut syncer, asked(9));
        says(&mut syncer, asked(10));
        let answer = update(&syncer);
        let said = says(&mut syncer, Input::Message(CONN, answer));
        let [number] = numbers(&said)[..] else { panic!("{said:?}") };
        assert_eq!(answers(&said), [], "it may have left since");
        assert_eq!(
            answers(&says(&mut syncer, Input::Probed(ConnId(9), number))),
            [],
            "that is somebody else"
        );
        assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number + 1))), [], "nobody sent that");
        assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number))), [Round(10)]);
        assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number))), [], "it is passed on once");

        // If the round is over when the answer arrives, an echo permits the next round but not the one after that.
        says(&mut syncer, asked(11));
        says(&mut syncer, Input::Over(P, Round(11)));
        let answer = update(&syncer);
        let said = says(&mut syncer, Input::Message(CONN, answer.clone()));
        let [number] = numbers(&said)[..] else { panic!("{said:?}") };
        says(&mut syncer, Input::Probed(CONN, number));
        says(&mut syncer, Input::Over(P, Round(12)));
        let said = says(&mut syncer, asked(13));
        let [number] = numbers(&said)[..] else { panic!("it has yet to show that it is here: {said:?}") };
        assert!(says(&mut syncer, asked(13)).is_empty(), "a number is on its way");
        assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number))), [Round(13)]);
        says(&mut syncer, asked(14));
        says(&mut syncer, Input::Over(P, Round(14)));
        let said = says(&mut syncer, Input::Message(CONN, answer.clone()));
        says(&mut syncer, Input::Probed(CONN, numbers(&said)[0]));
        assert_eq!(answers(&says(&mut syncer, asked(15))), [Round(15)], "it need not wait then");

        // A learner that answers a finished round without an update is asked again in the next round, and not before.
        let pass = || Input::Message(CONN, Message::NoUpdate { run: RUN, fragment: P });
        says(&mut syncer, asked(16));
        says(&mut syncer, Input::Over(P, Round(16)));
        assert!(says(&mut syncer, pass()).is_empty());
        let said = says(&mut syncer, asked(17));
        assert!(
            said.iter().any(|output| matches!(output, Output::Send(CONN, Message::Collect { .. }))),
            "{said:?}"
        );
        says(&mut syncer, Input::Over(P, Round(17)));
        says(&mut syncer, pass());

        // Waiting updates are dropped with their connection.
        says(&mut syncer, asked(18));
        says(&mut syncer, Input::Over(P, Round(18)));
        let said = says(&mut syncer, Input::Message(CONN, answer));
        says(&mut syncer, Input::Disconnected(CONN));
        assert!(answers(&says(&mut syncer, Input::Probed(CONN, numbers(&said)[0]))).is_empty());
    }

    /// Goal: a gateway does not end a run that has reached its number of tokens. It informs the leaders once, and
    /// learners stay until each fragment has had its last round.
    #[test]
    fn the_run_ends_with_the_last_round_of_the_last_fragment() {
        let mut syncer = syncer(SyncerConfig { stop_tokens: 1_000, ..SyncerConfig::default() });
        says(&mut syncer, Input::Introduced { conn: CONN, learner: LEARNER, hello: Box::new(hello()) });
        let mut followed = || {
            let followed = RemoteMerge { merge: merge(P, part(LEARNER, 50_000_000)), led: None };
            says(&mut syncer, Input::Followed(Box::new(followed)))
        };
        let is_enough = |output: &&Output| matches!(output, Output::LeaderRequest(LeaderRequest::Enough));
        assert_eq!(followed().iter().filter(is_enough).count(), 1);
        assert_eq!(followed().iter().filter(is_enough).count(), 0, "it is said once");
        let count = syncer.fragments().count();
        assert!(count > 1);
        for fragment in syncer.fragments().clone().ids() {
            assert!(!syncer.is_over(), "a last round is still to come");
            let said = says(&mut syncer, Input::Closed(fragment));
            let goes =
                |output: &Output| matches!(output, Output::Close(CONN, bye) if bye.code == CloseCode::Done);
            assert_eq!(said.iter().any(goes), fragment.0 + 1 == count, "{said:?}");
        }
        assert!(syncer.is_over());
    }

    /// Goal: an order of the owner about a learner holds at a gateway that the learner reaches only later.
    #[test]
    fn orders_about_absent_learners_take_effect_when_they_join() {
        let mut syncer = syncer(SyncerConfig::default());
        let share = Share::new(0.25).unwrap();
        says(&mut syncer, Input::Pace { learner: LEARNER, share });
        says(&mut syncer, Input::Drop { learner: LEARNER, wait_ms: 5_000 });
        let comes = |syncer: &mut Syncer, conn: ConnId| {
            says(syncer, Input::Introduced { conn, learner: LEARNER, hello: Box::new(hello()) })
        };
        let said = comes(&mut syncer, CONN);
        let is_away =
            |output: &Output| matches!(output, Output::Close(CONN, bye) if bye.code == CloseCode::Dropped);
        assert!(said.iter().any(is_away), "{said:?}");
        says(&mut syncer, Input::Drop { learner: LEARNER, wait_ms: 0 });
        let said = comes(&mut syncer, ConnId(2));
        let shares = said.iter().find_map(|output| match output {
            Output::Send(_, Message::Welcome(welcome)) => Some(welcome.share),
            _ => None,
        });
        assert_eq!(shares, Some(share), "{said:?}");
    }

    /// Goal: a learner with repeated refusals from remote leaders is sent away, as with local rounds.
    #[test]
    fn repeated_refusals_by_leaders_close_the_connection() {
        let mut syncer = with_learner();
        let refusals_max = SyncerConfig::default().refusals_max;
        for i in 1..=refusals_max {
            let (serial, refusal) = (Serial(i.into()), Some(Refusal::Norm));
            let unmerged = Input::Unmerged { fragment: P, learner: LEARNER, conn: CONN, serial, refusal };
            let said = says(&mut syncer, unmerged);
            let is_told = |out: &Output| {
                matches!(out, Output::Send(CONN, Message::Receipt { fate: Fate::Refused(Refusal::Norm), .. }))
            };
            assert!(said.iter().any(is_told), "{said:?}");
            let is_away = said
                .iter()
                .any(|out| matches!(out, Output::Close(CONN, bye) if bye.code == CloseCode::Untrusted));
            assert_eq!(is_away, i == refusals_max, "{i}: {said:?}");
        }
    }

    /// Goal: with remote rounds only Θ̂ of a fragment is kept, also after a merge.
    #[test]
    fn gateway_keeps_only_theta_hat() {
        let mut syncer = syncer(SyncerConfig::default());
        let is_hat = |syncer: &Syncer| {
            syncer.states().all(|state| Arc::ptr_eq(&state.theta, &state.hat) && state.momentum.is_empty())
        };
        assert!(is_hat(&syncer));
        let mut state = FragmentState::new(vec![0.3; syncer.fragments().len(P)]);
        state.version = Version(9);
        let hat = Arc::clone(&state.hat);
        let followed = RemoteMerge { merge: merge(P, part(LEARNER, 8)), led: Some((state, Vec::new())) };
        says(&mut syncer, Input::Followed(Box::new(followed)));
        assert!(is_hat(&syncer));
        assert_eq!(syncer.hat(P), Some((Version(9), hat)));
    }

    /// Goal: Θ̂ that do not fit the run are refused.
    #[test]
    fn hats_fit_the_fragments() {
        let (spec, layout) = larger();
        let whole = syncer(SyncerConfig::default());
        let mut hats: Vec<_> = whole.states().map(|state| Arc::clone(&state.hat)).collect();
        let begin = |hats| {
            Syncer::before_others(RUN, spec.clone(), SyncerConfig::default(), &layout, hats).map(|syncer| {
                let states: Vec<_> = syncer.states().cloned().collect();
                states
            })
        };
        assert_eq!(begin(hats.clone()), Ok(whole.states().cloned().collect()));
        let expected = hats[0].len();
        hats[0] = Arc::default();
        assert_eq!(begin(hats.clone()), Err(SyncerError::Fragment { fragment: P, expected, actual: 0 }));
        let count = hats.len();
        hats.pop();
        assert_eq!(begin(hats), Err(SyncerError::FragmentCount { expected: count, actual: count - 1 }));
    }
}
