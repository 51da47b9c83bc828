//! The checker: watches everything that passes the syncer and knows what must never happen.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::Violation;
use super::books::{Books, Life};
use super::ghosts::Ghosts;
use super::receipts::Receipts;
use super::spans::Spans;
use archipelago::diloco::MergeOutcome;
use archipelago::diloco::syncer::{Event, Syncer};
use archipelago::diloco::{Decision, FragmentState, Verified};
use archipelago::wire::{
    ConnId, Fate, FragmentId, LearnerId, Message, Millis, Round, Serial, Update, Version,
};

/// What is true of a run, from outside.
#[derive(Clone)]
pub(super) struct Audit {
    /// What a crash of the syncer takes back.
    books: Books,
    /// What each version stands for, for ever.
    contents: BTreeMap<(FragmentId, Version), u64>,
    /// Who is behind each connection of this syncer process.
    learners: BTreeMap<ConnId, LearnerId>,
    /// Updates taken in that have no fate yet.
    pending: BTreeMap<(LearnerId, FragmentId, Serial), u32>,
    /// The base of each change that was published.
    changes: BTreeMap<(FragmentId, Version), Version>,
    versions: BTreeMap<FragmentId, Version>,
    in_flight: BTreeMap<FragmentId, Round>,
    launched: Option<Millis>,
    finishing: bool,
    receipts: Receipts,
    /// Which machine a learner runs on.
    homes: BTreeMap<LearnerId, u32>,
    /// The progress in updates that were sent, until they are settled.
    sent: BTreeMap<(u32, FragmentId, Serial), (u32, Spans)>,
    /// Steps that were merged by a syncer that crashed, and after its last snapshot.
    undone: BTreeMap<(Life, FragmentId), Spans>,
    trace: Sha256,
    broken: Option<Violation>,
}

impl Audit {
    pub(super) fn new(syncer: &Syncer) -> Self {
        let mut audit = Self {
            books: Books::new(syncer.spec().model.context),
            contents: BTreeMap::new(),
            learners: BTreeMap::new(),
            pending: BTreeMap::new(),
            changes: BTreeMap::new(),
            versions: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            launched: None,
            finishing: false,
            receipts: Receipts::default(),
            homes: BTreeMap::new(),
            sent: BTreeMap::new(),
            undone: BTreeMap::new(),
            trace: Sha256::new(),
            broken: None,
        };
        for (fragment, state) in syncer.fragments().ids().zip(syncer.states()) {
            audit.note_content(fragment, state);
            audit.versions.insert(fragment, state.version);
        }
        audit
    }

    /// The books as they are now, to be put back after a crash.
    pub(super) fn books(&self) -> &Books {
        &self.books
    }

    /// The syncer started again from a snapshot of when `books` were true.
    pub(super) fn roll_back(&mut self, books: &Books, syncer: &Syncer) {
        for (place, steps) in self.books.all_steps() {
            self.undone.entry(*place).or_default().add(steps);
        }
        self.receipts = Receipts::default();
        self.books = books.clone();
        self.books.allow_more(syncer);
        let versions = syncer.fragments().ids().zip(syncer.states());
        self.versions = versions.map(|(fragment, state)| (fragment, state.version)).collect();
        self.learners.clear();
        self.pending.clear();
        self.changes.clear();
        self.in_flight.clear();
        self.launched = None;
    }

    /// The owner ends the run: from now on neither τ nor the floor bind.
    pub(super) fn on_finish(&mut self) {
        self.finishing = true;
    }

    /// A machine that forges nothing sends an update; `progress` is what is in it.
    pub(super) fn on_update_sent(&mut self, machine: u32, life: u32, update: &Update, ghosts: &Ghosts) {
        let (fragment, serial) = (update.fragment, update.serial);
        let Some(progress) = ghosts.coded(fragment, serial) else { return };
        let (said, held) = ((u64::from(update.steps), update.tokens), ghosts.amount(progress));
        if ghosts.is_exact() && said != held {
            self.verify(Err(Violation::Account { machine, fragment, said, held }));
        }
        self.sent.insert((machine, fragment, serial), (life, progress.clone()));
    }

    /// The syncer takes an update in.
    pub(super) fn on_arrived(&mut self, conn: ConnId, update: &Verified, syncer: &Syncer) {
        let Some(&learner) = self.learners.get(&conn) else { return };
        // Another run's update and one on no fragment end the connection instead.
        if update.run == syncer.run() && update.fragment.0 < syncer.fragments().count() {
            *self.pending.entry((learner, update.fragment, update.serial)).or_default() += 1;
        }
    }

