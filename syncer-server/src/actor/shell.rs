//! The actor's loop: wait, hand to the core, do what it says.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use archipelago::diloco::syncer::{Event, Input, Output, Syncer};
use archipelago::diloco::{ConnId, FragmentId, FragmentState, MergeError, MergeJob, MergeOutcome, Version};
use archipelago::wire::{Bye, CloseCode, Message};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::handle::{Command, Mailbox, View};
use crate::clock::Clock;
use crate::errors::ServerError;
use crate::evaluate::{Evaluation, Subject};
use crate::meters::Meters;
use crate::outbox::{Outbox, Outgoing};
use crate::status::{Board, ServerStatus};
use crate::store::{Snapshot, Store};

/// Time between two publications of the status.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Time between two looks at which rounds changed.
const ROUNDS_EVERY: Duration = Duration::from_millis(250);

/// Owns the syncer.
pub struct Actor {
    /// The core.
    pub syncer: Syncer,
    /// The server's clock.
    pub clock: Clock,
    /// What crosses the sockets.
    pub meters: Arc<Meters>,
    /// What is shown.
    pub board: Board,
    /// Where snapshots go.
    pub store: Arc<Store>,
    /// Time between two of them.
    pub snapshot_every: Duration,
    /// The other ends of the handle.
    pub mailbox: Mailbox,
}

/// Why the actor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The run is complete.
    Finished,
    /// The server was told to stop.
    Stopped,
}

type MergeResult = Result<MergeOutcome, (FragmentId, FragmentState, MergeError)>;
type HatReply = oneshot::Sender<(Version, Arc<Vec<f32>>)>;

/// What the loop needs beside [`Actor`].
#[derive(Default)]
struct State {
    outboxes: BTreeMap<ConnId, Outbox>,
    merges: JoinSet<MergeResult>,
    saves: JoinSet<Result<(), ServerError>>,
    save_due: bool,
    hats: Vec<(FragmentId, HatReply)>,
    subjects: Vec<oneshot::Sender<Subject>>,
    finished: bool,
}

