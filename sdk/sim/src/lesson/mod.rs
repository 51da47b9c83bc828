//! Lessons: runs of a few islands in virtual time that train a tiny model and can be observed and disturbed. A twin
//! trains the same islands with synchronous data parallelism.
//!
//! [`Lesson`] is a [`crate::world::World`], and so the real syncer and learner cores, presented as [`Frame`]s. [`Twin`]
//! trains in lockstep with the same islands, the same random numbers and the same faults. Both compute with
//! [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`], so that one [`LessonSpec`] with one list of [`Action`]s has
//! one digest, natively and in browsers.
//!
//! ```
//! use archipelago_sim::lesson::{Action, Deed, Lesson, LessonSpec};
//!
//! let mut lesson = Lesson::new(LessonSpec::default())?;
//! lesson.act(Action { at_ms: 500, island: 2, deed: Deed::Kill, factor: 1.0 })?;
//! lesson.advance(1_500);
//! assert_eq!(lesson.frame().run.live, 4);
//! # Ok::<(), archipelago_sim::lesson::LessonError>(())
//! ```

mod change;
mod frame;
mod setup;
mod spec;
#[cfg(test)]
mod tests;
mod twin;

use archipelago_core::bytes::hex;

use crate::world::{Attack, Fault, LinkSpec, MachineStatus, Poison, World};
use change::{Due, LessonSchedule};
use frame::FrameBuilder;
use setup::{LIE_TIMES, LessonSetup, MEASURE_MS};

pub use change::{Change, Setting};
pub use frame::{Frame, Island, IslandState, Mark, ParcelKind, Share, Totals, TwinFrame, TwinMark};
pub use spec::{Action, Apply, Bounds, Deed, ISLANDS_MAX, LESSON_MS_MAX, LessonError, LessonSpec, Lockstep};
pub use twin::Twin;

/// A run of a few islands in virtual time.
pub struct Lesson {
    stage: LessonSetup,
    world: World,
    teller: FrameBuilder,
    /// Θ at the last measurement, `[len]`.
    theta: Vec<f32>,
    /// Last measured loss.
    held_out: Option<f32>,
    measured_ms: u64,
    poison: Vec<Option<Poison>>,
    slow: Vec<f64>,
    /// One-way latency of each island, in milliseconds.
    latency_ms: Vec<u64>,
    /// Planned actions and changes.
    plan: LessonSchedule,
    marks: Vec<Mark>,
}

impl Lesson {
    /// Creates a lesson at time 0.
    ///
    /// # Errors
    /// [`LessonError::Range`]: a number is out of the range that its field names.
    pub fn new(spec: LessonSpec) -> Result<Self, LessonError> {
        let stage = LessonSetup::new(spec)?;
        let inner = stage.inner;
        let make = move |_| -> Box<dyn archipelago_runtime::engine::Trainer> {
            Box::new(LessonSetup::trainer(&inner, inner.batch))
        };
        let seed = spec.seed.into();
        let world = World::new(seed, stage.world(), LessonSetup::layout(), Box::new(make));
        let mut world = world.expect("the ranges leave nothing that cannot be run");
        world.trace();
        // Islands that take part from the beginning run in the first frame.
        world.run_for(0);
        let islands = spec.islands as usize;
        let mut lesson = Self {
            teller: FrameBuilder::new(&stage.run_spec(), &LessonSetup::layout()),
            theta: stage.theta.clone(),
            stage,
            world,
            held_out: None,
            measured_ms: 0,
            poison: vec![None; islands],
            slow: vec![1.0; islands],
            latency_ms: vec![spec.latency_ms.into(); islands],
            plan: LessonSchedule::default(),
            marks: Vec::new(),
        };
        lesson.measure();
        Ok(lesson)
    }

    /// Applies an action to an island at its time, or now if that has passed.
    ///
    /// # Errors
    /// - [`LessonError::NoIsland`]: the lesson has no such island.
    /// - [`LessonError::Range`]: `factor` is out of its range.
    pub fn act(&mut self, action: Action) -> Result<(), LessonError> {
        action.check(self.stage.spec.islands)?;
        self.plan.add(action.at_ms, Due::Act(action));
        self.do_due();
        Ok(())
    }

    /// Changes a setting at its time, or now if that has passed. The run continues.
    ///
    /// # Errors
    /// [`LessonError::Range`]: the value is out of its range.
    pub fn change(&mut self, change: Change) -> Result<(), LessonError> {
        change.to.put(self.stage.spec)?;
        self.plan.add(change.at_ms, Due::Set(change.to));
        self.do_due();
        Ok(())
    }

    /// Advances time to `to_ms`, at most [`LESSON_MS_MAX`]. Time never goes back.
    pub fn advance(&mut self, to_ms: u64) {
        let to_ms = to_ms.min(LESSON_MS_MAX);
        while self.now_ms() < to_ms {
            let acts_ms = self.plan.next_ms().unwrap_or(u64::MAX);
            let next_ms = to_ms.min(self.measured_ms + MEASURE_MS).min(acts_ms);
            self.world.run_for(next_ms.saturating_sub(self.now_ms()));
            self.do_due();
            if self.now_ms() >= self.measured_ms + MEASURE_MS {
                self.measure();
            }
        }
    }

