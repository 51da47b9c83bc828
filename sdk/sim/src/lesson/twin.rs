//! The same islands as synchronous data-parallel training: one common step at a time.

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

/// Bytes of a value in an all-reduce: synchronous training exchanges uncoded gradients.
const VALUE_BYTES: u64 = 4;
/// Values per parameter that a joining island fetches: the parameter and both of AdamW's moments.
const STATE_VALUES: u64 = 3;
/// Duration of the stop before an elastic run continues without the missing islands, in milliseconds.
const REFORM_MS: u64 = 3_000;
/// Values covered by a forged scale: one block of a lesson.
const FORGED: usize = 64;

/// The islands of a lesson, trained in lockstep. Each step waits for the slowest island and for the sum of all
/// gradients. When an island is missing, all others stop until it is back or, with [`Lockstep::Elastic`], until they
/// have restarted without it.
///
/// One trainer takes the batches of all islands, which is what synchronous training computes. A step takes as long as
/// the longest of the islands' steps, drawn as in [`crate::world`], and then the exchange follows. The exchange takes
/// `2 · latency + 2 (M − 1) / M · bytes / bandwidth`, with the largest latency. All islands begin by fetching the
/// parameters. An island that starts later, or again, stops all others while it fetches parameters and moments.
pub struct Twin {
    stage: LessonSetup,
    trainer: CpuTrainer,
    reader: WindowReader,
    /// Random numbers for each island's steps.
    rngs: Vec<Rng>,
    islands: Vec<IslandCondition>,
    /// Number of islands that must fetch the state before the next step.
    fetching: u64,
    now_ms: u64,
    doing: Activity,
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
    /// The next activity is to be decided now.
    Between,
    /// A step; the gradient is ready at the first time, and the step is over at the second.
    Step { from_ms: u64, computed_ms: u64, until_ms: u64 },
    /// All wait for an island.
    Stall { island: u32, from_ms: u64 },
    /// New islands fetch the state.
    Loading { until_ms: u64 },
}

impl Twin {
    /// Creates the twin of a lesson of `spec`, at time 0.
    ///
    /// # Errors
    /// [`LessonError::Range`]: a number is out of the range that its field names.
    pub fn new(spec: LessonSpec) -> Result<Self, LessonError> {
        let stage = LessonSetup::new(spec)?;
        let mut twin = Self {
            trainer: LessonSetup::trainer(&stage.inner, stage.inner.batch),
            reader: WindowReader::new(&stage.run_spec()).expect("a corpus with windows"),
            rngs: (0..spec.islands).map(|i| Rng::stream(spec.seed.into(), 0x2_0000 + u64::from(i))).collect(),
            islands: vec![IslandCondition::at(spec.latency_ms.into()); spec.islands as usize],
            stage,
            fetching: 0,
            now_ms: 0,
            doing: Activity::Between,
            plan: LessonSchedule::default(),
            steps: 0,
            tokens: 0,
            bytes: 0,
            loss: None,
            held_out: None,
            measured_ms: 0,
            marks: Vec::new(),
        };
        twin.gather();
        let theta = twin.stage.theta.clone();
        twin.trainer.params_mut().copy_from_slice(&theta);
        twin.measure();
        Ok(twin)
    }

    /// Applies an action to an island at its time, or now if that has passed.
    ///
    /// # Errors
    /// - [`LessonError::NoIsland`]: the lesson has no such island.
    /// - [`LessonError::Range`]: `factor` is out of its range.
    pub fn act(&mut self, action: Action) -> Result<(), LessonError> {
        action.check(self.stage.spec.islands)?;
        self.plan.add(action.at_ms, Due::Act(action));
        Ok(())
    }

    /// Changes a setting at its time, or now if that has passed.
    ///
    /// # Errors
    /// [`LessonError::Range`]: the value is out of its range.
    pub fn change(&mut self, change: Change) -> Result<(), LessonError> {
        change.to.put(self.stage.spec)?;
        self.plan.add(change.at_ms, Due::Set(change.to));
        Ok(())
    }

    /// Advances time to `to_ms`, at most [`LESSON_MS_MAX`]. Time never goes back.
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

    /// Returns the present state, and the events since the last frame.
    pub fn frame(&mut self) -> TwinFrame {
        let mut marks = std::mem::take(&mut self.marks);
        if let Activity::Stall { island, from_ms } = self.doing {
            marks.push(TwinMark::Stall { island, from_ms, until_ms: None });
        }
        let possible = self.stage.possible_tokens(self.now_ms);
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

    /// Returns `bytes` bytes of text that the model continues from a fixed prompt.
    pub fn sample(&mut self, bytes: u32) -> String {
        self.stage.sample(self.trainer.params(), bytes as usize)
    }

    /// Returns the SHA-256 of the parameters and of the number of steps, as hex digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(self.steps.to_le_bytes());
        for value in self.trainer.params() {
            sha.update(value.to_le_bytes());
        }
        hex(&sha.finalize())
    }

