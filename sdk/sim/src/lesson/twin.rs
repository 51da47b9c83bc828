//! Synchronous data-parallel training of a lesson's islands, for comparison: one common step at a time.

use archipelago_core::bytes::hex;
use archipelago_core::model::{AdamW, learning_rate};
use archipelago_runtime::engine::cpu::CpuTrainer;
use archipelago_runtime::engine::{OptimiserState, Trainer};
use sha2::{Digest, Sha256};

use super::change::{Due, LessonSchedule};
use super::setup::{LIE_TIMES, LessonSetup, MEASURE_MS};
use super::{Action, Change, Deed, LESSON_MS_MAX, LessonError, LessonSpec, Lockstep, TwinFrame, TwinMark};
use crate::corpus::WindowReader;
use crate::world::Rng;

/// Size of a value in an all-reduce, in bytes. Synchronous training exchanges gradients as 32-bit floats.
const VALUE_BYTES: u64 = 4;
/// Values per parameter that a joining island fetches: the parameter and its two AdamW moments.
const STATE_VALUES: u64 = 3;
/// Time that an elastic run waits before it continues without the missing islands, in milliseconds.
const REFORM_MS: u64 = 3_000;
/// Number of values with a forged scale: one block of a lesson.
const FORGED: usize = 64;

/// Islands of a lesson, trained in lockstep. Each step waits for the slowest island and for the sum of all gradients.
/// If an island is missing, all others wait until it is back or, with [`Lockstep::Elastic`], continue without it after
/// a while.
///
/// One trainer processes the batches of all islands, which gives the result of synchronous training. A step takes as
/// long as the slowest island's computation, with random times as in [`crate::world`], plus the exchange. The exchange
/// takes `2 · latency + 2 (M − 1) / M · bytes / bandwidth`, with the largest latency of any island. First, all islands
/// fetch the parameters. When an island starts later or restarts, all others wait while it fetches parameters and
/// moments.
pub struct Twin {
    setup: LessonSetup,
    trainer: CpuTrainer,
    reader: WindowReader,
    /// Random number generator for each island's step times.
    rngs: Vec<Rng>,
    islands: Vec<IslandCondition>,
    /// Number of islands that must fetch the state before the next step.
    fetching: u64,
    now_ms: u64,
    activity: Activity,
    plan: LessonSchedule,
    steps: u64,
    tokens: u64,
    bytes: u64,
    loss: Option<f32>,
    held_out: Option<f32>,
    measured_ms: u64,
    marks: Vec<TwinMark>,
}

#[derive(Clone, Copy)]
enum Activity {
    /// No activity; the next one is about to be chosen.
    Between,
    /// A step. The gradients are ready at `computed_ms`, and the step ends at `until_ms`.
    Step { from_ms: u64, computed_ms: u64, until_ms: u64 },
    /// All islands wait for a missing one.
    Stall { island: u32, from_ms: u64 },
    /// Islands fetch the state while the others wait.
    Loading { until_ms: u64 },
}

impl Twin {
    /// Creates the twin of a lesson of `spec`, at time 0.
    ///
    /// # Errors
    /// [`LessonError::Range`]: a number in `spec` is out of range.
    pub fn new(spec: LessonSpec) -> Result<Self, LessonError> {
        let setup = LessonSetup::new(spec)?;
        let mut twin = Self {
            trainer: LessonSetup::trainer(&setup.inner, setup.inner.batch),
            reader: WindowReader::new(&setup.run_spec()).expect("a corpus with windows"),
            rngs: (0..spec.islands).map(|i| Rng::stream(spec.seed.into(), 0x2_0000 + u64::from(i))).collect(),
            islands: vec![IslandCondition::at(spec.latency_ms.into()); spec.islands as usize],
            setup,
            fetching: 0,
            now_ms: 0,
            activity: Activity::Between,
            plan: LessonSchedule::default(),
            steps: 0,
            tokens: 0,
            bytes: 0,
            loss: None,
            held_out: None,
            measured_ms: 0,
            marks: Vec::new(),
        };
        twin.admit();
        let theta = twin.setup.theta.clone();
        twin.trainer.params_mut().copy_from_slice(&theta);
        twin.measure();
        Ok(twin)
    }

    /// Schedules an action on an island; an action in the past is performed at the next advance.
    ///
    /// # Errors
    /// - [`LessonError::NoIsland`]: the lesson has no such island.
    /// - [`LessonError::Range`]: `factor` is out of range.
    pub fn act(&mut self, action: Action) -> Result<(), LessonError> {
        action.check(self.setup.spec.islands)?;
        self.plan.add(action.at_ms, Due::Act(action));
        Ok(())
    }

