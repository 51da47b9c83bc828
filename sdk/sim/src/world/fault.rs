//! Faults and commands of a world, and their injection.

use archipelago_core::diloco::syncer;
use archipelago_core::driver;
use archipelago_core::wire::{Code, LearnerId, Message, Millis, RunId, Share, Update, Version};
use serde::{Deserialize, Serialize};

use super::attacks::Forger;
use super::link::LinkDirection;
use super::machine::Machine;
use super::{Ailment, Attack, Damage, Loss, Rng, World};

/// Fault, or a person's command, that is injected into a world. Machines are indices into `WorldSpec::machines`. A
/// fault has no effect if there is no such machine or if it does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Kills the learner's process (SIGKILL). Its memory is lost, and its sockets are closed.
    Kill(u32),
    /// Removes the machine from the network without closing its sockets.
    Vanish(u32),
    /// Starts a new process on the machine, with the same key.
    Restart(u32),
    /// Stops the learner's process (SIGSTOP). Its sockets stay open.
    Freeze(u32),
    /// Resumes the learner's process (SIGCONT).
    Thaw(u32),
    /// Sets the factor on the duration of the machine's steps.
    Crawl(u32, f64),
    /// Sets the one-way latency of the machine's link in milliseconds, for everything sent from now on.
    Move(u32, u64),
    /// Breaks the connection. Data in flight is lost.
    Break(u32),
    /// Cuts the link between machine and syncer. Neither end is notified.
    Partition(u32),
    /// Restores the link. Delayed data is transferred first.
    Heal(u32),
    /// Makes a router lose the state of the current connection. From now on everything sent on this connection is lost
    /// without notice. A new connection works.
    Swallow(u32),
    /// Pauses or resumes training, as the learner's owner may do.
    Pause(u32, bool),
    /// Ends the learner's process after its last messages, as the learner's owner may do.
    Leave(u32),
    /// Forges the learner's messages from now on in the given way, or no longer.
    Poison(u32, Option<Poison>),
    /// Kills the syncer's process (SIGKILL).
    CrashSyncer,
    /// Cuts the power: the syncer's process dies, and the given loss affects its unsynced writes.
    LosePower(Loss),
    /// Starts a new syncer from its disk.
    RestartSyncer,
    /// Damages synced data, if no syncer runs.
    Damage(Damage),
    /// Restores the files to their state before the damage, if no syncer runs.
    Mend,
    /// Sets the current fault of the syncer's disk, or none.
    DiskFails(Option<Ailment>),
    /// Damages the newest undamaged snapshot.
    TearSnapshot,
    /// Makes the owner's backup of the run's folder.
    BackUp,
    /// Restores the owner's backup, if no syncer runs. The backup is kept.
    PutBack,
    /// Hides or shows the browser page of the machine's learner.
    Hide(u32, bool),
    /// Pauses or resumes the run, as its owner may do.
    Hold(bool),
    /// Limits the learner's duty cycle, 0.001 to 1, as the run's owner may do.
    Pace(u32, f64),
    /// Disconnects the learner for a number of milliseconds, as the run's owner may do.
    Drop(u32, u32),
    /// Ends the run, as its owner may do.
    Finish,
}

impl Fault {
    /// Returns the affected machine, or `None` for faults of the syncer.
    pub(super) fn machine(self) -> Option<u32> {
        match self {
            Self::Kill(i)
            | Self::Vanish(i)
            | Self::Restart(i)
            | Self::Freeze(i)
            | Self::Thaw(i)
            | Self::Crawl(i, _)
            | Self::Move(i, _)
            | Self::Break(i)
            | Self::Partition(i)
            | Self::Heal(i)
            | Self::Swallow(i)
            | Self::Pause(i, _)
            | Self::Hide(i, _)
            | Self::Leave(i)
            | Self::Pace(i, _)
            | Self::Drop(i, _)
            | Self::Poison(i, _) => Some(i),
            Self::CrashSyncer
            | Self::LosePower(_)
            | Self::RestartSyncer
            | Self::Damage(_)
            | Self::Mend
            | Self::DiskFails(_)
            | Self::TearSnapshot
            | Self::BackUp
            | Self::PutBack
            | Self::Hold(_)
            | Self::Finish => None,
        }
    }
}

