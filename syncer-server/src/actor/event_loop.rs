//! The actor's event loop: waits for input, hands it to the core, and carries out the core's outputs.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::diloco::syncer::{
    Input, LeaderRequest, RollbackJob, RollbackOrder, Syncer, SyncerConfig,
};
use archipelago_core::diloco::{ConnId, FragmentId, LearnerId, Millis, Version, encode_state};
use archipelago_core::wire::{Bye, CloseCode, Message, RunId};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::eval_snapshot::{EvalSnapshot, HarmVerdict};
use super::handle::{Command, Mailbox, OrderOutcome, View};
use super::host::{Done, HostAdapter, json};
use super::measuring::LossCheckCapture;
use super::measuring::{Measuring, Trusted};
use super::record::Record;
use super::save::{Saves, Written};
use crate::clock::{Clock, unix_ms};
use crate::errors::ServerError;
use crate::meters::Meters;
use crate::outbox::{Encoder, Outbox};
use crate::report::RunReport;
use crate::status::{AlertChange, AlertKind, Evaluation, LogEvent, LogQuery, ServerStatus, StatusTracker};
use crate::store::{Snapshot, Store};
use crate::tape::{self, Writer};
use crate::webhook::{Notice, Webhook};

/// Interval between publications of the status.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Interval between publications of changed rounds.
const ROUNDS_EVERY: Duration = Duration::from_millis(250);

/// Maximum number of commands handled as one batch. A larger batch would delay the outputs of its first command.
const TOGETHER: usize = 32;

/// Longest wait for the tape to write the last decisions.
const TAPE_WITHIN: Duration = Duration::from_secs(5);

/// The task that owns the core, before it runs.
pub struct Actor {
    /// The core.
    pub syncer: Syncer,
    /// The server's clock.
    pub clock: Clock,
    /// Traffic counters of the sockets.
    pub meters: Arc<Meters>,
    /// The published state of the run.
    pub board: StatusTracker,
    /// Storage for snapshots.
    pub store: Arc<Store>,
    /// Interval between snapshots.
    pub snapshot_every: Duration,
    /// The actor's ends of the handle.
    pub mailbox: Mailbox,
    /// The writer of the tape.
    pub tape: Writer,
    /// Number of the last tape row in the snapshot that the syncer resumed from.
    pub snapshot_seq: Option<u64>,
    /// The log event for this start of the server.
    pub started: LogEvent,
    /// The webhook for alerts, in addition to the log.
    pub webhook: Option<Webhook>,
    /// The channel to the leaders of the rounds, if other processes lead them.
    pub leader_requests: Option<mpsc::UnboundedSender<LeaderRequest>>,
    /// True if single updates get loss checks.
    pub checks: bool,
    /// The learner that measures the held-out loss, if this program cannot.
    pub trusted: Option<Trusted>,
}

impl Actor {
    /// Runs until `shutdown` resolves with the goodbye for all peers, sends it to them, and returns the last state to
    /// save. After the run is complete, the actor still answers: it launches and merges nothing, turns newcomers away,
    /// and refuses orders.
    ///
    /// # Errors
    /// - `Internal`: a merge panicked.
    /// - `DirInUse`: another program now leads the run.
    /// - `Disk`: the last decisions cannot be stored.
    pub async fn run(self, shutdown: impl Future<Output = Bye>) -> Result<Final, ServerError> {
        let Self { syncer, clock, meters, board, store, mailbox, webhook, started, leader_requests, .. } =
            self;
        let measuring = Measuring::new(self.trusted);
        let state = State::new(&syncer, self.tape, self.snapshot_seq, self.checks, measuring);
        let mut event_loop =
            EventLoop { syncer, clock, meters, board, store, mailbox, webhook, leader_requests };
        event_loop.log(&state.record, started);
        event_loop.run(state, self.snapshot_every, shutdown).await
    }
}

/// Final state of the actor.
pub struct Final {
    /// The snapshot to save.
    pub snapshot: Snapshot,
    /// The status to show.
    pub status: ServerStatus,
}

type HatReply = oneshot::Sender<(Version, Arc<Vec<f32>>)>;