    /// Returns the islands that take part and are unreachable.
    fn missing(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.islands).filter(|(_, island)| island.here && island.is_gone()).map(|(i, _)| i)
    }

    fn do_due(&mut self) {
        let now_ms = self.now_ms;
        for due in self.plan.take_due(now_ms) {
            let spec = self.stage.spec;
            let action = match due {
                Due::Act(action) => action,
                Due::Set(setting) => {
                    self.go_on_with(setting.put(spec).expect("checked when it was planned"));
                    continue;
                }
            };
            if action.is_too_early(&spec, now_ms) {
                continue;
            }
            self.fetching += u64::from(self.islands[action.island as usize].perform(action, &spec));
        }
    }

    /// The step under way keeps its duration.
    fn go_on_with(&mut self, spec: LessonSpec) {
        let before_ms = u64::from(self.stage.spec.latency_ms);
        self.stage.change(self.now_ms, spec);
        for island in &mut self.islands {
            island.latency_ms = island.latency_ms - before_ms + u64::from(spec.latency_ms);
        }
    }

    /// Returns the time at which islands stalled since `from_ms` restart without the missing ones. Without
    /// [`Lockstep::Elastic`], or without any island left, that is never.
    fn reform_ms(&self, from_ms: u64) -> u64 {
        let left = self.islands.iter().any(|island| island.here && !island.is_gone());
        if left && self.stage.spec.lockstep == Lockstep::Elastic { from_ms + REFORM_MS } else { u64::MAX }
    }

    /// Continues without the missing islands.
    fn leave_behind(&mut self) {
        for island in &mut self.islands {
            island.here &= !island.is_gone();
        }
        self.fetching = 0;
        self.rebuild();
    }

    /// Chooses the common activity from the present state of the islands.
    fn decide(&mut self) {
        if let Activity::Stall { from_ms, .. } = self.doing
            && self.reform_ms(from_ms) <= self.now_ms
        {
            self.leave_behind();
        }
        let missing = self.missing().next();
        match (self.doing, missing) {
            // The progress of the step is lost with the island.
            (Activity::Step { .. } | Activity::Loading { .. } | Activity::Between, Some(island)) => {
                self.doing = Activity::Stall { island, from_ms: self.now_ms };
            }
            (Activity::Stall { island, from_ms }, None) => {
                self.marks.push(TwinMark::Stall { island, from_ms, until_ms: Some(self.now_ms) });
                self.doing = Activity::Between;
            }
            _ => {}
        }
        if let Activity::Loading { until_ms } = self.doing
            && until_ms <= self.now_ms
        {
            self.doing = Activity::Between;
            self.fetching = 0;
        }
        if matches!(self.doing, Activity::Between) {
            self.gather();
            self.doing = if self.fetching > 0 { self.loading() } else { self.step() };
        }
    }

    /// Admits the islands whose start time has come.
    fn gather(&mut self) {
        let (now_ms, spec) = (self.now_ms, self.stage.spec);
        let mut came = 0;
        for (i, island) in (0..).zip(&mut self.islands) {
            // Without elasticity, even an island that is cut off at its start time is admitted and waited for.
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

    /// Rebuilds the trainer for the batches of all present islands; parameters and moments stay.
    fn rebuild(&mut self) {
        let batch = self.stage.inner.batch * self.members();
        let mut trainer = LessonSetup::trainer(&self.stage.inner, batch);
        trainer.params_mut().copy_from_slice(self.trainer.params());
        if let Some(moments) = self.trainer.moments() {
            trainer.resume(&moments).expect("moments of this model");
        }
        self.trainer = trainer;
    }

    fn members(&self) -> u32 {
        self.islands.iter().map(|island| u32::from(island.here)).sum()
    }

    /// Returns the time for `bytes` on the link of an island, in milliseconds.
    fn transfer_ms(&self, bytes: u64) -> u64 {
        match u64::from(self.stage.spec.kilobytes_per_s) {
            0 => 0,
            rate => bytes.div_ceil(rate),
        }
    }

    fn values(&self) -> u64 {
        self.trainer.params().len() as u64
    }

    fn loading(&mut self) -> Activity {
        // Before the first step, all moments are 0.
        let state_values = if self.steps == 0 { 1 } else { STATE_VALUES };
        let bytes = state_values * VALUE_BYTES * self.values();
        self.bytes += self.fetching * bytes;
        let ms = 2 * self.latency_ms() + self.transfer_ms(bytes);
        Activity::Loading { until_ms: self.now_ms + ms.max(1) }
    }

    fn step(&mut self) -> Activity {
        let spec = self.stage.spec;
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

    /// Returns the time of an all-reduce over the islands' links, in milliseconds.
    fn exchange_ms(&self) -> u64 {
        let members = u64::from(self.members());
        if members < 2 {
            return 0;
        }
        2 * self.latency_ms() + self.transfer_ms(self.exchange_bytes() / members)
    }

    /// Returns the largest one-way latency among the present islands, in milliseconds.
    fn latency_ms(&self) -> u64 {
        let here = self.islands.iter().filter(|island| island.here);
        here.map(|island| island.latency_ms).max().unwrap_or(self.stage.spec.latency_ms.into())
    }

    /// Returns the bytes of an all-reduce, over all islands.
    fn exchange_bytes(&self) -> u64 {
        2 * u64::from(self.members().saturating_sub(1)) * VALUE_BYTES * self.values()
    }

    /// Returns the time of the next event.
    fn next_ms(&self) -> u64 {
        let acts_ms = self.plan.next_ms().unwrap_or(u64::MAX);
        let doing_ms = match self.doing {
            Activity::Step { until_ms, .. } | Activity::Loading { until_ms } => until_ms,
            Activity::Stall { from_ms, .. } => self.reform_ms(from_ms),
            Activity::Between => u64::MAX,
        };
        acts_ms.min(doing_ms).min(self.measured_ms + MEASURE_MS)
    }

    /// Completes the current step if its time has come.
    fn end_step(&mut self) {
        let Activity::Step { from_ms, computed_ms, until_ms } = self.doing else { return };
        if until_ms > self.now_ms {
            return;
        }
        self.doing = Activity::Between;
        self.bytes += self.exchange_bytes();
        self.marks.push(TwinMark::Step { from_ms, computed_ms, until_ms });
        let windows = self.stage.inner.batch * self.members();
        let batch = self.reader.next_batch(&self.stage.corpus, windows);
        let lr = learning_rate(&self.stage.inner, self.tokens);
        self.steps += 1;
        self.tokens += self.stage.step_tokens() * u64::from(self.members());
        if self.islands.iter().any(|island| island.here && island.poisoned) {
            return self.forged_step(lr);
        }
        let loss = if self.is_lied_to() {
            self.false_step(&batch, lr)
        } else {
            self.trainer.step(&batch, lr).expect("training a tiny model by its schedule is stable").loss
        };
        self.loss = Some(loss);
    }

    /// Takes the AdamW step for a gradient that is far too large in one block and is not refused. After clipping, all
    /// other values are negligible, and those of the block move by the learning rate.
    fn forged_step(&mut self, lr: f32) {
        for value in &mut self.trainer.params_mut()[..FORGED] {
            *value -= lr;
        }
    }

    fn measure(&mut self) {
        self.measured_ms = self.now_ms;
        let loss = self.stage.measure(self.trainer.params());
        self.held_out = Some(loss);
        self.marks.push(TwinMark::HeldOut { at_ms: self.now_ms, loss, tokens: self.tokens });
    }
}

/// Faults of an island, and its participation.
#[derive(Clone, Copy)]
struct IslandCondition {
    /// Whether it takes part; it may have died since. An elastic run drops missing islands.
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
    /// Creates an island that has not started, at this latency.
    fn at(latency_ms: u64) -> Self {
        Self { here: false, dead: false, cut: false, poisoned: false, lies: false, slow: 1.0, latency_ms }
    }

    /// Returns true if the other islands cannot reach it.
    fn is_gone(&self) -> bool {
        self.dead || self.cut
    }

    /// Applies `action`. Returns true if the island must fetch the state; an island that has not been admitted fetches
    /// it on admission.
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
    /// Returns true if a participating island lies.
    fn is_lied_to(&self) -> bool {
        self.islands.iter().any(|island| island.here && island.lies)
    }

    /// Takes the AdamW step in which liars send [`LIE_TIMES`] times their gradient. `batch` is that of all
    /// participating islands, in order. Returns the loss before the step.
    fn false_step(&mut self, batch: &[u32], lr: f32) -> f32 {
        let members = self.members();
        let its_tokens = batch.len() / members as usize;
        let (loss, grad) = self.trainer.loss_and_grad(batch).expect("a batch of this model");
        let mut sum = grad.to_vec();
        let mut alone = LessonSetup::trainer(&self.stage.inner, self.stage.inner.batch);
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
        adamw.step(&LessonSetup::layout(), &self.stage.inner, lr, self.trainer.params_mut(), &sum);
        let moments = OptimiserState::of_adamw(adamw.steps, adamw.m, adamw.v);
        self.trainer.resume(&moments).expect("moments of this model");
        loss
    }
}
