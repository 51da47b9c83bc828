//! Periodic loss measurements in a world, and rollback of harmful updates.
//!
//! The core's [`LossMonitor`] and [`Attribution`] decide, as in the server. A measurement takes no virtual time. An
//! attribution takes [`MonitorSpec::trial_ms`] per trial.

use std::collections::BTreeSet;

use super::World;
use super::event::WorldEvent;
use serde::Serialize;

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::{Input, LossMonitor, Rollback, RollbackJob, RollbackOrder, Syncer};
use archipelago_core::diloco::trust::{Attribution, AttributionResult};
use archipelago_core::wire::{LearnerId, Millis, Version};

/// Time before a measurement is retried that found a pending merge or rollback, in milliseconds.
const AGAIN_MS: u64 = 1;

/// Settings of a world's loss monitor.
#[derive(Clone, Copy, Debug)]
pub struct MonitorSpec {
    /// Time between two measurements, in milliseconds, at least 1.
    pub every_ms: u64,
    /// Duration of an attribution trial, in milliseconds.
    pub trial_ms: u64,
}

/// Function that returns the loss of Θ, `[layout.len()]`.
pub type LossOf = dyn FnMut(&[f32]) -> f64;

/// Harm to the loss, and the learners that caused it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Harm {
    /// Time at which the harm was attributed.
    pub at: Millis,
    /// The last normal loss, the bad loss, and the loss without the culprits, which is `None` if none were found.
    pub losses: (f64, f64, Option<f64>),
    /// Learners that caused the harm; empty if none were found.
    pub culprits: Vec<LearnerId>,
}

/// Fragments at the time of a measurement, and the newest row of the tape at that time.
#[derive(Clone, Debug)]
struct Moment {
    seq: u64,
    states: Vec<FragmentState>,
}

/// State of a world's loss monitor.
pub(super) struct WorldMonitor {
    spec: MonitorSpec,
    loss: Box<LossOf>,
    loss_monitor: LossMonitor<Moment>,
    /// Loss and time of a measurement that waits until all rows before it are on the disk.
    measured: Option<(f64, Moment)>,
    found: Vec<Harm>,
}

impl World {
    /// Begins to measure the loss with `loss`. From now on, harm is rolled back.
    pub fn watch_loss(&mut self, spec: MonitorSpec, loss: Box<LossOf>) {
        let spec = MonitorSpec { every_ms: spec.every_ms.max(1), ..spec };
        self.monitor = Some(WorldMonitor {
            spec,
            loss,
            loss_monitor: LossMonitor::default(),
            measured: None,
            found: Vec::new(),
        });
        self.queue.plan(self.now.after(spec.every_ms), WorldEvent::MeasureLoss);
    }

    /// Removes and returns the harm found since the last call.
    pub fn take_harms(&mut self) -> Vec<Harm> {
        self.monitor.as_mut().map(|monitor| std::mem::take(&mut monitor.found)).unwrap_or_default()
    }

    /// Discards all measurements, because they belong to the syncer's previous process.
    pub(super) fn forget_moments(&mut self) {
        if let Some(monitor) = &mut self.monitor {
            (monitor.loss_monitor, monitor.measured) = (LossMonitor::default(), None);
        }
    }

    /// Measures the loss unless a merge or rollback is pending, and schedules the next measurement.
    pub(super) fn measure_loss(&mut self) {
        let Some(mut monitor) = self.monitor.take() else { return };
        let syncer = self.host.as_ref().map(|host| &host.core);
        let wait_ms = match syncer {
            Some(syncer) if monitor.measured.is_none() && !syncer.is_over() => match at_rest(syncer) {
                Some((theta, states)) => {
                    let seq = self.record.gate.decided();
                    monitor.measured = Some(((monitor.loss)(&theta), Moment { seq, states }));
                    monitor.spec.every_ms
                }
                None => AGAIN_MS,
            },
            _ => monitor.spec.every_ms,
        };
        self.monitor = Some(monitor);
        self.queue.plan(self.now.after(wait_ms), WorldEvent::MeasureLoss);
        self.check_measurement();
    }

