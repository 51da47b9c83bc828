//! Doing to a world what [`Fault`] says.

use super::Fault;
use super::World;
use super::happening::Happening;
use super::machine::Machine;
use archipelago::diloco::{learner, syncer};
use archipelago::wire::{Bye, CloseCode, LearnerId, Share};

impl World {
    /// Does `fault` now.
    pub fn inject(&mut self, fault: Fault) {
        let machine = match fault {
            Fault::CrashSyncer => return self.crash_syncer(),
            Fault::RestartSyncer => return self.restart_syncer(),
            Fault::Finish => return self.finish(),
            Fault::Hold(held) => return self.hold(held),
            Fault::Kill(i)
            | Fault::Vanish(i)
            | Fault::Restart(i)
            | Fault::Freeze(i)
            | Fault::Thaw(i)
            | Fault::Crawl(i, _)
            | Fault::Break(i)
            | Fault::Partition(i)
            | Fault::Heal(i)
            | Fault::Pause(i, _)
            | Fault::Leave(i)
            | Fault::Pace(i, _)
            | Fault::Drop(i, _)
            | Fault::Poison(i, _) => i,
        };
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
            Fault::Break(_) => self.break_connection(machine),
            Fault::Partition(_) => self.partition(machine),
            Fault::Heal(_) => self.heal(machine),
            Fault::Pause(_, paused) => self.learner_input(machine, learner::Input::Paused(paused)),
            Fault::Leave(_) => self.leave(machine),
            Fault::Pace(_, share) => {
                let share = Share::new(share).ok();
                self.rein(machine, |learner| Some(syncer::Input::Pace { learner, share: share? }));
            }
            Fault::Drop(_, wait_ms) => {
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
            Fault::CrashSyncer | Fault::RestartSyncer | Fault::Finish | Fault::Hold(_) => {}
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
        if !machine.start(self.now, Machine::name(index)) {
            return;
        }
        let life = machine.life;
        // What the kernel held of a machine that vanished is gone; the syncer's end finds out.
        let old = self.conns.iter().filter(|(_, conn)| conn.machine == index && conn.life != life);
        for id in old.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_at_learner(id);
        }
        self.queue.plan(self.now, Happening::Dial { machine: index, life });
    }

    fn kill_process(&mut self, machine: u32, tell: bool) {
        let Some(process) = self.machines[machine as usize].kill() else { return };
        if let Some(id) = process.conn.filter(|_| tell) {
            self.end_at_learner(id);
        }
    }

    fn thaw(&mut self, machine: u32) {
        let machine = &mut self.machines[machine as usize];
        machine.frozen = false;
        for happening in std::mem::take(&mut machine.frozen_out) {
            self.queue.plan(self.now, happening);
        }
    }

    fn partition(&mut self, machine: u32) {
        let machine = &mut self.machines[machine as usize];
        machine.cut = true;
        if let Some(conn) = machine.process.as_ref().and_then(|process| process.conn) {
            let at = self.now.after(self.spec.shell.silent_ms_max);
            self.queue.plan(at, Happening::Suspect { conn });
        }
    }

    fn heal(&mut self, machine: u32) {
        let machine = &mut self.machines[machine as usize];
        machine.cut = false;
        for happening in std::mem::take(&mut machine.cut_off) {
            self.queue.plan(self.now, happening);
        }
    }

    fn leave(&mut self, machine: u32) {
        let now = self.now;
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        process.leave(now);
        process.stopped = Some(Bye::new(CloseCode::Done, "stopped by its owner"));
        self.drive_learner(machine);
        let conn = self.machines[machine as usize].process.as_mut().and_then(|process| process.conn.take());
        if let Some(id) = conn {
            self.end_at_learner(id);
        }
        self.machines[machine as usize].kill();
    }

    fn hold(&mut self, held: bool) {
        if self.host.is_some() {
            self.host_input(syncer::Input::Hold(held));
        }
    }

    /// Gives the syncer an order about the learner on a machine, if it knows it.
    fn rein(&mut self, machine: u32, order: impl Fn(LearnerId) -> Option<syncer::Input>) {
        let identity = self.machines[machine as usize].identity;
        let learner = self.host.as_ref().and_then(|host| host.core.ledger().find(&identity));
        if let Some(order) = learner.and_then(order) {
            self.host_input(order);
        }
    }

    fn finish(&mut self) {
        if self.host.is_some() {
            self.audit.on_finish();
            self.host_input(syncer::Input::Finish);
        }
    }
}
