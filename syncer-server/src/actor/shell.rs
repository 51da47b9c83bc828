//! The actor's loop: wait, hand to the core, do what it says.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use archipelago::diloco::syncer::{Input, Syncer};
use archipelago::diloco::{ConnId, FragmentId, Fragments, Version};
use archipelago::wire::{Bye, CloseCode};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::handle::{Command, Mailbox, View};
use super::host::{Desk, Merged, json};
use super::subject::Subject;
use crate::clock::Clock;
use crate::errors::ServerError;
use crate::meters::Meters;
use crate::outbox::{Encoder, Outbox};
use crate::status::{Board, Evaluation, ServerStatus};
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

type HatReply = oneshot::Sender<(Version, Arc<Vec<f32>>)>;

/// What the loop needs beside [`Actor`].
struct State {
    encoder: Encoder,
    outboxes: BTreeMap<ConnId, Outbox>,
    merges: JoinSet<Merged>,
    saves: JoinSet<Result<(), ServerError>>,
    save_due: bool,
    hats: Vec<(FragmentId, HatReply)>,
    subjects: Vec<oneshot::Sender<Subject>>,
    finished: bool,
}

impl State {
    fn new(fragments: Arc<Fragments>) -> Self {
        Self {
            encoder: Encoder::new(fragments),
            outboxes: BTreeMap::new(),
            merges: JoinSet::new(),
            saves: JoinSet::new(),
            save_due: false,
            hats: Vec::new(),
            subjects: Vec::new(),
            finished: false,
        }
    }
}

impl Actor {
    /// Runs until the run is complete or `shutdown` resolves; then everyone has been told, and what is
    /// returned is the last state, to be saved.
    ///
    /// # Errors
    /// `Internal`: a merge panicked.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(Ended, Final), ServerError> {
        let mut state = State::new(Arc::clone(self.syncer.fragments()));
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
            self.tell("sample", &sample);
        }
    }

    fn merged(&mut self, merged: Result<Merged, tokio::task::JoinError>) -> Result<(), ServerError> {
        // The fragment's state went down with the task: only the last snapshot has it now.
        let merged = merged.map_err(|error| ServerError::Internal {
            what: format!(
                "a merge panicked ({error}); start the server again to go on from its last snapshot"
            ),
        })?;
        self.handle(Input::Merged(merged));
        Ok(())
    }

    /// Does what the core says, until it has nothing more to say.
    fn drain(&mut self, state: &mut State) {
        let State { encoder, outboxes, merges, .. } = state;
        let (board, mailbox) = (&mut self.board, &self.mailbox);
        let mut desk = Desk {
            now: self.clock.now(),
            board,
            mailbox,
            encoder,
            outboxes,
            merges,
            slow: Vec::new(),
            is_finished: false,
        };
        self.syncer.drain(&mut desk);
        while let Some(conn) = desk.slow.pop() {
            if let Some(outbox) = desk.outboxes.remove(&conn) {
                let reason = "messages pile up unread: use a faster connection, then join again";
                outbox.close(Bye::new(CloseCode::SlowReader, reason));
                self.syncer.drive(desk.now, Input::Disconnected(conn), &mut desk);
            }
        }
        state.finished |= desk.is_finished;
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
        Some(Subject {
            thetas: self.syncer.thetas()?,
            fragments: Arc::clone(self.syncer.fragments()),
            tokens_merged: self.syncer.ledger().clock_tokens(),
            rounds: self.syncer.rounds_merged(),
        })
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

fn note_save(saved: Result<Result<(), ServerError>, tokio::task::JoinError>) {
    match saved {
        Ok(Ok(())) => tracing::debug!("snapshot saved"),
        Ok(Err(error)) => tracing::error!(%error, "snapshot not saved; the next is tried in time"),
        Err(error) => tracing::error!(%error, "saving a snapshot panicked"),
    }
}