impl Actor {
    /// Runs until the run is complete or `shutdown` resolves; then everyone has been told, and what is
    /// returned is the last state, to be saved.
    ///
    /// # Errors
    /// `Internal`: a merge panicked.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(Ended, Final), ServerError> {
        let mut state = State::default();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut status_tick = interval(STATUS_EVERY);
        let mut rounds_tick = interval(ROUNDS_EVERY);
        let mut save_tick = interval(self.snapshot_every.max(Duration::from_millis(100)));
        status_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        rounds_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        save_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        save_tick.tick().await;
        let ended = loop {
            let deadline = self.syncer.deadline(self.clock.now());
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut shutdown => break Ended::Stopped,
                Some(merged) = state.merges.join_next() => self.merged(merged)?,
                Some(saved) = state.saves.join_next() => note_save(saved),
                _ = status_tick.tick() => self.publish(&state),
                _ = rounds_tick.tick() => self.publish_rounds(),
                _ = save_tick.tick() => state.save_due = true,
                Some(command) = self.mailbox.commands.recv() => self.command(&mut state, command),
                () = timer => self.handle(Input::Timeout),
            }
            self.drain(&mut state);
            self.answer(&mut state);
            if state.finished {
                break Ended::Finished;
            }
        };
        self.wind_up(state, ended).await.map(|last| (ended, last))
    }

    fn handle(&mut self, input: Input) {
        self.syncer.handle(self.clock.now(), input);
    }

    fn command(&mut self, state: &mut State, command: Command) {
        match command {
            Command::Open(conn, outbox) => {
                state.outboxes.insert(conn, outbox);
            }
            Command::Input(input) => {
                match &input {
                    Input::Disconnected(conn) => drop(state.outboxes.remove(conn)),
                    // A crash must not undo the owner's word.
                    Input::Hold(_) => state.save_due = true,
                    _ => {}
                }
                self.handle(input);
            }
            Command::Rein(learner, input, reply) => {
                // Nobody waits any more if this fails.
                let _ = reply.send(self.syncer.knows(learner));
                self.handle(input);
                // Whoever watches sees it at once.
                self.drain(state);
                self.mailbox.status.send_replace(json(&self.status(state)));
            }
            Command::Hat(fragment, reply) => {
                if fragment.0 < self.syncer.fragments().count() {
                    state.hats.push((fragment, reply));
                }
            }
            Command::Subject(reply) => state.subjects.push(reply),
            Command::Status(reply) => {
                // Nobody waits any more if this fails.
                let _ = reply.send(Box::new(self.status(state)));
            }
            Command::View(view, reply) => {
                let now = self.clock.now();
                let _ = reply.send(match view {
                    View::Learners(query) => json(&self.board.learners(now, &self.syncer, query)),
                    View::Series => self.board.series_json(),
                    View::Rounds => json(&self.board.rounds(now)),
                });
            }
            Command::Evaluated(evaluation, text) => self.evaluated(evaluation, text),
        }
    }

    fn evaluated(&mut self, evaluation: Evaluation, text: Option<String>) {
        let (loss, tokens_merged) = (evaluation.loss, evaluation.tokens_merged);
        tracing::info!(loss, tokens_merged, "held-out loss");
        let written = text.is_some();
        let evaluation = self.board.evaluated(self.clock.now(), evaluation, text);
        self.tell("evaluation", &evaluation);
        if let Some(sample) = self.board.newest_sample().filter(|_| written) {
            self.tell("sample", sample);
        }
    }

    fn merged(&mut self, merged: Result<MergeResult, tokio::task::JoinError>) -> Result<(), ServerError> {
        // The fragment's state went down with the task: only the last snapshot has it now.
        let merged = merged.map_err(|error| ServerError::Internal {
            what: format!(
                "a merge panicked ({error}); start the server again to go on from its last snapshot"
            ),
        })?;
        self.handle(match merged {
            Ok(outcome) => Input::MergeDone(Box::new(outcome)),
            Err((fragment, state, error)) => Input::MergeFailed { fragment, state: Box::new(state), error },
        });
        Ok(())
    }

    /// Does what the core says, until it has nothing more to say.
    fn drain(&mut self, state: &mut State) {
        let mut slow = Vec::new();
        loop {
            while let Some(output) = self.syncer.poll() {
                match output {
                    Output::Send(conn, message) => self.send(state, &[conn], &message, &mut slow),
                    Output::Broadcast(conns, message) => self.send(state, &conns, &message, &mut slow),
                    Output::Close(conn, bye) => {
                        if let Some(outbox) = state.outboxes.remove(&conn) {
                            outbox.close(bye);
                        }
                    }
                    Output::Merge(job) => start_merge(&mut state.merges, *job),
                    Output::Event(event) => self.note(&event),
                    Output::Finished => state.finished = true,
                }
            }
            let Some(conn) = slow.pop() else { return };
            if let Some(outbox) = state.outboxes.remove(&conn) {
                let reason = "messages pile up unread: use a faster connection, then join again";
                outbox.close(Bye::new(CloseCode::SlowReader, reason));
                self.handle(Input::Disconnected(conn));
            }
        }
    }

    fn send(&self, state: &State, conns: &[ConnId], message: &Message, slow: &mut Vec<ConnId>) {
        let outgoing = Outgoing::new(message, self.syncer.fragments());
        for conn in conns {
            let full = state.outboxes.get(conn).is_some_and(|outbox| outbox.send(outgoing.clone()).is_err());
            if full {
                slow.push(*conn);
            }
        }
    }

    fn note(&mut self, event: &Event) {
        self.board.note(self.clock.now(), event);
        match event {
            Event::MergeFailed { .. } => tracing::error!(?event),
            Event::Joined { .. }
            | Event::Live { .. }
            | Event::Left { .. }
            | Event::Held { .. }
            | Event::Paced { .. }
            | Event::Dropped { .. } => {
                tracing::info!(?event);
            }
            _ => tracing::debug!(?event),
        }
        if self.mailbox.events.receiver_count() > 0 {
            // Nobody listens any more if this fails.
            let _ = self.mailbox.events.send(json(event));
        }
    }

    /// Answers and saves what had to wait for a merge to end.
    fn answer(&mut self, state: &mut State) {
        let syncer = &self.syncer;
        for (fragment, reply) in std::mem::take(&mut state.hats) {
            match syncer.hat(fragment) {
                Some(hat) => drop(reply.send(hat)),
                None => state.hats.push((fragment, reply)),
            }
        }
        if !state.subjects.is_empty()
            && let Some(subject) = self.subject()
        {
            for reply in state.subjects.drain(..) {
                drop(reply.send(subject.clone()));
            }
        }
        if state.save_due
            && state.saves.is_empty()
            && let Some(snapshot) = self.snapshot()
        {
            state.save_due = false;
            let store = Arc::clone(&self.store);
            state.saves.spawn_blocking(move || store.save(&snapshot).map(drop));
        }
    }

    fn subject(&self) -> Option<Subject> {
        let theta = self.syncer.theta()?;
        let status = self.syncer.status();
        Some(Subject { theta, tokens_merged: status.tokens_merged, rounds: status.rounds })
    }

    fn snapshot(&self) -> Option<Snapshot> {
        let record = self.syncer.record()?;
        let carried = self.board.carried(self.clock.now(), self.meters.read());
        Some(Snapshot { record, states: self.syncer.states().cloned().collect(), carried })
    }

    /// Once a second: measures, and publishes the status.
    fn publish(&mut self, state: &State) {
        let point = self.board.tick(self.clock.now(), &self.syncer, self.meters.read());
        if let Some(point) = point {
            self.tell("point", &point);
        }
        self.mailbox.status.send_replace(json(&self.status(state)));
    }

    fn publish_rounds(&mut self) {
        let changed = self.board.take_changed_rounds(self.clock.now());
        if let Some(rounds) = changed {
            self.tell("rounds", &rounds);
        }
    }

    /// Tells all who watch, if anyone does.
    fn tell(&self, name: &'static str, news: &impl Serialize) {
        if self.mailbox.news.receiver_count() > 0 {
            // Nobody listens any more if this fails.
            let _ = self.mailbox.news.send((name, json(news)));
        }
    }

    fn status(&self, state: &State) -> ServerStatus {
        let sockets = state.outboxes.len() as u32;
        self.board.status(self.clock.now(), &self.syncer, self.meters.read(), sockets)
    }

    /// Tells everyone, waits for merges and saves in flight, and gives the last state.
    async fn wind_up(mut self, mut state: State, ended: Ended) -> Result<Final, ServerError> {
        if ended == Ended::Stopped {
            let bye = Bye::new(CloseCode::Restart, "the syncer stops for now: come back later");
            for (_, outbox) in std::mem::take(&mut state.outboxes) {
                outbox.close(bye.clone());
            }
        }
        while let Some(merged) = state.merges.join_next().await {
            self.merged(merged)?;
            self.drain(&mut state);
        }
        while let Some(saved) = state.saves.join_next().await {
            note_save(saved);
        }
        self.publish(&state);
        self.publish_rounds();
        let subject = self.subject().expect("no merge runs any more");
        let snapshot = self.snapshot().expect("no merge runs any more");
        Ok(Final { subject, snapshot, status: self.status(&state) })
    }
}

/// The actor's last words.
pub struct Final {
    /// Θ and where the run stands.
    pub subject: Subject,
    /// To be saved.
    pub snapshot: Snapshot,
    /// To be shown.
    pub status: ServerStatus,
}

fn json(value: &impl Serialize) -> Arc<str> {
    serde_json::to_string(value).expect("plain data").into()
}

fn start_merge(merges: &mut JoinSet<MergeResult>, job: MergeJob) {
    let fragment = job.fragment;
    merges.spawn_blocking(move || job.run().map_err(|(state, error)| (fragment, state, error)));
}

fn note_save(saved: Result<Result<(), ServerError>, tokio::task::JoinError>) {
    match saved {
        Ok(Ok(())) => tracing::debug!("snapshot saved"),
        Ok(Err(error)) => tracing::error!(%error, "snapshot not saved; the next is tried in time"),
        Err(error) => tracing::error!(%error, "saving a snapshot panicked"),
    }
}