/// State of the loop in addition to the parts of [`Actor`].
struct State {
    encoder: Encoder,
    outboxes: BTreeMap<ConnId, Outbox>,
    merges: JoinSet<Done>,
    /// Fragments to roll back whose newest version is not on disk yet.
    rollbacks: Vec<RollbackJob>,
    saves: Saves,
    record: Record,
    hats: Vec<(FragmentId, HatReply)>,
    /// Outcomes of orders, each with the tape row that must be on disk before the reply.
    orders: Vec<(u64, OrderOutcome, oneshot::Sender<OrderOutcome>)>,
    subjects: Vec<oneshot::Sender<EvalSnapshot>>,
    loss_checks: LossCheckCapture,
    measuring: Measuring,
    finished: bool,
}

impl State {
    fn new(
        syncer: &Syncer,
        tape: Writer,
        snapshot_seq: Option<u64>,
        is_tried: bool,
        measuring: Measuring,
    ) -> Self {
        let fragments = Arc::clone(syncer.fragments());
        let record = Record::new(tape, fragments.count());
        Self {
            saves: Saves::after(snapshot_seq, record.gate.decided()),
            record,
            encoder: Encoder::new(fragments),
            outboxes: BTreeMap::new(),
            merges: JoinSet::new(),
            rollbacks: Vec::new(),
            hats: Vec::new(),
            orders: Vec::new(),
            subjects: Vec::new(),
            loss_checks: LossCheckCapture::new(syncer, is_tried),
            measuring,
            finished: false,
        }
    }
}

/// The actor while it runs.
struct EventLoop {
    syncer: Syncer,
    clock: Clock,
    meters: Arc<Meters>,
    board: StatusTracker,
    store: Arc<Store>,
    mailbox: Mailbox,
    webhook: Option<Webhook>,
    leader_requests: Option<mpsc::UnboundedSender<LeaderRequest>>,
}