/// Forgery of a learner's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Poison {
    /// Body with a scale or value that is not finite.
    NotFinite,
    /// Body with a scale or value far beyond any that training reaches.
    Huge,
    /// Body that is one byte too short.
    Shape,
    /// Body in which a bit was flipped after the checksum was computed.
    BitFlip,
    /// Every update is sent twice.
    Replay,
    /// Run id of another run.
    WrongRun,
    /// Base version that differs from the round's.
    StaleBase,
    /// Token count a thousand times too high.
    Inflation,
    /// Step and token counts of zero.
    Empty,
    /// Fragment that does not exist.
    NoFragment,
    /// A well-formed attack.
    Lie(Attack),
}

impl Poison {
    /// All forgeries except the attacks.
    pub const ALL: [Self; 10] = [
        Self::NotFinite,
        Self::Huge,
        Self::Shape,
        Self::BitFlip,
        Self::Replay,
        Self::WrongRun,
        Self::StaleBase,
        Self::Inflation,
        Self::Empty,
        Self::NoFragment,
    ];

    /// Returns the messages that a learner sends instead of `message`.
    pub(super) fn forge(self, message: Message, mut forger: Forger<'_>) -> Vec<Message> {
        let code = forger.run.exchange.code;
        if let Self::Lie(attack) = self {
            return forger.forge_message(attack, message).into_iter().collect();
        }
        let Message::Update(mut update) = message else { return vec![message] };
        let honest = update.clone();
        match self {
            Self::NotFinite => fill_first(&mut update, code, [0x80, 0x7f]),
            // The scale is 2⁶⁰ as bfloat16.
            Self::Huge => fill_first(&mut update, code, [0x80, 0x5d]),
            Self::Shape => {
                update.body.pop();
                update.checksum = archipelago_core::diloco::checksum(&update.body);
            }
            Self::BitFlip => {
                if let Some(last) = update.body.last_mut() {
                    *last ^= 1;
                }
            }
            Self::Replay => return vec![Message::Update(honest.clone()), Message::Update(honest)],
            Self::WrongRun => update.run = RunId(update.run.0 ^ 1),
            Self::StaleBase => update.base = Version(update.base.0 ^ 1),
            Self::Inflation => update.tokens = update.tokens.saturating_mul(1_000),
            Self::Empty => (update.steps, update.tokens) = (0, 0),
            Self::NoFragment => update.fragment.0 = u16::MAX,
            Self::Lie(_) => {}
        }
        vec![Message::Update(update)]
    }
}

/// Overwrites the first scale of the body with a bfloat16. In a body without scales, overwrites the first value.
fn fill_first(update: &mut Update, code: Code, [low, high]: [u8; 2]) {
    // A bfloat16 is the upper half of an `f32`, the last two of its little-endian bytes.
    let forged: &[u8] = if code == Code::F32 { &[0, 0, low, high] } else { &[low, high] };
    if let Some(first) = update.body.get_mut(..forged.len()) {
        first.copy_from_slice(forged);
    }
    update.checksum = archipelago_core::diloco::checksum(&update.body);
}

/// Rate of random faults, each with a later repair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storm {
    /// Number of faults per hour on all machines together.
    pub faults_per_h: f64,
    /// Minimum time until the repair, in milliseconds.
    pub repair_ms_min: u64,
    /// Maximum time until the repair, in milliseconds.
    pub repair_ms_max: u64,
    /// Whether the syncer crashes too.
    pub syncer: bool,
}

