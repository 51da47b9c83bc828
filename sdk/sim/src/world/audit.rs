//! Invariant checker. It observes the syncer's messages and events, its crashes and recoveries, and records violations.

use std::collections::{BTreeMap, VecDeque};

use archipelago_core::bytes::from_f32s;
use archipelago_core::diloco::syncer::{Event, Recovery, Syncer};
use archipelago_core::diloco::{Decision, Entry, FragmentState, MergeOutcome, Verified};
use archipelago_core::wire::{
    ConnId, Fate, FragmentId, LearnerId, Message, Millis, Round, Serial, Update, Version,
};
use sha2::{Digest, Sha256};

use super::machine::Machine;
use super::receipt_log::{ReceiptLog, Receipts};
use super::shadow_ledger::{OwnerCommands, ProcessKey, ShadowEntry, ShadowLedger, Spans};
use super::step_lineage::StepLineage;
use super::{Violation, World};

/// Number of values hashed at a time.
const DIGESTED: usize = 1 << 12;

/// Facts that the checker derives from the observed traffic, events and decisions of a run.
#[derive(Clone)]
pub(super) struct Audit {
    /// Ledger with all decisions.
    pub(super) ledger: ShadowLedger,
    /// Ledger with the decisions that are known to be on the disk. The next field has the later ones, with their row
    /// numbers; a crash may revoke them.
    durable_ledger: ShadowLedger,
    later_entries: VecDeque<(u64, ShadowEntry)>,
    /// Number of the newest row that is known to be on the disk.
    pub(super) safe: u64,
    /// Messages that were really sent to learners.
    receipt_log: ReceiptLog,
    pub(super) orders: OwnerCommands,
    /// Credited tokens of updates that the tape records as merged, until the syncer reports the fate.
    pub(super) merged: BTreeMap<(LearnerId, FragmentId, Serial), u64>,
    /// Digest of Θ̂ for each version of a fragment, kept for the whole run.
    contents: BTreeMap<(FragmentId, Version), u64>,
    /// Digest of Θ and momentum for each version of a fragment.
    wholes: BTreeMap<(FragmentId, Version), u64>,
    /// Learner of each open connection of the current syncer process.
    pub(super) learners: BTreeMap<ConnId, LearnerId>,
    /// Number of received copies of each update that has no fate yet.
    pub(super) pending: BTreeMap<(LearnerId, FragmentId, Serial), u32>,
    /// Base version of each published change, by the version to which it leads.
    pub(super) changes: BTreeMap<(FragmentId, Version), Version>,
    pub(super) versions: BTreeMap<FragmentId, Version>,
    pub(super) in_flight: BTreeMap<FragmentId, Round>,
    pub(super) launched: Option<Millis>,
    pub(super) finishing: bool,
    pub(super) receipts: Receipts,
    /// Machine of each learner.
    pub(super) homes: BTreeMap<LearnerId, u32>,
    /// Incarnation and steps of each sent update, until its fate is known and on the disk.
    pub(super) sent: BTreeMap<(u32, FragmentId, Serial), (u32, Spans)>,
    /// Merged steps that were discarded when the owner restored a backup.
    pub(super) undone: BTreeMap<(ProcessKey, FragmentId), Spans>,
    trace: Sha256,
    broken: Option<Violation>,
}