    /// Schedules a change of a setting; a change in the past takes effect at the next advance.
    ///
    /// # Errors
    /// [`LessonError::Range`]: the value is out of range.
    pub fn change(&mut self, change: Change) -> Result<(), LessonError> {
        change.to.put(self.setup.spec)?;
        self.plan.add(change.at_ms, Due::Set(change.to));
        Ok(())
    }

    /// Advances the time to `to_ms`, but at most to [`LESSON_MS_MAX`]. An earlier time has no effect.
    pub fn advance(&mut self, to_ms: u64) {
        let to_ms = to_ms.min(LESSON_MS_MAX).max(self.now_ms);
        loop {
            self.do_due();
            self.decide();
            let next_ms = self.next_ms();
            if next_ms > to_ms {
                break;
            }
            self.now_ms = self.now_ms.max(next_ms);
            self.end_step();
            if self.now_ms >= self.measured_ms + MEASURE_MS {
                self.measure();
            }
        }
        self.now_ms = to_ms;
        self.do_due();
    }

    /// Returns the current state, and the events since the previous call.
    pub fn frame(&mut self) -> TwinFrame {
        let mut marks = std::mem::take(&mut self.marks);
        if let Activity::Stall { island, from_ms } = self.activity {
            marks.push(TwinMark::Stall { island, from_ms, until_ms: None });
        }
        let possible = self.setup.possible_tokens(self.now_ms);
        TwinFrame {
            now_ms: self.now_ms,
            stalled_by: self.missing().collect(),
            steps: self.steps,
            tokens: self.tokens,
            goodput: if possible > 0.0 { (self.tokens as f64 / possible).min(1.0) } else { 1.0 },
            bytes: self.bytes,
            loss: self.loss,
            held_out: self.held_out,
            marks,
        }
    }

    /// Returns a continuation of a fixed prompt by the model, `bytes` bytes long.
    pub fn sample(&mut self, bytes: u32) -> String {
        self.setup.sample(self.trainer.params(), bytes as usize)
    }

