//! Lessons: runs of a few islands in virtual time that train a tiny model, and that users can observe and disturb. A
//! twin trains the same islands with synchronous data parallelism.
//!
//! [`Lesson`] is a [`crate::world::World`], that is, the real syncer and learners in a simulation, shown as [`Frame`]s.
//! [`Twin`] trains in lockstep with the same islands, random numbers and faults. Both compute with
//! [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`]. So a [`LessonSpec`] and a list of [`Action`]s have the same
//! digest in native programs and in browsers.
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

/// Decoupled run of a few islands in virtual time.
pub struct Lesson {
    setup: LessonSetup,
    world: World,
    frames: FrameBuilder,
    /// Θ at the latest measurement, `[len]`.
    theta: Vec<f32>,
    /// Latest measured held-out loss, in nats per token.
    held_out: Option<f32>,
    measured_ms: u64,
    poison: Vec<Option<Poison>>,
    slow: Vec<f64>,
    /// One-way latency of each island, in milliseconds.
    latency_ms: Vec<u64>,
    /// Scheduled actions and changes.
    plan: LessonSchedule,
    marks: Vec<Mark>,
}

impl Lesson {
    /// Creates a lesson at time 0.
    ///
    /// # Errors
    /// [`LessonError::Range`]: a number in `spec` is out of range.
    pub fn new(spec: LessonSpec) -> Result<Self, LessonError> {
        let setup = LessonSetup::new(spec)?;
        let inner = setup.inner;
        let make = move |_| -> Box<dyn archipelago_runtime::engine::Trainer> {
            Box::new(LessonSetup::trainer(&inner, inner.batch))
        };
        let seed = spec.seed.into();
        let world = World::new(seed, setup.world(), LessonSetup::layout(), Box::new(make));
        let mut world = world.expect("the ranges leave nothing that cannot be run");
        world.trace();
        // Islands that start at time 0 already run in the first frame.
        world.run_for(0);
        let islands = spec.islands as usize;
        let mut lesson = Self {
            frames: FrameBuilder::new(&setup.run_spec(), &LessonSetup::layout()),
            theta: setup.theta.clone(),
            setup,
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

    /// Schedules an action on an island; an action in the past is performed now.
    ///
    /// # Errors
    /// - [`LessonError::NoIsland`]: the lesson has no such island.
    /// - [`LessonError::Range`]: `factor` is out of range.
    pub fn act(&mut self, action: Action) -> Result<(), LessonError> {
        action.check(self.setup.spec.islands)?;
        self.plan.add(action.at_ms, Due::Act(action));
        self.do_due();
        Ok(())
    }

    /// Schedules a change of a setting; a change in the past takes effect now.
    ///
    /// # Errors
    /// [`LessonError::Range`]: the value is out of range.
    pub fn change(&mut self, change: Change) -> Result<(), LessonError> {
        change.to.put(self.setup.spec)?;
        self.plan.add(change.at_ms, Due::Set(change.to));
        self.do_due();
        Ok(())
    }

    /// Advances the time to `to_ms`, but at most to [`LESSON_MS_MAX`]. An earlier time has no effect.
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

    /// Returns the time since the beginning, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.world.now().0
    }

    /// Returns the current state, and the events since the previous call.
    pub fn frame(&mut self) -> Frame {
        let (events, traces) = (self.world.take_events(), self.world.take_traces());
        let mut marks = self.frames.marks(&self.world, events, traces);
        marks.append(&mut self.marks);
        let machines = self.world.machines();
        let islands = (0..).zip(&machines).map(|(i, machine)| self.island(i, machine)).collect();
        Frame { now_ms: self.now_ms(), islands, run: self.totals(), marks }
    }

    /// Returns a continuation of a fixed prompt by Θ, `bytes` bytes long. During a merge, Θ of the latest measurement
    /// is used.
    pub fn sample(&mut self, bytes: u32) -> String {
        let now = self.world.syncer().and_then(|syncer| syncer.theta());
        self.setup.sample(now.as_ref().unwrap_or(&self.theta), bytes as usize)
    }

    /// Returns the SHA-256 of all decisions and merges so far, in hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        hex(&self.world.digest())
    }

    fn measure(&mut self) {
        let at_ms = self.now_ms();
        self.measured_ms = at_ms;
        let syncer = self.world.syncer().expect("no lesson crashes its syncer");
        // During a merge, which takes 2 ms, there is no Θ to measure.
        let Some(theta) = syncer.theta() else { return };
        let tokens = syncer.status().tokens_merged;
        let loss = self.setup.measure(&theta);
        (self.theta, self.held_out) = (theta, Some(loss));
        self.marks.push(Mark::HeldOut { at_ms, loss, tokens });
    }

    fn do_due(&mut self) {
        for due in self.plan.take_due(self.now_ms()) {
            match due {
                Due::Act(action) => self.perform(action),
                Due::Set(setting) => {
                    let spec = setting.put(self.setup.spec).expect("checked when it was planned");
                    self.apply_spec(spec);
                }
            }
        }
    }

    /// Applies new settings to syncer and islands. An island with raised latency keeps the difference.
    fn apply_spec(&mut self, spec: LessonSpec) {
        let before = self.setup.spec;
        self.setup.change(self.now_ms(), spec);
        for (i, latency_ms) in (0..).zip(&mut self.latency_ms) {
            *latency_ms = *latency_ms - u64::from(before.latency_ms) + u64::from(spec.latency_ms);
            let machine = self.setup.machine(i);
            let link = LinkSpec { latency_ms: *latency_ms, ..machine.link };
            self.world.retune_machine(i, machine.step_ms, machine.jitter, link);
        }
        self.world.retune_syncer(self.setup.quorum(), spec.merge);
    }

    fn perform(&mut self, action: Action) {
        if action.is_too_early(&self.setup.spec, self.now_ms()) {
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
                self.latency_ms[place] = action.latency_ms(&self.setup.spec);
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
            _ if self.now_ms() < self.setup.spec.starts_ms_of(i) => IslandState::Expected,
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
            step_ms: self.setup.spec.step_ms_of(i),
            possible_steps: self.setup.possible_steps(i, self.now_ms()),
        }
    }

    fn totals(&self) -> Totals {
        let status = self.world.status().expect("no lesson crashes its syncer");
        let tokens_trained: u64 = self.world.machines().iter().map(|machine| machine.tokens).sum();
        let ratio = |part: f64, whole: f64| if whole > 0.0 { (part / whole).min(1.0) } else { 1.0 };
        Totals {
            held_out: self.held_out,
            floor: self.setup.floor,
            tokens_trained,
            tokens_merged: status.tokens_merged,
            participation: ratio(status.tokens_merged as f64, tokens_trained as f64),
            goodput: ratio(tokens_trained as f64, self.setup.possible_tokens(self.now_ms())),
            rounds: status.rounds,
            live: status.live,
            bytes_up: self.frames.bytes_up,
            bytes_down: self.frames.bytes_down,
            grace_ms: status.grace_ms,
            quorum_ms: status.timing.quorum_ms,
            refused: self.frames.refused,
            late: self.frames.late,
        }
    }
}