    /// The syncer hears that a connection is gone.
    pub(super) fn on_gone(&mut self, conn: ConnId) {
        self.learners.remove(&conn);
    }

    /// The machine on which a learner runs.
    pub(super) fn home(&self, learner: LearnerId) -> Option<u32> {
        self.homes.get(&learner).copied()
    }

    /// The syncer has done all that it wanted to.
    pub(super) fn on_drained(&mut self) {
        let told = self.receipts.check();
        self.verify(told);
    }

    /// The syncer sent a message, to `machine` if the connection stands.
    pub(super) fn on_sent(&mut self, conn: ConnId, machine: Option<u32>, message: &Message) {
        let what = match message {
            Message::Welcome(welcome) => {
                self.learners.insert(conn, welcome.learner);
                self.homes.extend(machine.map(|machine| (welcome.learner, machine)));
                return;
            }
            Message::Receipt { serial, fragment, fate, .. } => {
                if let Some(&learner) = self.learners.get(&conn) {
                    return self.receipts.say(learner, *fragment, *serial, *fate);
                }
                "a receipt"
            }
            Message::Bye(_) => return,
            Message::Lease { grant, .. } => match self.learners.get(&conn) {
                Some(&learner) => {
                    let booked = self.books.grant(learner, *grant);
                    return self.verify(booked);
                }
                None => "a lease",
            },
            Message::Merged(merged) => {
                let (fragment, base, to) = (merged.fragment, merged.base, merged.version);
                let from = self.versions.get(&fragment).copied().unwrap_or_default();
                // One that is not quite up to date gets older changes again, each as it was.
                let fits = match self.changes.get(&(fragment, to)) {
                    Some(&before) => base == before,
                    None => base == from && to > from,
                };
                self.changes.insert((fragment, to), base);
                if !fits {
                    self.verify(Err(Violation::Chain { fragment, from, base, to }));
                }
                "a merged change"
            }
            _ => "a message",
        };
        if !self.learners.contains_key(&conn) {
            self.verify(Err(Violation::Stranger { conn, what }));
        }
    }

    /// The syncer said what it did.
    pub(super) fn on_event(&mut self, now: Millis, syncer: &Syncer, event: &Event) {
        if let Event::Settled { .. } | Event::Merged { .. } = event {
            self.trace.update(now.0.to_le_bytes());
            self.trace.update(rmp_serde::to_vec(event).expect("memory takes every byte"));
        }
        match *event {
            Event::Launched { round, fragment, step_ms, .. } => {
                self.on_launched(now, syncer, round, fragment, step_ms);
            }
            Event::Decided { round, fragment, decision: Decision::Abandon { .. } } => {
                self.on_over(round, fragment);
            }
            Event::MergeFailed { round, fragment, .. } => self.on_over(round, fragment),
            Event::Merged { round, fragment, version, .. } => {
                let base = self.versions.insert(fragment, version).unwrap_or_default();
                // Nobody may have been there to hear of it when it was new.
                self.changes.entry((fragment, version)).or_insert(base);
                self.on_over(round, fragment);
            }
            Event::Settled { fragment, learner, serial, fate, .. } => {
                self.on_settled(learner, fragment, serial);
                self.books.settle(learner, fragment, &fate);
                self.on_fate(learner, fragment, serial, fate);
            }
            Event::LeaseReturned { lease, windows, .. } => {
                let booked = self.books.take_back(lease, windows);
                self.verify(booked);
            }
            _ => {}
        }
    }

    /// A merge job is done.
    pub(super) fn on_outcome(&mut self, outcome: &MergeOutcome) {
        let MergeOutcome { round, fragment, state, .. } = outcome;
        let values = state.theta.iter().chain(&*state.hat).chain(&*state.momentum);
        if !values.clone().all(|value| value.is_finite()) {
            self.verify(Err(Violation::NotFinite { fragment: *fragment, round: *round }));
        }
        for value in values {
            self.trace.update(value.to_bits().to_le_bytes());
        }
        self.note_content(*fragment, state);
    }

    /// A learner holds `hats`: fragment, version, Θ̂.
    ///
    /// # Errors
    /// [`Violation::Drift`].
    pub(super) fn check_hats(
        &self,
        machine: u32,
        hats: &[(FragmentId, Version, Vec<f32>)],
    ) -> Result<(), Violation> {
        for (fragment, version, hat) in hats {
            if self.contents.get(&(*fragment, *version)) != Some(&content(hat)) {
                return Err(Violation::Drift { machine, fragment: *fragment, version: *version });
            }
        }
        Ok(())
    }