impl Audit {
    pub(super) fn new(syncer: &Syncer) -> Self {
        let ledger = ShadowLedger::new(syncer.spec().model.context);
        let mut audit = Self {
            durable_ledger: ledger.clone(),
            ledger,
            later_entries: VecDeque::new(),
            safe: 0,
            receipt_log: ReceiptLog::default(),
            orders: OwnerCommands::default(),
            merged: BTreeMap::new(),
            contents: BTreeMap::new(),
            wholes: BTreeMap::new(),
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

    /// Records that the owner ends the run. From now on, τ and the minimum time between launches no longer apply.
    pub(super) fn on_finish(&mut self) {
        self.finishing = true;
    }

    /// Records an update sent by an honest machine. `lineage` has the steps in it.
    pub(super) fn on_update_sent(&mut self, machine: u32, life: u32, update: &Update, lineage: &StepLineage) {
        let (fragment, serial) = (update.fragment, update.serial);
        let Some(progress) = lineage.coded(fragment, serial) else { return };
        let (said, held) = ((u64::from(update.steps), update.tokens), lineage.amount(progress));
        if lineage.is_exact() && said != held {
            self.verify(Err(Violation::Account { machine, fragment, said, held }));
        }
        self.sent.insert((machine, fragment, serial), (life, progress.clone()));
    }

    /// Records an update that the syncer receives.
    pub(super) fn on_arrived(&mut self, conn: ConnId, update: &Verified, syncer: &Syncer) {
        let Some(&learner) = self.learners.get(&conn) else { return };
        // An update for another run or an unknown fragment has no fate, because it ends the connection.
        if update.run == syncer.run() && update.fragment.0 < syncer.fragments().count() {
            *self.pending.entry((learner, update.fragment, update.serial)).or_default() += 1;
        }
    }

    /// Records that the syncer has noticed the end of a connection.
    pub(super) fn on_gone(&mut self, conn: ConnId) {
        self.learners.remove(&conn);
    }

    /// Returns the machine on which a learner runs.
    pub(super) fn home(&self, learner: LearnerId) -> Option<u32> {
        self.homes.get(&learner).copied()
    }

    /// After the syncer's effects were processed, checks that every receipt and merge was reported.
    pub(super) fn on_drained(&mut self) {
        let result = self.receipts.check();
        self.verify(result);
        if let Some((&(learner, fragment, serial), _)) = self.merged.first_key_value() {
            self.verify(Err(Violation::NoFate { learner, fragment, serial }));
        }
    }

    /// Checks a message that the syncer sends on `conn`. `machine` is the receiver, if the connection is open.
    pub(super) fn on_sent(&mut self, conn: ConnId, machine: Option<u32>, message: &Message) {
        let what = match message {
            Message::Welcome(welcome) => {
                self.learners.insert(conn, welcome.learner);
                self.receipt_log.record_learner(conn, welcome.learner);
                self.homes.extend(machine.map(|machine| (welcome.learner, machine)));
                return;
            }
            Message::Receipt { serial, fragment, fate, .. } => {
                if let Some(&learner) = self.learners.get(&conn) {
                    return self.receipts.record(learner, *fragment, *serial, *fate);
                }
                "a receipt"
            }
            Message::Bye(_) => return,
            Message::Lease { grant, .. } => match self.learners.get(&conn) {
                Some(&learner) => {
                    let what = || format!("lease {}", grant.lease);
                    let is_known = self.ledger.has_lease(grant.lease);
                    let recorded =
                        is_known.then_some(()).ok_or_else(|| Violation::Unrecorded { learner, what: what() });
                    return self.verify(recorded);
                }
                None => "a lease",
            },
            Message::Merged(merged) => {
                let (fragment, base, to) = (merged.fragment, merged.base, merged.version);
                let from = self.versions.get(&fragment).copied().unwrap_or_default();
                // A learner that is slightly behind receives older changes again, unchanged.
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

    /// Checks an event that the syncer reports.
    pub(super) fn on_event(&mut self, now: Millis, syncer: &Syncer, event: &Event) {
        if let Event::Settled { .. } | Event::Merged { .. } | Event::RolledBack { .. } = event {
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
                // The change may have been sent to no learner when it was made.
                self.changes.entry((fragment, version)).or_insert(base);
                self.on_over(round, fragment);
            }
            Event::RolledBack { fragment, version, .. } => {
                let base = self.versions.insert(fragment, version).unwrap_or_default();
                self.changes.entry((fragment, version)).or_insert(base);
            }
            Event::Settled { fragment, learner, serial, fate, .. } => {
                self.on_settled(learner, fragment, serial);
                self.on_fate(learner, fragment, serial, fate);
            }
            _ => {}
        }
    }

    /// Checks the result of a merge job.
    pub(super) fn on_outcome(&mut self, outcome: &MergeOutcome) {
        let MergeOutcome { round, fragment, state, .. } = outcome;
        let vectors = [&state.theta, &state.hat, &state.momentum];
        if !vectors.iter().all(|vector| vector.iter().all(|value| value.is_finite())) {
            self.verify(Err(Violation::NotFinite { fragment: *fragment, round: *round }));
        }
        vectors.iter().for_each(|vector| digest(&mut self.trace, vector));
        self.note_content(*fragment, state);
    }

    /// Checks a learner's `hats` (fragment, version, Θ̂) against the versions that the syncer has published.
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

    /// Compares the syncer's ledger with the observed traffic. `trained` returns the tokens that an honest learner has
    /// really trained on, by its name.
    ///
    /// # Errors
    /// [`Violation::NoFate`], [`Violation::Unleased`], [`Violation::Untrained`], [`Violation::Ledger`].
    pub(super) fn check_accounts(
        &self,
        syncer: &Syncer,
        trained: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Violation> {
        for &(learner, fragment, serial) in self.pending.keys() {
            if syncer.unresolved(learner, fragment) != Some(serial) {
                return Err(Violation::NoFate { learner, fragment, serial });
            }
        }
        self.ledger.check(syncer.ledger(), trained)
    }

    /// Checks that the progress of every step of the process `life` is in θ, merged, discarded, or undone by a backup.
    ///
    /// # Errors
    /// [`Violation::WindowLost`].
    pub(super) fn check_windows(&self, life: ProcessKey, lineage: &StepLineage) -> Result<(), Violation> {
        let missing = lineage.missing(|fragment| {
            let mut elsewhere = self.ledger.steps(life, fragment);
            self.undone.get(&(life, fragment)).into_iter().for_each(|undone| elsewhere.add(undone));
            elsewhere
        });
        let (machine, life) = life;
        let lost = |(fragment, step)| Err(Violation::WindowLost { machine, life, fragment, step });
        missing.map_or(Ok(()), lost)
    }

    /// Returns whether all checks so far have passed.
    ///
    /// # Errors
    /// The first violation.
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
        // Times are whole milliseconds, so the fraction is dropped.
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

    /// Checks that the receipt matches the fate, and that a merged update is on the tape.
    fn on_fate(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial, fate: Fate) {
        let is_here = self.learners.values().any(|other| *other == learner);
        let result = self.receipts.check_fate(learner, fragment, serial, fate, is_here);
        self.verify(result);
        match fate {
            Fate::Merged { tokens, .. } => {
                if self.merged.remove(&(learner, fragment, serial)) != Some(tokens) {
                    let what = format!("update {serial} on fragment {fragment}");
                    self.verify(Err(Violation::Unrecorded { learner, what }));
                }
            }
            _ => {
                if let Some(&machine) = self.homes.get(&learner) {
                    self.sent.remove(&(machine, fragment, serial));
                }
            }
        }
    }

    pub(super) fn note_content(&mut self, fragment: FragmentId, state: &FragmentState) {
        let version = state.version;
        let content = content(&state.hat);
        let whole = content_of(&[&state.theta, &state.momentum]);
        let is_other = |before: u64| before != whole;
        if self.wholes.insert((fragment, version), whole).is_some_and(is_other) {
            self.verify(Err(Violation::TwoContents { fragment, version }));
        }
        if self.contents.insert((fragment, version), content).is_some_and(|before| before != content) {
            self.verify(Err(Violation::TwoContents { fragment, version }));
        }
    }

    pub(super) fn verify(&mut self, result: Result<(), Violation>) {
        if let (None, Err(violation)) = (&self.broken, result) {
            self.broken = Some(violation);
        }
    }
}

fn content(values: &[f32]) -> u64 {
    content_of(&[values])
}

/// Adds the bits of `values` to a hash, in large chunks, which is faster than one by one.
fn digest(sha: &mut Sha256, values: &[f32]) {
    values.chunks(DIGESTED).for_each(|values| sha.update(from_f32s(values)));
}

/// Returns the first 8 bytes of the SHA-256 of the vectors' bits.
fn content_of(vectors: &[&[f32]]) -> u64 {
    let mut sha = Sha256::new();
    vectors.iter().for_each(|vector| digest(&mut sha, vector));
    let digest = sha.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("SHA-256 has 32 bytes"))
}

/// Ledger with the decisions on the disk, and the later decisions with their row numbers, in order.
pub(super) type AuditState = (ShadowLedger, VecDeque<(u64, ShadowEntry)>);

impl Audit {
    /// Records a decision of the syncer in row `seq`.
    pub(super) fn on_entry(&mut self, seq: u64, entry: &Entry) {
        self.orders.record(seq, entry);
        match entry {
            Entry::Leased { learner, grant } => self.apply(seq, ShadowEntry::Granted(*learner, *grant)),
            &Entry::Forgotten { learner } => self.receipt_log.forget(learner),
            &Entry::Returned { lease, windows, .. } => self.apply(seq, ShadowEntry::Returned(lease, windows)),
            Entry::Merged(merge) => {
                for part in &merge.parts {
                    let (learner, fragment, serial) = (part.learner, merge.fragment, part.serial);
                    let steps = self.homes.get(&learner).and_then(|&machine| {
                        let (life, steps) = self.sent.get(&(machine, fragment, serial))?;
                        Some(((machine, *life), steps.clone()))
                    });
                    let tokens = part.tokens;
                    self.merged.insert((learner, fragment, serial), tokens);
                    self.apply(seq, ShadowEntry::Merged { learner, fragment, serial, tokens, steps });
                }
            }
            _ => {}
        }
    }

    /// Records that all rows up to `seq` are on the disk.
    pub(super) fn on_safe(&mut self, seq: u64) {
        self.safe = self.safe.max(seq);
        while let Some((_, entry)) = self.later_entries.pop_front_if(|(row, _)| *row <= seq) {
            if let ShadowEntry::Merged { fragment, serial, steps: Some(((machine, _), _)), .. } = &entry {
                self.sent.remove(&(*machine, *fragment, *serial));
            }
            // The entry was checked when it was added to the first ledger.
            let _ = self.durable_ledger.apply(&entry);
        }
    }

    /// Records a message that is really sent to a learner.
    pub(super) fn on_delivered(&mut self, conn: ConnId, message: &Message) {
        self.receipt_log.record_message(conn, message);
    }

    /// Records that a version of a fragment is really sent to a machine.
    pub(super) fn on_version_delivered(&mut self, machine: u32, fragment: FragmentId, version: Version) {
        let learner = self.homes.iter().find(|(_, home)| **home == machine).map(|(learner, _)| *learner);
        if let Some(learner) = learner {
            self.receipt_log.record_version(learner, fragment, version);
        }
    }

    /// Returns the number of merged updates whose learners were notified.
    pub(super) fn notified_merges(&self) -> u64 {
        self.receipt_log.merges()
    }

    /// Returns the ledger with the decisions on the disk, and the later decisions, which a crash may revoke.
    pub(super) fn backup_state(&self) -> AuditState {
        (self.durable_ledger.clone(), self.later_entries.clone())
    }

    /// Records that the owner restored a backup. The argument is the checker's state at the time of the backup.
    pub(super) fn on_backup_restored(&mut self, (ledger, later_entries): AuditState) {
        for (place, steps) in self.ledger.all_steps() {
            self.undone.entry(*place).or_default().add(steps);
        }
        self.receipt_log.restore_backup(&ledger);
        (self.durable_ledger, self.later_entries, self.safe) = (ledger, later_entries, 0);
    }

    /// Checks a recovery from a tape that ends with row `last`.
    pub(super) fn on_recovered(&mut self, last: u64, recovery: &Recovery) {
        if last < self.safe {
            self.verify(Err(Violation::RowsLost { safe: self.safe, last }));
        }
        self.on_safe(last);
        // Decisions that did not reach the disk are void.
        self.later_entries.clear();
        self.ledger = self.durable_ledger.clone();
        self.merged.clear();
        let result = self.receipt_log.check(recovery, &self.ledger);
        self.verify(result);
        self.orders.discard_after(last);
        self.finishing = self.orders.is_finishing();
        let obeyed = self.orders.check(recovery.record());
        self.verify(obeyed);
        let exact = self.ledger.check(&recovery.record().ledger, |_| None);
        self.verify(exact);
        for (fragment, state) in (0..).map(FragmentId).zip(recovery.states()) {
            self.note_content(fragment, state);
        }
    }

    /// Resets the facts about the syncer's process before a new process serves.
    pub(super) fn on_started(&mut self, syncer: &Syncer) {
        self.receipts = Receipts::default();
        let versions = syncer.fragments().ids().zip(syncer.states());
        self.versions = versions.map(|(fragment, state)| (fragment, state.version)).collect();
        self.learners.clear();
        self.pending.clear();
        self.changes.clear();
        self.in_flight.clear();
        self.launched = None;
    }

    fn apply(&mut self, seq: u64, entry: ShadowEntry) {
        let result = self.ledger.apply(&entry);
        self.verify(result);
        self.later_entries.push_back((seq, entry));
    }
}

impl World {
    /// Requires from now on that the updates of each machine are merged within the given number of milliseconds, one
    /// per machine, while it trains and is connected. [`Self::check`] reports a violation. Any fault or command that
    /// affects the machine or the syncer restarts its time.
    pub fn expect_merges(&mut self, within_ms: &[u64]) {
        for (machine, &ms) in self.machines.iter_mut().zip(within_ms) {
            machine.merged_within_ms = Some(ms);
            machine.well_since = self.now;
        }
    }

    /// Restarts the time of [`Self::expect_merges`] at `at`, for `machine` or for all machines.
    pub(super) fn restart_merge_timeout(&mut self, machine: Option<u32>, at: Millis) {
        for (i, there) in (0..).zip(&mut self.machines) {
            if machine.is_none_or(|machine| machine == i) {
                there.well_since = there.well_since.max(at);
            }
        }
    }

    /// Checks the requirement of [`Self::expect_merges`].
    ///
    /// # Errors
    /// [`Violation::Starved`].
    pub(super) fn check_starving(&self) -> Result<(), Violation> {
        let Some(host) = self.host.as_ref().filter(|host| !self.finished && !host.core.status().paused)
        else {
            return Ok(());
        };
        if host.core.status().finishing {
            return Ok(());
        }
        let starved = (0..).zip(&self.machines).find_map(|(machine, there)| {
            let waited_ms = self.now.since(there.well_since.max(there.merged_at));
            let is_owed = there.merged_within_ms.is_some_and(|ms| waited_ms > ms) && self.is_well(there);
            is_owed.then_some(Violation::Starved { machine, waited_ms })
        });
        starved.map_or(Ok(()), Err)
    }

    /// Returns true if no fault or command prevents the machine's updates from being merged.
    fn is_well(&self, machine: &Machine) -> bool {
        let Some(process) = &machine.process else { return false };
        let swallowed =
            process.conn.and_then(|conn| self.conns.get(&conn)).is_some_and(|conn| conn.swallowed);
        !(swallowed || machine.frozen || machine.cut || machine.forged || machine.paused || process.leaving)
    }
}
