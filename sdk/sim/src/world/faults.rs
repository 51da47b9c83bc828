//! Injection of each [`Fault`] into a world.

use super::Fault;
use super::World;
use super::link::Way;
use super::machine::Machine;
use archipelago_core::diloco::syncer;
use archipelago_core::driver;
use archipelago_core::wire::{LearnerId, Share};

impl World {
    /// Injects `fault` now.
    pub fn inject(&mut self, fault: Fault) {
        self.excuse(fault.machine(), self.now);
        match fault {
            Fault::CrashSyncer => return self.crash_syncer(None),
            Fault::LosePower(loss) => return self.crash_syncer(Some(loss)),
            Fault::RestartSyncer => return self.restart_syncer(),
            Fault::Finish => return self.finish(),
            Fault::DiskFails(ailment) => return self.disk.ailment = ailment,
            Fault::TearSnapshot => return self.disk.tear(),
            Fault::BackUp => return self.disk.back_up(self.audit.kept()),
            Fault::PutBack | Fault::Damage(_) | Fault::Mend if self.host.is_some() => return,
            Fault::PutBack => {
                if let Some(known) = self.disk.put_back() {
                    self.audit.on_put_back(known);
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
            Fault::Swallow(_) => self.swallow(machine),
            Fault::Pause(_, paused) => {
                self.machines[machine as usize].paused = paused;
                self.learner_input(machine, driver::Input::Paused(paused));
            }
            Fault::Hide(_, hidden) => self.learner_input(machine, driver::Input::Hidden(hidden)),
            Fault::Leave(_) => self.leave(machine),
            Fault::Pace(_, share) => {
                let share = Share::new(share).ok();
                self.rein(machine, |learner| Some(syncer::Input::Pace { learner, share: share? }));
            }
            Fault::Drop(_, wait_ms) => {
                self.excuse(Some(machine), self.now.after(wait_ms.into()));
                self.rein(machine, |learner| Some(syncer::Input::Drop { learner, wait_ms }));
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

    /// Starts a new learner with the machine's identity, if none runs.
    pub fn restart(&mut self, machine: u32) {
        self.inject(Fault::Restart(machine));
    }

    fn start_process(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        if !machine.start(self.now, Machine::name(index), self.spec.shell.waits) {
            return;
        }
        let life = machine.life;
        // The sockets of a vanished machine are gone with its kernel; the syncer's end finds out now.
        let old = self.conns.iter().filter(|(_, conn)| conn.machine == index && conn.life != life);
        for id in old.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_at_learner(id, true);
        }
        self.learner_input(index, driver::Input::Timeout);
    }

    pub(super) fn kill_process(&mut self, machine: u32, tell: bool) {
        let Some(process) = self.machines[machine as usize].kill() else { return };
        let Some(id) = process.conn else { return };
        if tell {
            self.end_at_learner(id, true);
        } else {
            self.machines[machine as usize].link.lane(Way::Up).forget(id, true);
        }
    }

    fn thaw(&mut self, machine: u32) {
        let machine = &mut self.machines[machine as usize];
        machine.frozen = false;
        for happening in std::mem::take(&mut machine.frozen_out) {
            self.queue.plan(self.now, happening);
        }
    }

    fn heal(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        machine.cut = false;
        for happening in std::mem::take(&mut machine.cut_off) {
            self.queue.plan(self.now, happening);
        }
        for way in [Way::Up, Way::Down] {
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

    /// Tells a leaving learner that its send queue is empty.
    pub(super) fn flushed(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        let Some(process) = machine.process.as_mut().filter(|process| process.leaving) else { return };
        if process.conn.is_none_or(|conn| machine.link.lane(Way::Up).is_clear_of(conn)) {
            process.take_now(self.now, driver::Input::Flushed);
            self.drive_learner(index);
        }
    }

    fn hold(&mut self, held: bool) {
        if self.host.is_some() {
            self.tell_syncer(syncer::Input::Hold(held));
        }
    }

    /// Gives the syncer an order about a machine's learner, if the syncer knows that learner.
    fn rein(&mut self, machine: u32, order: impl Fn(LearnerId) -> Option<syncer::Input>) {
        let identity = self.machines[machine as usize].identity;
        let learner = self.host.as_ref().and_then(|host| host.core.ledger().find(&identity));
        if let Some(order) = learner.and_then(order) {
            self.tell_syncer(order);
        }
    }

    fn finish(&mut self) {
        if self.host.is_some() {
            self.audit.on_finish();
            self.tell_syncer(syncer::Input::Finish);
        }
    }
}