    /// Checks the pending measurement for harm once all rows before it are on the disk.
    pub(super) fn check_measurement(&mut self) {
        let Some(mut monitor) = self.monitor.take() else { return };
        if let Some((loss, moment)) =
            monitor.measured.take_if(|(_, moment)| self.record.gate.is_safe(moment.seq))
        {
            self.attribute(&mut monitor, loss, moment);
        }
        self.monitor = Some(monitor);
    }

    fn attribute(&mut self, monitor: &mut WorldMonitor, bad: f64, moment: Moment) {
        let WorldMonitor { loss_monitor, spec, loss, .. } = monitor;
        let Some((good, from)) = loss_monitor.observe(bad, moment.clone()) else { return };
        let from = from.clone();
        let mut trials = 0;
        let mut attribution = Attribution::new(good, bad, self.disk.tape.senders(from.seq, moment.seq));
        while let Some(without) = attribution.next() {
            trials += 1;
            let theta = self.without(&from, &moment, &without);
            attribution.measured(theta.map_or(f64::INFINITY, |theta| loss(&theta)));
        }
        let verdict = attribution.verdict();
        let (culprits, better) = match verdict {
            Some(AttributionResult { learners: culprits, loss }) => (culprits, Some(loss)),
            None => (Vec::new(), None),
        };
        monitor.found.push(Harm { at: self.now, losses: (good, bad, better), culprits: culprits.clone() });
        if culprits.is_empty() {
            return monitor.loss_monitor.reset(bad, moment);
        }
        let input = Input::Rollback(Box::new(RollbackOrder { from: from.states, after: from.seq, culprits }));
        let (generation, input) = (self.generation, Box::new(input));
        self.queue.plan(self.now.after(trials * spec.trial_ms), WorldEvent::Read { generation, input });
    }

    /// Returns Θ at `until` as it would be without the updates of the learners in `without` since `from`. Returns
    /// `None` if it cannot be recomputed.
    fn without(&self, from: &Moment, until: &Moment, without: &BTreeSet<LearnerId>) -> Option<Vec<f32>> {
        let syncer = &self.host.as_ref()?.core;
        let versions: Vec<Version> = until.states.iter().map(|state| state.version).collect();
        let codec = syncer.verifier().codec();
        let mut rollbacks = Rollback::all(syncer.fragments(), codec, &from.states, without, &versions);
        self.disk.tape.rollback(&mut rollbacks, from.seq).ok()?;
        if !rollbacks.iter().all(Rollback::is_done) {
            return None;
        }
        let mut flat = vec![0.0; self.layout.len()];
        for rollback in &rollbacks {
            let (fragment, theta) = rollback.theta();
            syncer.fragments().scatter(fragment, theta, &mut flat);
        }
        Some(flat)
    }

    /// Recomputes the fragments that are to be rolled back and whose newest version is on the disk.
    pub(super) fn run_due_rollbacks(&mut self) {
        let gate = &self.record.gate;
        let is_due = |job: &mut RollbackJob| gate.is_version_safe(job.fragment());
        let due: Vec<RollbackJob> = self.record.rollbacks.extract_if(.., is_due).collect();
        for mut job in due {
            // If the tape is unreadable, the job is incomplete, and `run` reports that.
            let _ = self.disk.tape.rollback(std::slice::from_mut(&mut job.rollback), job.after);
            let result = job.run();
            if let Ok(outcome) = &result {
                self.keep_rollback(outcome);
            }
            let event = WorldEvent::MergeDone { generation: self.generation, result: Box::new(result) };
            self.queue.plan(self.now.after(self.spec.shell.merge_ms), event);
        }
    }
}

/// Returns Θ and the fragments, or `None` while a merge or a rollback is pending.
fn at_rest(syncer: &Syncer) -> Option<(Vec<f32>, Vec<FragmentState>)> {
    let theta = syncer.theta().filter(|_| !syncer.is_undoing())?;
    Some((theta, syncer.states().map(FragmentState::without_hat).collect()))
}
