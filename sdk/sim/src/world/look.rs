//! A loss that is measured now and then in a world, and what did harm to it undone.
//!
//! What decides is the core's [`Lookout`] and [`Blame`], as in the server. Measuring takes no virtual time; to find out
//! who did harm takes [`LookSpec::trial_ms`] for each trial.

use std::collections::BTreeSet;

use super::World;
use super::happening::Happening;
use serde::Serialize;

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::{Blame, Input, Lookout, Remake, RemakeJob, Syncer, Undo, Verdict};
use archipelago_core::wire::{LearnerId, Millis, Version};

/// Wait before a syncer whose fragments are not at rest is looked at again, in milliseconds.
const AGAIN_MS: u64 = 1;

/// How a world's loss is watched.
#[derive(Clone, Copy, Debug)]
pub struct LookSpec {
    /// Time between two measurements, in milliseconds, at least 1.
    pub every_ms: u64,
    /// Time that it takes to find out what the loss would be without somebody, in milliseconds.
    pub trial_ms: u64,
}

/// Gives the loss of Θ, `[layout.len()]`.
pub type LossOf = dyn FnMut(&[f32]) -> f64;

/// Somebody whose updates did harm, and what became of the loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Harm {
    /// When that was seen.
    pub at: Millis,
    /// The last good loss, the one that was seen, and what it is without the culprits; the last is `None` where nobody
    /// was found.
    pub losses: (f64, f64, Option<f64>),
    /// Who it was.
    pub culprits: Vec<LearnerId>,
}

/// The fragments when they were measured, and the newest row of the tape by then.
#[derive(Clone, Debug)]
struct Moment {
    seq: u64,
    states: Vec<FragmentState>,
}

/// Watches the loss of a world.
pub(super) struct Looking {
    spec: LookSpec,
    loss: Box<LossOf>,
    lookout: Lookout<Moment>,
    /// What was measured of this process, and waits until the tape has all that led there.
    measured: Option<(f64, Moment)>,
    found: Vec<Harm>,
}

impl World {
    /// Begins to watch `loss`, and has harm undone from now on.
    pub fn watch_loss(&mut self, spec: LookSpec, loss: Box<LossOf>) {
        let spec = LookSpec { every_ms: spec.every_ms.max(1), ..spec };
        self.looking =
            Some(Looking { spec, loss, lookout: Lookout::default(), measured: None, found: Vec::new() });
        self.queue.plan(self.now.after(spec.every_ms), Happening::Look);
    }

    /// Harm that was seen since this was asked last.
    pub fn take_harms(&mut self) -> Vec<Harm> {
        self.looking.as_mut().map(|looking| std::mem::take(&mut looking.found)).unwrap_or_default()
    }

    /// The syncer's process is another one: it knows of no moment of the one before.
    pub(super) fn forget_moments(&mut self) {
        if let Some(looking) = &mut self.looking {
            (looking.lookout, looking.measured) = (Lookout::default(), None);
        }
    }

    /// It is time to measure.
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
        self.queue.plan(self.now.after(wait_ms), Happening::Look);
        self.judge_look();
    }

    /// Judges what was measured, once the tape has all that led there.
    pub(super) fn judge_look(&mut self) {
        let Some(mut looking) = self.looking.take() else { return };
        if let Some((loss, moment)) =
            looking.measured.take_if(|(_, moment)| self.record.gate.is_safe(moment.seq))
        {
            self.judge(&mut looking, loss, moment);
        }
        self.looking = Some(looking);
    }

    fn judge(&mut self, looking: &mut Looking, bad: f64, moment: Moment) {
        let Looking { lookout, spec, loss, .. } = looking;
        let Some((good, from)) = lookout.look(bad, moment.clone()) else { return };
        let from = from.clone();
        let mut trials = 0;
        let mut blame = Blame::new(good, bad, self.disk.tape.senders(from.seq, moment.seq));
        while let Some(without) = blame.next() {
            trials += 1;
            blame
                .measured(self.without(&from, &moment, &without).map_or(f64::INFINITY, |theta| loss(&theta)));
        }
        let verdict = blame.verdict();
        let (culprits, better) = match verdict {
            Some(Verdict { culprits, loss }) => (culprits, Some(loss)),
            None => (Vec::new(), None),
        };
        looking.found.push(Harm { at: self.now, losses: (good, bad, better), culprits: culprits.clone() });
        if culprits.is_empty() {
            return looking.lookout.begin_anew(bad, moment);
        }
        let input = Input::Undo(Box::new(Undo { from: from.states, after: from.seq, culprits }));
        let (generation, input) = (self.generation, Box::new(input));
        self.queue.plan(self.now.after(trials * spec.trial_ms), Happening::Read { generation, input });
    }

    /// Θ at `until`, had these never sent anything since `from`.
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

    /// Undoes fragments whose newest version is on the tape.
    pub(super) fn remake_due(&mut self) {
        let gate = &self.record.gate;
        let is_due = |job: &mut RemakeJob| gate.is_version_safe(job.fragment());
        let due: Vec<RemakeJob> = self.record.remakes.extract_if(.., is_due).collect();
        for mut job in due {
            // What cannot be read is not followed to its end, and the job says so.
            let _ = self.disk.tape.remake(std::slice::from_mut(&mut job.remake), job.after);
            let result = job.run();
            if let Ok(outcome) = &result {
                self.keep_remade(outcome);
            }
            let happening = Happening::MergeDone { generation: self.generation, result: Box::new(result) };
            self.queue.plan(self.now.after(self.spec.shell.merge_ms), happening);
        }
    }
}

/// Θ and the fragments, unless one of them is being merged or is to be undone.
fn at_rest(syncer: &Syncer) -> Option<(Vec<f32>, Vec<FragmentState>)> {
    let theta = syncer.theta().filter(|_| !syncer.is_undoing())?;
    Some((theta, syncer.states().map(FragmentState::without_hat).collect()))
}