    /// Returns the SHA-256 of the number of steps and the parameters, in hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(self.steps.to_le_bytes());
        for value in self.trainer.params() {
            sha.update(value.to_le_bytes());
        }
        hex(&sha.finalize())
    }

    /// Returns the participating islands that are stopped or disconnected.
    fn missing(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.islands).filter(|(_, island)| island.here && island.is_gone()).map(|(i, _)| i)
    }

    fn do_due(&mut self) {
        let now_ms = self.now_ms;
        for due in self.plan.take_due(now_ms) {
            let spec = self.setup.spec;
            let action = match due {
                Due::Act(action) => action,
                Due::Set(setting) => {
                    self.apply_spec(setting.put(spec).expect("checked when it was planned"));
                    continue;
                }
            };
            if action.is_too_early(&spec, now_ms) {
                continue;
            }
            self.fetching += u64::from(self.islands[action.island as usize].perform(action, &spec));
        }
    }

    /// Applies new settings. The current step keeps its duration.
    fn apply_spec(&mut self, spec: LessonSpec) {
        let before_ms = u64::from(self.setup.spec.latency_ms);
        self.setup.change(self.now_ms, spec);
        for island in &mut self.islands {
            island.latency_ms = island.latency_ms - before_ms + u64::from(spec.latency_ms);
        }
    }

    /// Returns the time at which islands that have waited since `from_ms` continue without the missing ones. It is
    /// `u64::MAX` without [`Lockstep::Elastic`], or if no island is left.
    fn reform_ms(&self, from_ms: u64) -> u64 {
        let left = self.islands.iter().any(|island| island.here && !island.is_gone());
        if left && self.setup.spec.lockstep == Lockstep::Elastic { from_ms + REFORM_MS } else { u64::MAX }
    }

    /// Removes the missing islands from the run.
    fn remove_missing(&mut self) {
        for island in &mut self.islands {
            island.here &= !island.is_gone();
        }
        self.fetching = 0;
        self.rebuild();
    }

    /// Chooses the common activity from the current state of the islands.
    fn decide(&mut self) {
        if let Activity::Stall { from_ms, .. } = self.activity
            && self.reform_ms(from_ms) <= self.now_ms
        {
            self.remove_missing();
        }
        let missing = self.missing().next();
        match (self.activity, missing) {
            // The computation of the current step is lost with the island.
            (Activity::Step { .. } | Activity::Loading { .. } | Activity::Between, Some(island)) => {
                self.activity = Activity::Stall { island, from_ms: self.now_ms };
            }
            (Activity::Stall { island, from_ms }, None) => {
                self.marks.push(TwinMark::Stall { island, from_ms, until_ms: Some(self.now_ms) });
                self.activity = Activity::Between;
            }
            _ => {}
        }
        if let Activity::Loading { until_ms } = self.activity
            && until_ms <= self.now_ms
        {
            self.activity = Activity::Between;
            self.fetching = 0;
        }
        if matches!(self.activity, Activity::Between) {
            self.admit();
            self.activity = if self.fetching > 0 { self.loading() } else { self.step() };
        }
    }

    /// Admits the islands whose start time has come.
    fn admit(&mut self) {
        let (now_ms, spec) = (self.now_ms, self.setup.spec);
        let mut came = 0;
        for (i, island) in (0..).zip(&mut self.islands) {
            // Unless the run is elastic, even an island that is missing at its start time is admitted, and the others
            // wait for it.
            let comes = !island.here
                && spec.starts_ms_of(i) <= now_ms
                && !(spec.lockstep == Lockstep::Elastic && island.is_gone());
            island.here |= comes;
            came += u64::from(comes);
        }
        if came > 0 {
            self.fetching += came;
            self.rebuild();
        }
    }

    /// Rebuilds the trainer for the batches of all participating islands, with the same parameters and moments.
    fn rebuild(&mut self) {
        let batch = self.setup.inner.batch * self.members();
        let mut trainer = LessonSetup::trainer(&self.setup.inner, batch);
        trainer.params_mut().copy_from_slice(self.trainer.params());
        if let Some(moments) = self.trainer.moments() {
            trainer.resume(&moments).expect("moments of this model");
        }
        self.trainer = trainer;
    }

    fn members(&self) -> u32 {
        self.islands.iter().map(|island| u32::from(island.here)).sum()
    }

    /// Returns the time to transfer `bytes` bytes over an island's link, in milliseconds.
    fn transfer_ms(&self, bytes: u64) -> u64 {
        match u64::from(self.setup.spec.kilobytes_per_s) {
            0 => 0,
            rate => bytes.div_ceil(rate),
        }
    }

    fn values(&self) -> u64 {
        self.trainer.params().len() as u64
    }

    fn loading(&mut self) -> Activity {
        // Before the first step, all moments are 0 and need not be fetched.
        let state_values = if self.steps == 0 { 1 } else { STATE_VALUES };
        let bytes = state_values * VALUE_BYTES * self.values();
        self.bytes += self.fetching * bytes;
        let ms = 2 * self.latency_ms() + self.transfer_ms(bytes);
        Activity::Loading { until_ms: self.now_ms + ms.max(1) }
    }

    fn step(&mut self) -> Activity {
        let spec = self.setup.spec;
        let mut longest_ms = 1;
        for (i, (island, rng)) in (0..).zip(self.islands.iter().zip(&mut self.rngs)) {
            let around = 1.0 + spec.jitter * (2.0 * rng.unit() - 1.0);
            if island.here {
                longest_ms = longest_ms.max((spec.step_ms_of(i) as f64 * island.slow * around) as u64);
            }
        }
        let computed_ms = self.now_ms + longest_ms;
        Activity::Step { from_ms: self.now_ms, computed_ms, until_ms: computed_ms + self.exchange_ms() }
    }

    /// Returns the time of an all-reduce, in milliseconds.
    fn exchange_ms(&self) -> u64 {
        let members = u64::from(self.members());
        if members < 2 {
            return 0;
        }
        2 * self.latency_ms() + self.transfer_ms(self.exchange_bytes() / members)
    }

    /// Returns the largest one-way latency of any participating island, in milliseconds.
    fn latency_ms(&self) -> u64 {
        let here = self.islands.iter().filter(|island| island.here);
        here.map(|island| island.latency_ms).max().unwrap_or(self.setup.spec.latency_ms.into())
    }

    /// Returns the bytes that all islands together send in an all-reduce.
    fn exchange_bytes(&self) -> u64 {
        2 * u64::from(self.members().saturating_sub(1)) * VALUE_BYTES * self.values()
    }

    /// Returns the time of the next event: an action, the end of an activity, or a measurement.
    fn next_ms(&self) -> u64 {
        let acts_ms = self.plan.next_ms().unwrap_or(u64::MAX);
        let activity_ms = match self.activity {
            Activity::Step { until_ms, .. } | Activity::Loading { until_ms } => until_ms,
            Activity::Stall { from_ms, .. } => self.reform_ms(from_ms),
            Activity::Between => u64::MAX,
        };
        acts_ms.min(activity_ms).min(self.measured_ms + MEASURE_MS)
    }

    /// Completes the current step if its end time has come.
    fn end_step(&mut self) {
        let Activity::Step { from_ms, computed_ms, until_ms } = self.activity else { return };
        if until_ms > self.now_ms {
            return;
        }
        self.activity = Activity::Between;
        self.bytes += self.exchange_bytes();
        self.marks.push(TwinMark::Step { from_ms, computed_ms, until_ms });
        let windows = self.setup.inner.batch * self.members();
        let batch = self.reader.next_batch(&self.setup.corpus, windows);
        let lr = learning_rate(&self.setup.inner, self.tokens);
        self.steps += 1;
        self.tokens += self.setup.step_tokens() * u64::from(self.members());
        if self.islands.iter().any(|island| island.here && island.poisoned) {
            return self.forged_step(lr);
        }
        let loss = if self.has_lying_island() {
            self.step_with_lies(&batch, lr)
        } else {
            self.trainer.step(&batch, lr).expect("training a tiny model by its schedule is stable").loss
        };
        self.loss = Some(loss);
    }

    /// Takes an AdamW step with a gradient that is far too large in one block, because synchronous training refuses no
    /// gradient. After clipping, all other values are negligible, and those of the block move by the learning rate.
    fn forged_step(&mut self, lr: f32) {
        for value in &mut self.trainer.params_mut()[..FORGED] {
            *value -= lr;
        }
    }

    fn measure(&mut self) {
        self.measured_ms = self.now_ms;
        let loss = self.setup.measure(self.trainer.params());
        self.held_out = Some(loss);
        self.marks.push(TwinMark::HeldOut { at_ms: self.now_ms, loss, tokens: self.tokens });
    }
}