impl Storm {
    /// Returns random faults and repairs of `machines` machines, sorted by time. The gaps between faults are
    /// exponentially distributed. All faults lie in `from..until`; a repair may be up to `repair_ms_max` later.
    #[must_use]
    pub fn plan(&self, seed: u64, machines: u32, from: Millis, until: Millis) -> Vec<(Millis, Fault)> {
        let mut rng = Rng::stream(seed, 0x5707);
        let mut plan = Vec::new();
        let mut at = from;
        loop {
            // The cast saturates, so a rate of 0 gives no faults.
            at = at.after((rng.exponential() * 3_600_000.0 / self.faults_per_h).max(1.0) as u64);
            if at >= until || machines == 0 {
                break;
            }
            let machine = rng.below(u64::from(machines)) as u32;
            let repaired = at.after(rng.between(self.repair_ms_min, self.repair_ms_max));
            let (fault, repair) = match rng.below(if self.syncer { 7 } else { 6 }) {
                0 => (Fault::Kill(machine), Fault::Restart(machine)),
                1 => (Fault::Vanish(machine), Fault::Restart(machine)),
                2 => (Fault::Freeze(machine), Fault::Thaw(machine)),
                3 => (Fault::Crawl(machine, rng.between(2, 20) as f64), Fault::Crawl(machine, 1.0)),
                4 => (Fault::Break(machine), Fault::Break(machine)),
                5 => (Fault::Partition(machine), Fault::Heal(machine)),
                _ => (Fault::CrashSyncer, Fault::RestartSyncer),
            };
            plan.push((at, fault));
            plan.push((repaired, repair));
        }
        plan.sort_by_key(|(at, _)| *at);
        plan
    }
}

impl World {
    /// Injects `fault` now.
    pub fn inject(&mut self, fault: Fault) {
        self.restart_merge_timeout(fault.machine(), self.now);
        match fault {
            Fault::CrashSyncer => return self.crash_syncer(None),
            Fault::LosePower(loss) => return self.crash_syncer(Some(loss)),
            Fault::RestartSyncer => return self.restart_syncer(),
            Fault::Finish => return self.finish(),
            Fault::DiskFails(ailment) => return self.disk.ailment = ailment,
            Fault::TearSnapshot => return self.disk.tear(),
            Fault::BackUp => return self.disk.back_up(self.audit.backup_state()),
            Fault::PutBack | Fault::Damage(_) | Fault::Mend if self.host.is_some() => return,
            Fault::PutBack => {
                if let Some(known) = self.disk.restore_backup() {
                    self.audit.on_backup_restored(known);
                }
                return;
            }
            Fault::Damage(damage) => {
                let disk = &mut self.disk;
                return disk.tape.damage(damage, &mut disk.rng);
            }
            Fault::Mend => return self.disk.tape.mend(),
            Fault::Hold(held) => return self.hold(held),
            _ => {}
        }
        let Some(machine) = fault.machine() else { return };
        if machine as usize >= self.machines.len() {
            return;
        }
        match fault {
            Fault::Kill(_) => self.kill_process(machine, true),
            Fault::Vanish(_) => self.kill_process(machine, false),
            Fault::Restart(_) => self.start_process(machine),
            Fault::Freeze(_) => {
                let machine = &mut self.machines[machine as usize];
                machine.frozen = machine.process.is_some();
            }
            Fault::Thaw(_) => self.thaw(machine),
            Fault::Crawl(_, factor) => self.machines[machine as usize].crawl = factor,
            Fault::Move(_, latency_ms) => self.machines[machine as usize].link.set_latency_ms(latency_ms),
            Fault::Break(_) => self.break_connection(machine),
            Fault::Partition(_) => self.machines[machine as usize].cut = true,
            Fault::Heal(_) => self.heal(machine),
            Fault::Swallow(_) => self.blackhole(machine),
            Fault::Pause(_, paused) => {
                self.machines[machine as usize].paused = paused;
                self.learner_input(machine, driver::Input::Paused(paused));
            }
            Fault::Hide(_, hidden) => self.learner_input(machine, driver::Input::Hidden(hidden)),
            Fault::Leave(_) => self.leave(machine),
            Fault::Pace(_, share) => {
                let share = Share::new(share).ok();
                self.restrict(machine, |learner| Some(syncer::Input::Pace { learner, share: share? }));
            }
            Fault::Drop(_, wait_ms) => {
                self.restart_merge_timeout(Some(machine), self.now.after(wait_ms.into()));
                self.restrict(machine, |learner| Some(syncer::Input::Drop { learner, wait_ms }));
            }
            Fault::Poison(_, poison) => {
                let machine = &mut self.machines[machine as usize];
                machine.poison = poison;
                machine.forged |= poison.is_some();
                if let Some(process) = &mut machine.process {
                    process.poison = poison;
                }
            }
            _ => {}
        }
    }

