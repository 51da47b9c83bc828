//! Periodic loss measurements in a world, and rollback of harmful updates.
//!
//! The core's [`LossMonitor`] and [`Attribution`] decide, as in the server. A measurement takes no virtual time. An
//! attribution takes [`MonitorSpec::trial_ms`] for each trial.

use std::collections::BTreeSet;

use super::World;
use super::event::WorldEvent;
use serde::Serialize;

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::{Input, LossMonitor, Remake, RemakeJob, Syncer, Undo};
use archipelago_core::diloco::trust::{Attribution, Culprits};
use archipelago_core::wire::{LearnerId, Millis, Version};

/// Wait before the next look at a syncer whose fragments are not at rest, in milliseconds.
const AGAIN_MS: u64 = 1;

/// Settings of the loss monitor of a world.
#[derive(Clone, Copy, Debug)]
pub struct MonitorSpec {
    /// Time between two measurements, in milliseconds, at least 1.
    pub every_ms: u64,
    /// Time of one attribution trial, in milliseconds.
    pub trial_ms: u64,
}

/// Function from Θ, `[layout.len()]`, to a loss.
pub type LossOf = dyn FnMut(&[f32]) -> f64;

/// A harmful learner or group, and the effect on the loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Harm {
    /// Time of the measurement that showed the harm.
    pub at: Millis,
    /// The last good loss, the bad loss, and the loss without the culprits; the last is `None` if none were found.
    pub losses: (f64, f64, Option<f64>),
    /// The learners that did the harm.
    pub culprits: Vec<LearnerId>,
}

/// The fragments at a measurement, and the newest row of the tape at that time.
#[derive(Clone, Debug)]
struct Moment {
    seq: u64,
    states: Vec<FragmentState>,
}

/// The loss monitor of a world.
pub(super) struct WorldMonitor {
    spec: MonitorSpec,
    loss: Box<LossOf>,
    lookout: LossMonitor<Moment>,
    /// A measurement of this process that waits until the tape has every row before it.
    measured: Option<(f64, Moment)>,
    found: Vec<Harm>,
}

impl World {
    /// Begins to monitor `loss`; harm is rolled back from now on.
    pub fn watch_loss(&mut self, spec: MonitorSpec, loss: Box<LossOf>) {
        let spec = MonitorSpec { every_ms: spec.every_ms.max(1), ..spec };
        self.looking = Some(WorldMonitor {
            spec,
            loss,
            lookout: LossMonitor::default(),
            measured: None,
            found: Vec::new(),
        });
        self.queue.plan(self.now.after(spec.every_ms), WorldEvent::Look);
    }

    /// Takes the harm found since the last call.
    pub fn take_harms(&mut self) -> Vec<Harm> {
        self.looking.as_mut().map(|looking| std::mem::take(&mut looking.found)).unwrap_or_default()
    }

    /// Forgets all measurements, which belong to the syncer's previous process.
    pub(super) fn forget_moments(&mut self) {
        if let Some(looking) = &mut self.looking {
            (looking.lookout, looking.measured) = (LossMonitor::default(), None);
        }
    }

    /// Measures the loss if the fragments are at rest, and plans the next measurement.
    pub(super) fn look(&mut self) {
        let Some(mut looking) = self.looking.take() else { return };
        let syncer = self.host.as_ref().map(|host| &host.core);
        let wait_ms = match syncer {
            Some(syncer) if looking.measured.is_none() && !syncer.is_over() => match at_rest(syncer) {
                Some((theta, states)) => {
                    let seq = self.record.gate.decided();
                    looking.measured = Some(((looking.loss)(&theta), Moment { seq, states }));
                    looking.spec.every_ms
                }
                None => AGAIN_MS,
            },
            _ => looking.spec.every_ms,
        };
        self.looking = Some(looking);
        self.queue.plan(self.now.after(wait_ms), WorldEvent::Look);
        self.judge_look();
    }

    /// Judges the pending measurement once the tape has every row before it.
    pub(super) fn judge_look(&mut self) {
        let Some(mut looking) = self.looking.take() else { return };
        if let Some((loss, moment)) =
            looking.measured.take_if(|(_, moment)| self.record.gate.is_safe(moment.seq))
        {
            self.attribute(&mut looking, loss, moment);
        }
        self.looking = Some(looking);
    }

    fn attribute(&mut self, looking: &mut WorldMonitor, bad: f64, moment: Moment) {
        let WorldMonitor { lookout, spec, loss, .. } = looking;
        let Some((good, from)) = lookout.look(bad, moment.clone()) else { return };
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
            Some(Culprits { learners: culprits, loss }) => (culprits, Some(loss)),
            None => (Vec::new(), None),
        };
        looking.found.push(Harm { at: self.now, losses: (good, bad, better), culprits: culprits.clone() });
        if culprits.is_empty() {
            return looking.lookout.begin_anew(bad, moment);
        }
        let input = Input::Undo(Box::new(Undo { from: from.states, after: from.seq, culprits }));
        let (generation, input) = (self.generation, Box::new(input));
        self.queue.plan(self.now.after(trials * spec.trial_ms), WorldEvent::Read { generation, input });
    }

    /// Returns Θ at `until` as it would be if the learners in `without` had sent nothing since `from`.
    fn without(&self, from: &Moment, until: &Moment, without: &BTreeSet<LearnerId>) -> Option<Vec<f32>> {
        let syncer = &self.host.as_ref()?.core;
        let versions: Vec<Version> = until.states.iter().map(|state| state.version).collect();
        let codec = syncer.verifier().codec();
        let mut remakes = Remake::all(syncer.fragments(), codec, &from.states, without, &versions);
        self.disk.tape.remake(&mut remakes, from.seq).ok()?;
        if !remakes.iter().all(Remake::is_done) {
            return None;
        }
        let mut flat = vec![0.0; self.layout.len()];
        for remake in &remakes {
            let (fragment, theta) = remake.theta();
            syncer.fragments().scatter(fragment, theta, &mut flat);
        }
        Some(flat)
    }

    /// Recomputes the fragments to roll back whose newest version is on the tape.
    pub(super) fn remake_due(&mut self) {
        let gate = &self.record.gate;
        let is_due = |job: &mut RemakeJob| gate.is_version_safe(job.fragment());
        let due: Vec<RemakeJob> = self.record.remakes.extract_if(.., is_due).collect();
        for mut job in due {
            // An unreadable tape leaves the job incomplete, and `run` reports that.
            let _ = self.disk.tape.remake(std::slice::from_mut(&mut job.remake), job.after);
            let result = job.run();
            if let Ok(outcome) = &result {
                self.keep_remade(outcome);
            }
            let event = WorldEvent::MergeDone { generation: self.generation, result: Box::new(result) };
            self.queue.plan(self.now.after(self.spec.shell.merge_ms), event);
        }
    }
}

/// Returns Θ and the fragments, unless a merge or a rollback is pending.
fn at_rest(syncer: &Syncer) -> Option<(Vec<f32>, Vec<FragmentState>)> {
    let theta = syncer.theta().filter(|_| !syncer.is_undoing())?;
    Some((theta, syncer.states().map(FragmentState::without_hat).collect()))
}
