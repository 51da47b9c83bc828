//! Faults of machines and processes, injected or random.

use archipelago_core::wire::Millis;

use super::{Cluster, Happening};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Restarts an owner process without its state.
    KillOwner(usize),
    /// Pauses an owner for this many milliseconds; it resumes without noticing.
    PauseOwner(usize, u64),
    /// Cuts an owner off for this many milliseconds.
    CutOwner(usize, u64),
    /// Makes an owner believe that its leases last this many milliseconds longer than they do.
    LateOwner(usize, u64),
    /// Restarts a gateway process without its state.
    KillGateway(usize),
    /// Pauses a gateway for this many milliseconds.
    PauseGateway(usize, u64),
    /// Cuts a gateway off for this many milliseconds.
    CutGateway(usize, u64),
    /// Kills the tape's leader, with the records that only it has; it is back after this many milliseconds.
    KillLeader(u64),
    /// Disconnects a learner, which then reconnects to a random gateway.
    Move(usize),
}

impl Cluster {
    /// Injects `fault` now.
    pub fn inject(&mut self, fault: Fault) {
        self.strike(fault);
    }

    /// Injects `count` random faults at random times within the next `ms` milliseconds.
    pub fn storm(&mut self, count: u64, ms: u64) {
        for _ in 0..count {
            let (at, fault) = (self.rng.below(ms), self.any_fault());
            self.plan_in(at, Happening::Fault(fault));
        }
    }

    /// Ends all pauses, partitions, message losses and duplicates from now on.
    pub fn calm(&mut self) {
        (self.weather.loss, self.weather.twice) = (0.0, 0.0);
        let now = self.now;
        for process in &mut self.owners {
            (process.paused, process.apart, process.late_ms) = (process.paused.min(now), now, 0);
        }
        for process in &mut self.gateways {
            (process.paused, process.apart) = (process.paused.min(now), now);
        }
    }

    fn any_fault(&mut self) -> Fault {
        let owner = self.rng.below(self.owners.len() as u64) as usize;
        let gateway = self.rng.below(self.gateways.len() as u64) as usize;
        let ms = self.rng.between(50, 6_000);
        match self.rng.below(12) {
            0 => Fault::KillOwner(owner),
            1 | 2 => Fault::PauseOwner(owner, ms),
            3 => Fault::CutOwner(owner, ms),
            4 => Fault::LateOwner(owner, 2 * ms),
            5 => Fault::KillGateway(gateway),
            6 => Fault::PauseGateway(gateway, ms),
            7 => Fault::CutGateway(gateway, ms),
            8 | 9 => Fault::KillLeader(ms),
            _ => Fault::Move(self.rng.below(self.learners.len() as u64) as usize),
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        let after = |ms| Millis(self.now.0 + ms);
        match fault {
            Fault::KillOwner(at) => {
                let machine = self.owner();
                self.owners[at].begin_anew(machine);
            }
            Fault::PauseOwner(at, ms) => self.owners[at].paused = after(ms),
            Fault::CutOwner(at, ms) => self.owners[at].apart = after(ms),
            Fault::LateOwner(at, ms) => self.owners[at].late_ms = ms,
            Fault::KillGateway(at) => {
                let machine = self.gateway(at);
                self.gateways[at].begin_anew(machine);
                for learner in 0..self.learners.len() {
                    if self.learners[learner].gateway == Some(at) {
                        self.drop_learner(learner);
                    }
                }
            }
            Fault::PauseGateway(at, ms) => self.gateways[at].paused = after(ms),
            Fault::CutGateway(at, ms) => self.gateways[at].apart = after(ms),
            Fault::KillLeader(ms) => {
                let other = self.rng.below(3) as usize;
                self.tape.crash(other);
                let elect = self.rng.between(300, 3_000);
                self.plan_in(elect, Happening::Elect);
                self.plan_in(ms, Happening::Restart);
            }
            Fault::Move(at) => self.drop_learner(at),
        }
    }

    fn drop_learner(&mut self, at: usize) {
        let ms = self.rng.between(10, 1_000);
        self.plan_in(ms, Happening::Connect(at));
    }
}