    /// Kills a machine's learner, as SIGKILL does.
    pub fn kill(&mut self, machine: u32) {
        self.inject(Fault::Kill(machine));
    }

    /// Starts a new learner with the machine's key, if none runs.
    pub fn restart(&mut self, machine: u32) {
        self.inject(Fault::Restart(machine));
    }

    fn start_process(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        if !machine.start(self.now, Machine::name(index), self.spec.shell.waits) {
            return;
        }
        let life = machine.life;
        // Sockets of a machine that vanished no longer exist in its new kernel, so the syncer's end is now notified.
        let old = self.conns.iter().filter(|(_, conn)| conn.machine == index && conn.life != life);
        for id in old.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_at_learner(id, true);
        }
        self.learner_input(index, driver::Input::Timeout);
    }

    pub(super) fn kill_process(&mut self, machine: u32, closes_sockets: bool) {
        let Some(process) = self.machines[machine as usize].kill() else { return };
        let Some(id) = process.conn else { return };
        if closes_sockets {
            self.end_at_learner(id, true);
        } else {
            self.machines[machine as usize].link.lane(LinkDirection::Up).forget(id, true);
        }
    }

    fn thaw(&mut self, machine: u32) {
        let machine = &mut self.machines[machine as usize];
        machine.frozen = false;
        for event in std::mem::take(&mut machine.frozen_out) {
            self.queue.plan(self.now, event);
        }
    }

    fn heal(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        machine.cut = false;
        for event in std::mem::take(&mut machine.cut_off) {
            self.queue.plan(self.now, event);
        }
        for way in [LinkDirection::Up, LinkDirection::Down] {
            self.pump(index, way);
        }
    }

    fn leave(&mut self, machine: u32) {
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        process.leaving = true;
        process.take_now(self.now, driver::Input::Leave);
        self.drive_learner(machine);
        self.flushed(machine);
    }

    /// Notifies a leaving learner if its send queue is empty.
    pub(super) fn flushed(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        let Some(process) = machine.process.as_mut().filter(|process| process.leaving) else { return };
        if process.conn.is_none_or(|conn| machine.link.lane(LinkDirection::Up).is_clear_of(conn)) {
            process.take_now(self.now, driver::Input::Flushed);
            self.drive_learner(index);
        }
    }

    fn hold(&mut self, held: bool) {
        if self.host.is_some() {
            self.syncer_input(syncer::Input::Hold(held));
        }
    }

    /// Sends the syncer an input about a machine's learner, if the syncer knows that learner.
    fn restrict(&mut self, machine: u32, order: impl Fn(LearnerId) -> Option<syncer::Input>) {
        let identity = self.machines[machine as usize].identity;
        let learner = self.host.as_ref().and_then(|host| host.core.ledger().find(&identity));
        if let Some(order) = learner.and_then(order) {
            self.syncer_input(order);
        }
    }

    fn finish(&mut self) {
        if self.host.is_some() {
            self.audit.on_finish();
            self.syncer_input(syncer::Input::Finish);
        }
    }
}