    /// Compares the syncer's accounts with what passed; `trained` gives the tokens that the learner
    /// behind an honest name really trained on.
    ///
    /// # Errors
    /// [`Violation::NoFate`], [`Violation::Unleased`], [`Violation::Untrained`], [`Violation::Ledger`].
    pub(super) fn check_accounts(
        &self,
        syncer: &Syncer,
        trained: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Violation> {
        for &(learner, fragment, serial) in self.pending.keys() {
            if syncer.unsettled(learner, fragment) != Some(serial) {
                return Err(Violation::NoFate { learner, fragment, serial });
            }
        }
        self.books.check(syncer, trained)
    }

    /// Whether all that a process trained on is somewhere.
    ///
    /// # Errors
    /// [`Violation::WindowLost`].
    pub(super) fn check_windows(&self, life: Life, ghosts: &Ghosts) -> Result<(), Violation> {
        let missing = ghosts.missing(|fragment| {
            let mut elsewhere = self.books.steps(life, fragment);
            self.undone.get(&(life, fragment)).into_iter().for_each(|undone| elsewhere.add(undone));
            elsewhere
        });
        let (machine, life) = life;
        let lost = |(fragment, step)| Err(Violation::WindowLost { machine, life, fragment, step });
        missing.map_or(Ok(()), lost)
    }

    /// # Errors
    /// The first violation seen.
    pub(super) fn verdict(&self) -> Result<(), Violation> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.trace.clone().finalize().into()
    }

    fn on_launched(
        &mut self,
        now: Millis,
        syncer: &Syncer,
        round: Round,
        fragment: FragmentId,
        step_ms: f64,
    ) {
        let exchange = &syncer.spec().exchange;
        let floor_ms = f64::from(exchange.sync_every) * step_ms / f64::from(syncer.fragments().count());
        // Casting drops the fraction: times are whole milliseconds.
        let floor_ms = floor_ms as u64;
        let in_flight = self.in_flight.len() as u32;
        let limit = syncer.config().quorum.rounds_in_flight.max(1);
        let full = !self.finishing && in_flight >= limit;
        if self.in_flight.insert(fragment, round).is_some() || full {
            self.verify(Err(Violation::InFlight { round, fragment, in_flight }));
        }
        let gap_ms = self.launched.replace(now).map(|last| now.since(last));
        if let Some(gap_ms) = gap_ms.filter(|&gap_ms| gap_ms < floor_ms && !self.finishing) {
            self.verify(Err(Violation::Floor { round, gap_ms, floor_ms }));
        }
    }

    fn on_over(&mut self, round: Round, fragment: FragmentId) {
        if self.in_flight.get(&fragment) == Some(&round) {
            self.in_flight.remove(&fragment);
        }
    }

    fn on_settled(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial) {
        match self.pending.get_mut(&(learner, fragment, serial)) {
            None => self.verify(Err(Violation::FateTwice { learner, fragment, serial })),
            Some(1) => {
                self.pending.remove(&(learner, fragment, serial));
            }
            Some(count) => *count -= 1,
        }
    }

    /// Follows the progress in an update to its end, and looks whether its learner is told.
    fn on_fate(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial, fate: Fate) {
        let is_here = self.learners.values().any(|other| *other == learner);
        let told = self.receipts.settle(learner, fragment, serial, fate, is_here);
        self.verify(told);
        let sent = self.homes.get(&learner).and_then(|&machine| {
            let (life, steps) = self.sent.remove(&(machine, fragment, serial))?;
            Some(((machine, life), steps))
        });
        if let (Some((life, steps)), Fate::Merged { .. }) = (sent, fate) {
            let booked = self.books.merge_steps(life, fragment, &steps);
            self.verify(booked);
        }
    }

    fn note_content(&mut self, fragment: FragmentId, state: &FragmentState) {
        let version = state.version;
        let content = content(&state.hat);
        if self.contents.insert((fragment, version), content).is_some_and(|before| before != content) {
            self.verify(Err(Violation::TwoContents { fragment, version }));
        }
    }

    fn verify(&mut self, result: Result<(), Violation>) {
        if let (None, Err(violation)) = (&self.broken, result) {
            self.broken = Some(violation);
        }
    }
}

/// First 8 bytes of the SHA-256 of the values' bits.
fn content(values: &[f32]) -> u64 {
    let mut sha = Sha256::new();
    for value in values {
        sha.update(value.to_bits().to_le_bytes());
    }
    let digest = sha.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("SHA-256 has 32 bytes"))
}