    /// Returns the time of the lesson, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.world.now().0
    }

    /// Returns the present state, and the events since the last frame.
    pub fn frame(&mut self) -> Frame {
        let (events, traces) = (self.world.take_events(), self.world.take_traces());
        let mut marks = self.teller.tell(&self.world, events, traces);
        marks.append(&mut self.marks);
        let machines = self.world.machines();
        let islands = (0..).zip(&machines).map(|(i, machine)| self.island(i, machine)).collect();
        Frame { now_ms: self.now_ms(), islands, run: self.totals(), marks }
    }

    /// Returns `bytes` bytes of text that Θ continues from a fixed prompt. During a merge, the Θ of the last loss
    /// measurement is used.
    pub fn sample(&mut self, bytes: u32) -> String {
        let now = self.world.syncer().and_then(|syncer| syncer.theta());
        self.stage.sample(now.as_ref().unwrap_or(&self.theta), bytes as usize)
    }

    /// Returns the SHA-256 of all decisions and merges so far, as hex digits.
    #[must_use]
    pub fn digest(&self) -> String {
        hex(&self.world.digest())
    }

    fn measure(&mut self) {
        let at_ms = self.now_ms();
        self.measured_ms = at_ms;
        let syncer = self.world.syncer().expect("no lesson crashes its syncer");
        // During a merge, which takes 2 ms, the last measurement remains valid.
        let Some(theta) = syncer.theta() else { return };
        let tokens = syncer.status().tokens_merged;
        let loss = self.stage.measure(&theta);
        (self.theta, self.held_out) = (theta, Some(loss));
        self.marks.push(Mark::HeldOut { at_ms, loss, tokens });
    }

    fn do_due(&mut self) {
        for due in self.plan.take_due(self.now_ms()) {
            match due {
                Due::Act(action) => self.perform(action),
                Due::Set(setting) => {
                    let spec = setting.put(self.stage.spec).expect("checked when it was planned");
                    self.go_on_with(spec);
                }
            }
        }
    }

    /// Passes new settings to the syncer and the islands. An island that was moved away keeps its extra latency.
    fn go_on_with(&mut self, spec: LessonSpec) {
        let before = self.stage.spec;
        self.stage.change(self.now_ms(), spec);
        for (i, latency_ms) in (0..).zip(&mut self.latency_ms) {
            *latency_ms = *latency_ms - u64::from(before.latency_ms) + u64::from(spec.latency_ms);
            let machine = self.stage.machine(i);
            let link = LinkSpec { latency_ms: *latency_ms, ..machine.link };
            self.world.retune_machine(i, machine.step_ms, machine.jitter, link);
        }
        self.world.retune_syncer(self.stage.quorum(), spec.merge);
    }

    fn perform(&mut self, action: Action) {
        if action.is_too_early(&self.stage.spec, self.now_ms()) {
            return;
        }
        let (i, place) = (action.island, action.island as usize);
        match action.deed {
            Deed::Kill => self.world.inject(Fault::Kill(i)),
            Deed::Restart => self.world.inject(Fault::Restart(i)),
            Deed::Slow => {
                self.slow[place] = action.factor;
                self.world.inject(Fault::Crawl(i, action.factor));
            }
            Deed::Far => {
                self.latency_ms[place] = action.latency_ms(&self.stage.spec);
                self.world.inject(Fault::Move(i, self.latency_ms[place]));
            }
            Deed::Partition => self.world.inject(Fault::Partition(i)),
            Deed::Heal => self.world.inject(Fault::Heal(i)),
            Deed::Poison => self.poison(i, Some(Poison::Huge)),
            Deed::Lie => self.poison(i, Some(Poison::Lie(Attack::Times(LIE_TIMES)))),
            Deed::Cure => {
                self.poison(i, None);
                if self.world.machines()[place].stopped.is_some() {
                    self.world.inject(Fault::Kill(i));
                    self.world.inject(Fault::Restart(i));
                }
            }
        }
    }

    fn poison(&mut self, island: u32, poison: Option<Poison>) {
        self.poison[island as usize] = poison;
        self.world.inject(Fault::Poison(island, poison));
    }

    fn island(&self, i: u32, machine: &MachineStatus) -> Island {
        let place = i as usize;
        let state = match machine {
            _ if self.now_ms() < self.stage.spec.starts_ms_of(i) => IslandState::Expected,
            MachineStatus { running: false, .. } => IslandState::Dead,
            MachineStatus { training: true, .. } => IslandState::Training,
            MachineStatus { connected: true, .. } => IslandState::Joining,
            _ => IslandState::Offline,
        };
        Island {
            state,
            partitioned: machine.partitioned,
            poisoned: self.poison[place] == Some(Poison::Huge),
            lies: matches!(self.poison[place], Some(Poison::Lie(_))),
            slow: self.slow[place],
            latency_ms: self.latency_ms[place],
            stopped: machine.stopped.clone(),
            steps: machine.steps,
            tokens: machine.tokens,
            merged: self.world.tokens_merged(i),
            loss: machine.loss,
            step_ms: self.stage.spec.step_ms_of(i),
            possible_steps: self.stage.possible_steps(i, self.now_ms()),
        }
    }

    fn totals(&self) -> Totals {
        let status = self.world.status().expect("no lesson crashes its syncer");
        let tokens_trained: u64 = self.world.machines().iter().map(|machine| machine.tokens).sum();
        let ratio = |part: f64, whole: f64| if whole > 0.0 { (part / whole).min(1.0) } else { 1.0 };
        Totals {
            held_out: self.held_out,
            floor: self.stage.floor,
            tokens_trained,
            tokens_merged: status.tokens_merged,
            participation: ratio(status.tokens_merged as f64, tokens_trained as f64),
            goodput: ratio(tokens_trained as f64, self.stage.possible_tokens(self.now_ms())),
            rounds: status.rounds,
            live: status.live,
            bytes_up: self.teller.bytes_up,
            bytes_down: self.teller.bytes_down,
            grace_ms: status.grace_ms,
            quorum_ms: status.timing.quorum_ms,
            refused: self.teller.refused,
            late: self.teller.late,
        }
    }
}