impl EventLoop {
    async fn run(
        mut self,
        mut state: State,
        snapshot_every: Duration,
        shutdown: impl Future<Output = Bye>,
    ) -> Result<Final, ServerError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut status_tick = interval(STATUS_EVERY);
        let mut rounds_tick = interval(ROUNDS_EVERY);
        let mut save_tick = interval(snapshot_every.max(Duration::from_millis(100)));
        status_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        rounds_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        save_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        save_tick.tick().await;
        if self.syncer.is_over() {
            // The run was completed before this start, and its clock has stood still since.
            self.end(Millis(0));
        }
        let bye = loop {
            let deadline = self.syncer.deadline(self.clock.now());
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                bye = &mut shutdown => break bye,
                Some(merged) = state.merges.join_next() => self.merged(&state, merged)?,
                Some(written) = state.saves.next() => self.saved(&mut state, written),
                Ok(()) = state.record.state.changed() => self.taped(&mut state)?,
                _ = status_tick.tick() => {
                    self.publish(&state);
                    self.ask(&mut state);
                }
                _ = rounds_tick.tick() => {
                    self.taped(&mut state)?;
                    self.publish_rounds();
                }
                _ = save_tick.tick() => state.saves.is_due |= !self.syncer.is_over(),
                Some(command) = self.mailbox.commands.recv() => self.commands(&mut state, command),
                () = timer => self.handle(Input::Timeout),
            }
            self.drain(&mut state);
            if std::mem::take(&mut state.finished) {
                // Publish the last figures before the run's clock stops.
                self.publish(&state);
                self.publish_rounds();
                self.end(self.clock.now());
                // A crash must not restart a complete run.
                state.saves.is_due = true;
                tracing::info!(
                    "the run is complete; its pages and model are served until the server is stopped"
                );
            }
            self.answer(&mut state);
            self.publish_log(&state);
        };
        self.shut_down(state, &bye).await
    }

    /// Marks the run as complete since `now` on the run's clock.
    fn end(&mut self, now: Millis) {
        self.board.end(now);
        self.mailbox.over.send_replace(true);
    }

    fn handle(&mut self, input: Input) {
        self.syncer.handle(self.clock.now(), input);
    }

    /// Handles `command` and the commands queued behind it as one batch. Their outputs are sent together, and the loop
    /// does its own work once for all.
    fn commands(&mut self, state: &mut State, command: Command) {
        self.command(state, command);
        for _ in 1..TOGETHER {
            let Ok(command) = self.mailbox.commands.try_recv() else { return };
            self.command(state, command);
        }
    }

    fn command(&mut self, state: &mut State, command: Command) {
        match command {
            Command::Open(conn, outbox) => {
                state.outboxes.insert(conn, outbox);
            }
            Command::Input(Input::Message(conn, Message::Measured { run, number, loss }))
                if self.answered(state, conn, (run, number, loss)) =>
            {
                self.handle(Input::Heard(conn));
            }
            // The connection may already be closed.
            Command::Input(Input::Introduced { conn, .. }) if !state.outboxes.contains_key(&conn) => {}
            Command::Input(input) => {
                if let Input::Disconnected(conn) = &input {
                    state.outboxes.remove(conn);
                }
                self.handle(input);
            }
            Command::Order(learner, input, reply) => self.order(state, learner, input, reply),
            Command::MayOrder(learner, reply) => {
                let _ = reply.send(self.may_order(learner));
            }
            Command::MayStopAt(tokens, reply) => {
                let _ = reply.send(self.may_stop_at(tokens));
            }
            Command::Retune(config, changes, reply) => self.retune(state, &config, changes, reply),
            Command::Hat(fragment, reply) => {
                if fragment.0 < self.syncer.fragments().count() {
                    state.hats.push((fragment, reply));
                }
            }
            Command::EvalSnapshot(reply) => state.subjects.push(reply),
            // The requester has hung up.
            Command::Status(reply) if reply.is_closed() => {}
            Command::Report(reply) if reply.is_closed() => {}
            Command::View(_, reply) if reply.is_closed() => {}
            Command::Status(reply) => {
                // Fails only if the requester has hung up.
                let _ = reply.send(Box::new(self.status(state)));
            }
            Command::Report(reply) => {
                let _ = reply.send(Box::new(self.report()));
            }
            Command::View(view, reply) => {
                let now = self.clock.now();
                let _ = reply.send(match view {
                    View::Learners(query) => json(&self.board.learners(now, &self.syncer, query)),
                    View::Series => self.board.series_json(),
                    View::Rounds => json(&self.board.rounds(now)),
                    View::Log(query) => self.log_json(&query),
                });
            }
            Command::TurnedAway(bye) => {
                self.log(&state.record, LogEvent::TurnedAway { reason: bye.reason, times: 1 });
            }
            Command::Happened(what) => self.log(&state.record, what),
            Command::Served(fault) => self.served(state, fault),
            Command::LossCheck(sampling, reply) => state.loss_checks.want(*sampling, reply),
            Command::Judged(judgement) => self.judged(state, *judgement),
            Command::Evaluated(evaluation, text, reply) => {
                self.evaluated(evaluation, text);
                state.saves.is_due |= self.syncer.is_over();
                let _ = reply.send(());
            }
        }
    }

    fn evaluated(&mut self, evaluation: Evaluation, text: Option<String>) {
        let (loss, tokens_merged) = (evaluation.loss, evaluation.tokens_merged);
        tracing::info!(loss, tokens_merged, "held-out loss");
        let written = text.is_some();
        let evaluation = self.board.evaluated(self.clock.now(), evaluation, text);
        self.publish_news("evaluation", &evaluation);
        if let Some(sample) = self.board.newest_sample().filter(|_| written) {
            self.publish_news("sample", &sample);
        }
    }

    fn merged(
        &mut self,
        state: &State,
        done: Result<Done, tokio::task::JoinError>,
    ) -> Result<(), ServerError> {
        // The fragment's state was lost with the task; only the last snapshot still has it.
        let Done { result, kept } = done.map_err(|error| ServerError::Internal {
            what: format!(
                "a merge panicked ({error}); start the server again to resume from its last snapshot"
            ),
        })?;
        if let (Ok(outcome), Some(kept)) = (&result, kept) {
            state.record.keep_rolled_back(outcome.round, kept);
        }
        self.handle(Input::Merged(Box::new(result)));
        Ok(())
    }

    /// Carries out the core's outputs until there are no more.
    fn drain(&mut self, state: &mut State) {
        let State { encoder, outboxes, merges, rollbacks, record, loss_checks, .. } = state;
        let (board, mailbox) = (&mut self.board, &self.mailbox);
        let mut host = HostAdapter {
            now: self.clock.now(),
            board,
            mailbox,
            encoder,
            outboxes,
            merges,
            rollbacks,
            leader_requests: self.leader_requests.as_ref(),
            record,
            loss_checks,
            slow: Vec::new(),
            is_finished: false,
        };
        host.release();
        self.syncer.drain(&mut host);
        while let Some(conn) = host.slow.pop() {
            if let Some(outbox) = host.outboxes.remove(&conn) {
                let reason = "messages pile up unread: use a faster connection, then join again";
                outbox.close(Bye::new(CloseCode::SlowReader, reason));
                self.syncer.drive(host.now, Input::Disconnected(conn), &mut host);
            }
        }
        state.finished |= host.is_finished;
        self.rollback(state);
    }

    /// Answers requests and advances snapshots that waited for a merge or for the disk.
    fn answer(&mut self, state: &mut State) {
        let syncer = &self.syncer;
        for (fragment, reply) in std::mem::take(&mut state.hats) {
            match syncer.hat(fragment).filter(|_| state.record.gate.is_version_safe(fragment)) {
                Some(hat) => drop(reply.send(hat)),
                None => state.hats.push((fragment, reply)),
            }
        }
        for (_, outcome, reply) in state.orders.extract_if(.., |(seq, ..)| state.record.gate.is_safe(*seq)) {
            // Fails only if the requester has hung up.
            let _ = reply.send(outcome);
        }
        state.loss_checks.answer(&self.syncer);
        if !state.subjects.is_empty()
            && let Some(subject) = EvalSnapshot::of(&self.syncer, &self.board, state.record.gate.decided())
        {
            for reply in state.subjects.drain(..) {
                drop(reply.send(subject.clone()));
            }
        }
        let (board, now) = (&self.board, self.clock.now());
        let statistics = || board.statistics(now, self.meters.read());
        state.saves.step(syncer, &state.record, &self.store, statistics);
    }

    fn saved(&mut self, state: &mut State, written: Written) {
        let fault = state.saves.note(written, &state.record);
        if let Some(news) = self.board.disk().saved(self.clock.now(), fault, state.saves.shortage.clone()) {
            self.log(&state.record, news);
        }
    }

    /// Handles progress or faults of the tape. A hanging disk sends no notice, so this must be called regularly.
    fn taped(&mut self, state: &mut State) -> Result<(), ServerError> {
        let Some(tape) = state.record.taped(self.clock.now()) else {
            return Err(ServerError::DirInUse { dir: self.store.dir().to_owned() });
        };
        if let Some(news) = self.board.disk().taped(tape) {
            let is_faulty = self.board.disk().is_faulty();
            self.handle(Input::Stall(is_faulty));
            self.log(&state.record, news);
            // Watchers see the change at once.
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
        Ok(())
    }

    /// Measures and publishes the status; called once a second.
    fn publish(&mut self, state: &State) {
        self.check_alerts(state);
        let (now, traffic) = (self.clock.now(), self.meters.read());
        let point = self.board.tick(now, &self.syncer, traffic);
        if let Some(point) = point {
            self.publish_news("point", &point);
        }
        if let Some(figures) = self.board.due_figures(now, &self.syncer, traffic) {
            state.record.keep_figures(&figures);
        }
        self.mailbox.status.send_replace(json(&self.status(state)));
    }

    fn publish_rounds(&mut self) {
        let changed = self.board.take_changed_rounds(self.clock.now());
        if let Some(rounds) = changed {
            self.publish_news("rounds", &rounds);
        }
    }

    /// Sends `news` to the watchers, if there are any.
    fn publish_news(&self, name: &'static str, news: &impl Serialize) {
        if self.mailbox.news.receiver_count() > 0 {
            // Fails only if the last watcher has left.
            let _ = self.mailbox.news.send((name, json(news)));
        }
    }

    fn status(&self, state: &State) -> ServerStatus {
        let sockets = state.outboxes.len() as u32;
        let mut status = self.board.status(self.clock.now(), &self.syncer, self.meters.read(), sockets);
        (status.disk.unsaved, status.disk.unsaved_age_s) = state.record.unsaved(self.clock.now());
        status
    }

    /// Returns the outcome that an order would have. `learner` is set if the order concerns one.
    fn may_order(&self, learner: Option<LearnerId>) -> OrderOutcome {
        match learner {
            _ if self.syncer.is_over() => OrderOutcome::RunOver,
            Some(learner) if !self.syncer.knows(learner) => OrderOutcome::NoSuchLearner,
            _ => OrderOutcome::Taken,
        }
    }

    /// Carries out an order. `learner` is set if the order concerns one. `reply` gets the outcome once the order is on
    /// disk.
    fn order(
        &mut self,
        state: &mut State,
        learner: Option<LearnerId>,
        input: Input,
        reply: oneshot::Sender<OrderOutcome>,
    ) {
        let outcome = self.may_order(learner);
        if outcome == OrderOutcome::Taken {
            self.handle(input);
            // Watchers see the change at once.
            self.drain(state);
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
        // A crash must not undo a confirmed order, so it is on the tape before it is confirmed.
        state.orders.push((state.record.gate.decided(), outcome, reply));
    }

    /// Returns the outcome of an order to stop at `tokens` merged tokens (0 is never), without carrying it out.
    fn may_stop_at(&self, tokens: u64) -> OrderOutcome {
        let counted = self.syncer.ledger().schedule_tokens();
        match self.may_order(None) {
            OrderOutcome::Taken if (1..=counted).contains(&tokens) => OrderOutcome::PastStop(counted),
            other => other,
        }
    }

    /// Applies the round settings and limits of `config` from now on, and logs the `changes`. Each merge is recorded
    /// with its rule and its parts, so a replay does not need to know of the change.
    fn retune(
        &mut self,
        state: &mut State,
        config: &SyncerConfig,
        changes: Vec<LogEvent>,
        reply: oneshot::Sender<OrderOutcome>,
    ) {
        let outcome = if self.syncer.is_over() { OrderOutcome::RunOver } else { OrderOutcome::Taken };
        if outcome == OrderOutcome::Taken {
            self.syncer.retune(config.quorum, config.merge);
            self.syncer.limit(config.learners_max, config.cohort_max, config.stop_tokens);
            for change in changes {
                self.log(&state.record, change);
            }
            self.handle(Input::Timeout);
            self.drain(state);
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
        state.orders.push((state.record.gate.decided(), outcome, reply));
    }

    /// Asks the trusted learner for the held-out loss, if a request is due.
    fn ask(&self, state: &mut State) {
        let State { measuring, outboxes, encoder, .. } = state;
        let request =
            measuring.next_request(self.clock.now(), &self.syncer, |conn| outboxes.contains_key(&conn));
        let Some((conn, message)) = request else { return };
        // If its queue is full, the core's next message closes the connection.
        if let Some(outbox) = outboxes.get(&conn) {
            let _ = outbox.send(encoder.encode(&message));
        }
    }

    /// Handles the answer of `conn`; returns false if there was no such request.
    fn answered(
        &mut self,
        state: &mut State,
        conn: ConnId,
        (run, number, loss): (RunId, u32, Option<f32>),
    ) -> bool {
        let now = self.clock.now();
        let is_ours = run == self.syncer.run();
        let Some(found) = is_ours.then(|| state.measuring.answer(now, conn, number, loss)).flatten() else {
            return false;
        };
        if let Some(evaluation) = found {
            self.evaluated(evaluation, None);
        }
        true
    }

    /// Handles the result of a check of the held-out loss.
    fn judged(&mut self, state: &mut State, judgement: HarmVerdict) {
        match judgement {
            HarmVerdict::Well { seq } => state.record.need(seq),
            HarmVerdict::Unexplained { losses, seq } => {
                state.record.need(seq);
                self.log(&state.record, LogEvent::LossUnexplained { losses });
            }
            HarmVerdict::Harm { from, after, culprits, losses, without } => {
                self.handle(Input::Rollback(Box::new(RollbackOrder {
                    from,
                    after,
                    culprits: culprits.clone(),
                })));
                for learner in culprits {
                    let Some(account) = self.syncer.ledger().account(learner) else { continue };
                    let (name, for_good) = (account.name.clone(), account.trust.is_banned());
                    self.log(&state.record, LogEvent::Undone { learner, name, losses, without, for_good });
                }
            }
        }
    }

    /// Starts the rollback of fragments whose newest version is on disk.
    fn rollback(&self, state: &mut State) {
        let State { rollbacks, merges, record, .. } = state;
        for mut job in rollbacks.extract_if(.., |job| record.gate.is_version_safe(job.fragment())) {
            let (store, run) = (Arc::clone(&self.store), self.syncer.run());
            merges.spawn_blocking(move || {
                let followed = tape::rollback(&store, run, std::slice::from_mut(&mut job.rollback), job.after);
                if let Err(error) = followed {
                    tracing::error!(%error, "merged updates cannot be read from the tape, so they cannot be rolled \
                         back");
                }
                let result = job.run();
                let kept = result.as_ref().ok().map(|outcome| encode_state(&outcome.state));
                Done { result, kept }
            });
        }
    }

    /// Adds a line to the run's log.
    fn log(&mut self, record: &Record, what: LogEvent) {
        record.log(&mut self.board, self.clock.now(), what);
    }

    /// Records a fault of the services that the processes of a cluster share, or its end (`None`).
    fn served(&mut self, state: &State, fault: Option<Arc<str>>) {
        if let Some(news) = self.board.disk().served(fault) {
            self.log(&state.record, news);
            // Watchers see the change at once.
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
    }

    /// Returns the lines that `query` asks for, as JSON.
    fn log_json(&self, query: &LogQuery) -> Arc<str> {
        json(&self.board.log_view(unix_ms(), query))
    }

    /// Sends watchers the log lines that may now be published.
    fn publish_log(&mut self, state: &State) {
        let is_faulty = self.board.disk().is_faulty();
        let count = self.board.log().reach(state.record.logged(), is_faulty);
        if count > 0 {
            let newest = LogQuery { name: String::new(), limit: count };
            let view = self.board.log_view(unix_ms(), &newest);
            self.publish_news("log", &view);
        }
    }

    /// Checks for alerts and reports the changes.
    fn check_alerts(&mut self, state: &State) {
        for AlertChange { kind, is_raised, text } in self.board.update_alerts(self.clock.now(), &self.syncer)
        {
            if is_raised {
                tracing::warn!(?kind, text, "alert");
            } else {
                tracing::info!(?kind, text, "alert resolved");
            }
            if let Some(webhook) = &self.webhook {
                let (run, at_ms) = (self.syncer.run().to_string(), unix_ms());
                webhook.enqueue(Notice { text: text.clone(), run, alert: kind, raised: is_raised, at_ms });
            }
            // Disk faults have log lines of their own.
            if kind != AlertKind::DiskFault {
                self.log(&state.record, LogEvent::Alert { alert: kind, raised: is_raised, text });
            }
        }
    }

    /// Returns the data of a report on the run as it is now.
    fn report(&self) -> RunReport {
        let statistics = self.board.statistics(self.clock.now(), self.meters.read());
        let fragments = self.syncer.fragments();
        let params = fragments.ids().map(|fragment| fragments.len(fragment) as u64).sum();
        RunReport::new(&self.syncer.record_amid(), params, statistics, self.board.names_hidden())
    }

    /// Sends `bye` to all peers, waits for merges and saves in flight, and returns the last state.
    async fn shut_down(mut self, mut state: State, bye: &Bye) -> Result<Final, ServerError> {
        self.log(&state.record, LogEvent::Stopped);
        // Notices of completion and receipts go out before the goodbye.
        self.wait_for_tape(&mut state).await?;
        self.answer(&mut state);
        for (_, outbox) in std::mem::take(&mut state.outboxes) {
            outbox.close(bye.clone());
        }
        // Rollbacks wait for the tape, and their results must be on it.
        loop {
            self.wait_for_tape(&mut state).await?;
            let Some(merged) = state.merges.join_next().await else { break };
            self.merged(&state, merged)?;
            self.drain(&mut state);
        }
        state.saves.cancel();
        while let Some(written) = state.saves.next().await {
            self.saved(&mut state, written);
        }
        self.publish(&state);
        self.publish_rounds();
        let snapshot = self.snapshot(state.record.gate.decided());
        Ok(Final { snapshot, status: self.status(&state) })
    }

    /// Waits until all decisions are on the tape, and sends the messages that waited for them.
    async fn wait_for_tape(&mut self, state: &mut State) -> Result<(), ServerError> {
        let deadline = tokio::time::Instant::now() + TAPE_WITHIN;
        loop {
            self.taped(state)?;
            self.drain(state);
            if state.record.gate.is_all_safe() {
                return Ok(());
            }
            if tokio::time::timeout_at(deadline, state.record.state.changed()).await.is_err() {
                let fault = state.record.refresh().fault.unwrap_or_else(|| "the disk is too slow".into());
                let source = std::io::Error::other(fault.to_string());
                let path = self.store.tape_path();
                return Err(ServerError::Disk { what: "write", path, source });
            }
        }
    }

    fn snapshot(&self, seq: u64) -> Snapshot {
        let record = self.syncer.record_amid();
        let statistics = self.board.statistics(self.clock.now(), self.meters.read());
        Snapshot { seq, record, states: self.syncer.states().cloned().collect(), statistics }
    }
}