/// State of an island: faults and participation.
#[derive(Clone, Copy)]
struct IslandCondition {
    /// Whether the island participates. A participating island may be missing, but an elastic run removes it.
    here: bool,
    dead: bool,
    cut: bool,
    poisoned: bool,
    lies: bool,
    slow: f64,
    /// One-way latency, in milliseconds.
    latency_ms: u64,
}

impl IslandCondition {
    /// Creates the state of an island that has not started, with this latency.
    fn at(latency_ms: u64) -> Self {
        Self { here: false, dead: false, cut: false, poisoned: false, lies: false, slow: 1.0, latency_ms }
    }

    /// Returns true if the other islands cannot reach the island.
    fn is_gone(&self) -> bool {
        self.dead || self.cut
    }

    /// Applies `action`. Returns true if a participating island must fetch the state again. An island that does not
    /// participate yet fetches it on admission.
    fn perform(&mut self, action: Action, spec: &LessonSpec) -> bool {
        match action.deed {
            Deed::Kill => self.dead = true,
            Deed::Restart => return std::mem::take(&mut self.dead) && self.here,
            Deed::Slow => self.slow = action.factor,
            Deed::Far => self.latency_ms = action.latency_ms(spec),
            Deed::Partition => self.cut = true,
            Deed::Heal => self.cut = false,
            Deed::Poison => (self.poisoned, self.lies) = (true, false),
            Deed::Lie => (self.poisoned, self.lies) = (false, true),
            Deed::Cure => (self.poisoned, self.lies) = (false, false),
        }
        false
    }
}

impl Twin {
    /// Returns true if any participating island lies.
    fn has_lying_island(&self) -> bool {
        self.islands.iter().any(|island| island.here && island.lies)
    }

    /// Takes an AdamW step in which lying islands contribute [`LIE_TIMES`] times their gradient. `batch` has the
    /// windows of all participating islands, in order. Returns the loss before the step.
    fn step_with_lies(&mut self, batch: &[u32], lr: f32) -> f32 {
        let members = self.members();
        let its_tokens = batch.len() / members as usize;
        let (loss, grad) = self.trainer.loss_and_grad(batch).expect("a batch of this model");
        let mut sum = grad.to_vec();
        let mut alone = LessonSetup::trainer(&self.setup.inner, self.setup.inner.batch);
        alone.params_mut().copy_from_slice(self.trainer.params());
        let here = self.islands.iter().filter(|island| island.here);
        for (island, tokens) in here.zip(batch.chunks(its_tokens)) {
            if !island.lies {
                continue;
            }
            // The mean already contains the honest gradient once.
            let more = (LIE_TIMES - 1) as f32 / members as f32;
            let (_, its) = alone.loss_and_grad(tokens).expect("a batch of this model");
            sum.iter_mut().zip(its).for_each(|(sum, its)| *sum += more * its);
        }
        let moments = self.trainer.moments().expect("it trains with AdamW");
        let [m, v] = moments.adamw(sum.len()).expect("moments of this model");
        let mut adamw = AdamW { m: m.to_vec(), v: v.to_vec(), steps: moments.steps };
        adamw.step(&LessonSetup::layout(), &self.setup.inner, lr, self.trainer.params_mut(), &sum);
        let moments = OptimiserState::of_adamw(adamw.steps, adamw.m, adamw.v);
        self.trainer.resume(&moments).expect("moments of this model");
        loss
    }
}
