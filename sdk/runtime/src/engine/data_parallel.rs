//! Data-parallel CPU training by one learner: each of several workers computes the gradient of some windows of a batch.
//!
//! In browsers, helpers are Workers with a WebAssembly instance each. Parameters and windows are sent as messages, and
//! gradients return the same way. So neither `SharedArrayBuffer` nor headers for cross-origin isolation are needed.
//! Gradients are added in a fixed order. If a helper fails or hangs, the learner drops it and recomputes its part with
//! the same bits. The learner keeps the moments and the exchange.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;

use super::cpu::{CpuTrainer, Sums, instruction_set};
use super::{Engine, EngineError, Exchange, HostEngine, OptimiserState, StepStats};
use crate::wire::RunSpec;

/// CPU engine that assigns a part of each batch to [`Helper`]s and computes the rest itself at the same time.
///
/// Only the learner's own worker holds the moments. Gradients are added in a fixed order, that of the own worker first.
/// So for a given division of the batch, the bits of a step do not depend on timing. The division follows the measured
/// speed of the workers. Another division or number of workers changes bits, but only as much as the order of a sum
/// does.
pub struct DataParallel {
    host: HostEngine<CpuTrainer>,
    helpers: Vec<Box<dyn Helper>>,
    /// Division of the batch's windows: worker 0 is this one, worker `i + 1` is helper `i`.
    shares: WindowDivision,
    dropped: Vec<HelperError>,
    now_us: Rc<dyn Fn() -> u64>,
}

/// Part of a step that a helper is computing.
struct PendingTask {
    helper: usize,
    first: usize,
    windows: usize,
    working: PendingResult,
}

/// Multiple of the expected time after which a helper is dropped.
const PATIENCE: f64 = 20.0;
/// Minimum wait before a helper is dropped, in milliseconds, because a machine may stall briefly.
const PATIENCE_MS_MIN: u64 = 10_000;
/// Wait before a helper without measurements is dropped, in milliseconds, because it may still be loading.
const PATIENCE_MS_FIRST: u64 = 60_000;

impl DataParallel {
    /// Creates an engine of the trainer in `host` and of `helpers`, which may be empty. `now_us` returns microseconds
    /// since an arbitrary origin.
    #[must_use]
    pub fn new(
        mut host: HostEngine<CpuTrainer>,
        helpers: Vec<Box<dyn Helper>>,
        now_us: Rc<dyn Fn() -> u64>,
    ) -> Self {
        let shares = WindowDivision::new(host.trainer_mut().batch(), 1 + helpers.len());
        Self { host, helpers, shares, dropped: Vec::new(), now_us }
    }

    /// Returns the error of each dropped helper, in chronological order.
    #[must_use]
    pub fn dropped(&self) -> &[HelperError] {
        &self.dropped
    }

    /// Computes the gradient of a validated batch that has `count` target tokens.
    async fn differentiate(&mut self, tokens: &[u32], count: u64) -> Result<Sums, EngineError> {
        let window = tokens.len() / self.host.trainer_mut().batch();
        let own = self.shares.of(0);
        let begun = self.begin(tokens, window, count);

        let start_us = (self.now_us)();
        let gradient = self.host.trainer_mut().gradient();
        let mut loss = gradient.differentiate(&tokens[..own * window], count)?.loss;
        self.shares.measured(0, (self.now_us)().saturating_sub(start_us));

        let (mut grads, mut failed) = (Vec::with_capacity(begun.len()), Vec::new());
        for PendingTask { helper, first, windows, working } in begun {
            let found = working.await.and_then(|part| part.check(gradient.grad().len()));
            let part = match found {
                Ok(part) => {
                    self.shares.measured(1 + helper, part.busy_us);
                    part
                }
                Err(error) => {
                    failed.push((helper, error));
                    let kept = gradient.grad().to_vec();
                    let sums =
                        gradient.differentiate(&tokens[first * window..][..windows * window], count)?;
                    let grad = gradient.grad().to_vec();
                    gradient.set_grad(&kept);
                    HelperResult { loss: sums.loss, grad, busy_us: 0 }
                }
            };
            loss += part.loss;
            grads.push(part.grad);
        }
        let squares = gradient.add(&grads.iter().map(|grad| &grad[..]).collect::<Vec<_>>());
        for (helper, error) in failed.into_iter().rev() {
            self.helpers.remove(helper);
            self.shares.remove(1 + helper);
            self.dropped.push(error);
        }
        Ok(Sums { loss, squares })
    }

    /// Sends to each helper its windows of the batch.
    fn begin(&mut self, tokens: &[u32], window: usize, count: u64) -> Vec<PendingTask> {
        let params = self.host.params();
        let (mut first, mut begun) = (self.shares.of(0), Vec::with_capacity(self.helpers.len()));
        for (helper, worker) in self.helpers.iter_mut().enumerate() {
            let windows = self.shares.of(1 + helper);
            if windows == 0 {
                continue;
            }
            let expected_us = self.shares.expected_us(1 + helper);
            let patience_ms = expected_us.map_or(PATIENCE_MS_FIRST, |expected_us| {
                PATIENCE_MS_MIN.max((PATIENCE * expected_us / 1e3) as u64)
            });
            let tokens = &tokens[first * window..][..windows * window];
            let working = worker.begin(&Task { params, tokens, count, patience_ms });
            begun.push(PendingTask { helper, first, windows, working });
            first += windows;
        }
        begun
    }
}

impl Engine for DataParallel {
    fn exchange(&self) -> &dyn Exchange {
        self.host.exchange()
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self.host.exchange_mut()
    }

    fn describe(&self) -> String {
        match self.helpers.len() {
            0 => self.host.describe(),
            helpers => format!("cpu {} {} workers", instruction_set(), 1 + helpers),
        }
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if self.helpers.is_empty() {
            return self.host.step(tokens, lr).await;
        }
        let trainer = self.host.trainer_mut();
        trainer.check(tokens, lr)?;
        let target_count = trainer.target_count(tokens);
        let sums = self.differentiate(tokens, target_count).await?;
        let stats = self.host.trainer_mut().finish(sums, target_count, lr);
        self.shares.balance();
        stats
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        if self.helpers.is_empty() {
            return self.host.rehearse(tokens).await;
        }
        let trainer = self.host.trainer_mut();
        trainer.check(tokens, 0.0)?;
        let target_count = trainer.target_count(tokens);
        let sums = self.differentiate(tokens, target_count).await?;
        self.host.trainer_mut().finish_nothing(sums);
        Ok(true)
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        self.host.take_expert_counts()
    }

    fn saved_moments(&mut self) -> Option<OptimiserState> {
        self.host.saved_moments()
    }
}

/// Worker that computes gradients of the same model as [`super::cpu::CpuGradient`], without shared memory.
pub trait Helper {
    /// Begins a part of a step and returns after reading `task`, without waiting for the result. An earlier unfinished
    /// part is abandoned.
    fn begin(&mut self, task: &Task<'_>) -> PendingResult;
}

/// Future of a helper's part of a step. It completes within [`Task::patience_ms`], if need be with an error.
pub type PendingResult = Pin<Box<dyn Future<Output = Result<HelperResult, HelperError>>>>;

/// Request to a helper: the parameters, and the arguments of [`super::cpu::CpuGradient::differentiate`].
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Parameters, `[len]`.
    pub params: &'a [f32],
    /// Windows of the batch for this helper, `[n, context + 1]`. Masked tokens are marked as in [`crate::token`].
    pub tokens: &'a [u32],
    /// Number of target tokens in the whole batch.
    pub count: u64,
    /// Time after which the helper counts as failed, in milliseconds.
    pub patience_ms: u64,
}

/// Result of a helper.
#[derive(Clone, Debug, PartialEq)]
pub struct HelperResult {
    /// Sum of the losses of the target tokens in the helper's windows, in nats.
    pub loss: f64,
    /// The helper's part of the gradient, `[len]`.
    pub grad: Vec<f32>,
    /// Time that the helper took, in microseconds.
    pub busy_us: u64,
}

impl HelperResult {
    /// # Errors
    /// - [`HelperError::Length`]: the gradient does not have `expected` values.
    fn check(self, expected: usize) -> Result<Self, HelperError> {
        let found = self.grad.len();
        if found == expected { Ok(self) } else { Err(HelperError::Length { found, expected }) }
    }
}

/// Reason why a helper was dropped. The learner then computed the helper's part itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// The helper could not be started, or failed.
    #[error("a helper failed: {reason}")]
    Failed {
        /// Error message of the system.
        reason: String,
    },
    /// The helper did not answer in time.
    #[error("a helper did not answer within {patience_ms} ms")]
    Late {
        /// [`Task::patience_ms`].
        patience_ms: u64,
    },
    /// The length of the helper's gradient is that of another model.
    #[error("a helper's gradient has {found} values, the model has {expected}")]
    Length {
        /// Number of values received.
        found: usize,
        /// Number of the model's parameters.
        expected: usize,
    },
}

type Start = dyn Fn(&RunSpec) -> Vec<Box<dyn Helper>>;

/// Factory of an engine's helpers. The default starts none. Helpers end when they are dropped.
#[derive(Clone)]
pub struct Helpers(Rc<Start>);

impl Helpers {
    /// Creates a factory that starts helpers with `start`.
    pub fn new(start: impl Fn(&RunSpec) -> Vec<Box<dyn Helper>> + 'static) -> Self {
        Self(Rc::new(start))
    }

    /// Starts the helpers for the run that `spec` describes.
    #[must_use]
    pub fn start(&self, spec: &RunSpec) -> Vec<Box<dyn Helper>> {
        (self.0)(spec)
    }
}

impl Default for Helpers {
    fn default() -> Self {
        Self::new(|_| Vec::new())
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Helpers")
    }
}

/// Number of a batch's windows for each worker, derived from the workers' measured times per window.
struct WindowDivision {
    workers: Vec<Worker>,
    windows: usize,
    /// Steps since the last attempt to improve the division.
    steps: u32,
}

struct Worker {
    windows: usize,
    /// Smoothed time per window, in microseconds; `None` before the first measurement.
    window_us: Option<f64>,
}

/// Steps between two attempts to improve the division. Changes are rare because each one changes the bits of the sums.
const BALANCE_STEPS: u32 = 32;
/// Weight of the newest measurement in the smoothed time.
const NEWEST_WEIGHT: f64 = 0.125;
/// Fraction of the slowest worker's time that a new division must save.
const GAIN_MIN: f64 = 0.1;
/// Factor on the time of an idle worker at each attempt, so that an idle worker eventually gets windows again.
const IDLE_TIME_FACTOR: f64 = 0.95;

impl WindowDivision {
    /// Divides `windows` among `workers` as evenly as possible.
    pub fn new(windows: usize, workers: usize) -> Self {
        let worker = |_| Worker { windows: 0, window_us: None };
        let mut shares = Self { workers: (0..workers).map(worker).collect(), windows, steps: 0 };
        shares.divide();
        shares
    }

    /// Returns the number of windows of a worker.
    pub fn of(&self, worker: usize) -> usize {
        self.workers[worker].windows
    }

    /// Returns the expected time of a worker for its windows, in microseconds, if any measurement exists.
    pub fn expected_us(&self, worker: usize) -> Option<f64> {
        let worker = &self.workers[worker];
        worker.window_us.map(|window_us| window_us * worker.windows as f64)
    }

    /// Records the time that a worker took for its windows, in microseconds.
    pub fn measured(&mut self, worker: usize, busy_us: u64) {
        let worker = &mut self.workers[worker];
        let newest = busy_us.max(1) as f64 / worker.windows as f64;
        worker.window_us = Some(worker.window_us.map_or(newest, |old| old + NEWEST_WEIGHT * (newest - old)));
    }

    /// Removes a worker and divides its windows among the others. Worker 0 must not be removed.
    pub fn remove(&mut self, worker: usize) {
        self.workers.remove(worker);
        self.divide();
    }

    /// Divides the batch again every [`BALANCE_STEPS`] steps, if that saves enough time. Must be called once per step.
    pub fn balance(&mut self) {
        self.steps += 1;
        if self.steps < BALANCE_STEPS {
            return;
        }
        self.steps = 0;
        for idle in self.workers.iter_mut().filter(|worker| worker.windows == 0) {
            idle.window_us = idle.window_us.map(|window_us| window_us * IDLE_TIME_FACTOR);
        }
        let (before_us, before) = (self.slowest_us(), self.counts());
        self.divide();
        if self.slowest_us() > before_us * (1.0 - GAIN_MIN) {
            for (worker, windows) in self.workers.iter_mut().zip(before) {
                worker.windows = windows;
            }
        }
    }

    /// Assigns windows one by one to the worker that would finish first. Worker 0 gets at least one.
    fn divide(&mut self) {
        let known = self.workers.iter().filter_map(|worker| worker.window_us);
        let typical = known.fold(f64::INFINITY, f64::min);
        let typical = if typical.is_finite() { typical } else { 1.0 };
        let mut counts = vec![0; self.workers.len()];
        counts[0] = 1;
        for _ in 1..self.windows {
            let done = |i: usize| (counts[i] + 1) as f64 * self.workers[i].window_us.unwrap_or(typical);
            let first = (0..counts.len()).min_by(|&a, &b| done(a).total_cmp(&done(b)));
            counts[first.expect("worker 0 stays")] += 1;
        }
        for (worker, count) in self.workers.iter_mut().zip(counts) {
            worker.windows = count;
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.windows).collect()
    }

    fn slowest_us(&self) -> f64 {
        (0..self.workers.len()).filter_map(|worker| self.expected_us(worker)).fold(0.0, f64::max)
    }
}

// The tests show that training is the same with any number of helpers, even if they fail. Futures run on the executor
// of feature `platform`.
#[cfg(all(test, feature = "platform"))]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::ready;
    use std::num::NonZeroUsize;

    use futures::executor::block_on;

    use super::*;
    use crate::engine::cpu::CpuGradient;
    use crate::engine::{EngineError, Trainer};
    use crate::model::{ModelSpec, Preset};
    use crate::token;
    use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

    fn model() -> ModelSpec {
        Preset::Tiny.model(50)
    }

    fn spec() -> RunSpec {
        let apply = ApplyPolicy::Overwrite;
        RunSpec {
            model: model().into(),
            inner: Preset::Tiny.inner(),
            exchange: ExchangeSpec { fragments: 2, sync_every: 1, block: 64, code: Code::Int4, apply },
            data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
            seed: 0,
            frozen: None,
        }
    }

    /// Helper on this thread. It logs its requests.
    struct LocalHelper {
        gradient: CpuGradient,
        log: Rc<RefCell<Vec<HelperRequest>>>,
        /// Number of tasks that succeed before it fails.
        lives: usize,
        fault: HelperFault,
    }

    #[derive(Clone, Copy)]
    enum HelperFault {
        Dies,
        Short,
    }

    /// Number of windows, and patience in milliseconds, of a request.
    type HelperRequest = (usize, u64);

    impl Helper for LocalHelper {
        fn begin(&mut self, task: &Task<'_>) -> PendingResult {
            self.log.borrow_mut().push((task.tokens.len() / 65, task.patience_ms));
            self.gradient.params_mut().copy_from_slice(task.params);
            let loss = self.gradient.differentiate(task.tokens, task.count).unwrap().loss;
            let mut part = HelperResult { loss, grad: self.gradient.grad().to_vec(), busy_us: 1 };
            let result = match (self.lives, self.fault) {
                (0, HelperFault::Dies) => Err(HelperError::Late { patience_ms: task.patience_ms }),
                (0, HelperFault::Short) => {
                    part.grad.pop();
                    Ok(part)
                }
                _ => Ok(part),
            };
            self.lives = self.lives.saturating_sub(1);
            Box::pin(ready(result))
        }
    }

    struct Setup {
        team: DataParallel,
        /// One log for each helper.
        logs: Vec<Rc<RefCell<Vec<HelperRequest>>>>,
    }

    /// Creates an engine with helpers that fail after the given numbers of tasks.
    fn setup(lives: &[(usize, HelperFault)]) -> Setup {
        let spec = spec();
        let trainer = CpuTrainer::new(&model(), &spec.inner, NonZeroUsize::MIN).unwrap();
        let logs: Vec<_> = lives.iter().map(|_| Rc::default()).collect();
        let helper = |(&(lives, fault), log): (_, &Rc<_>)| -> Box<dyn Helper> {
            let gradient = CpuGradient::new(&model(), spec.inner.batch, NonZeroUsize::MIN).unwrap();
            Box::new(LocalHelper { gradient, log: Rc::clone(log), lives, fault })
        };
        let helpers = lives.iter().zip(&logs).map(helper).collect();
        let now_us = Cell::new(0);
        let clock = move || now_us.replace(now_us.get() + 1);
        Setup {
            team: DataParallel::new(HostEngine::new(&spec, trainer).unwrap(), helpers, Rc::new(clock)),
            logs,
        }
    }

    /// Returns the tokens of a batch. Odd steps have masked tokens, mostly in the windows of the first workers.
    fn tokens(step: u32) -> Vec<u32> {
        let is_given = |i: u32| step % 2 == 1 && (i / 65 < 3 && i % 65 != 9 || i.is_multiple_of(4));
        let marked = |i, id| if is_given(i) { id | token::MASKED } else { id };
        (0..8 * 65).map(|i| marked(i, (i * i / 7 + i % 5 + step) % 50)).collect()
    }

    /// Trains for `steps` steps and returns their statistics and the final parameters.
    fn train(team: &mut DataParallel, steps: u32) -> (Vec<StepStats>, Vec<f32>) {
        let stats = (0..steps).map(|step| block_on(team.step(&tokens(step), 1e-3)).unwrap()).collect();
        (stats, team.host.params().to_vec())
    }

    fn assert_close(found: &(Vec<StepStats>, Vec<f32>), expected: &(Vec<StepStats>, Vec<f32>)) {
        for (found, expected) in found.0.iter().zip(&expected.0) {
            assert!((found.loss - expected.loss).abs() < 1e-5, "{found:?} instead of {expected:?}");
            assert!((found.grad_norm / expected.grad_norm - 1.0).abs() < 1e-4, "{found:?} for {expected:?}");
            assert_eq!(found.tokens, expected.tokens);
        }
        let worst = found.1.iter().zip(&expected.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-4, "parameters differ by {worst}");
    }

    const LIVES: (usize, HelperFault) = (usize::MAX, HelperFault::Dies);

    #[test]
    fn helpers_do_not_change_training() {
        let alone = train(&mut setup(&[]).team, 6);
        for helpers in 1..4 {
            let Setup { mut team, logs } = setup(&vec![LIVES; helpers]);
            let together = train(&mut team, 6);
            assert_close(&together, &alone);
            assert_eq!(together, train(&mut setup(&vec![LIVES; helpers]).team, 6), "the same bits again");
            let windows = logs.iter().map(|log| log.borrow()[0].0);
            assert_eq!(windows.sum::<usize>(), 8 - 8_usize.div_ceil(1 + helpers), "the helpers' part");
            assert_eq!(logs[0].borrow()[0].1, PATIENCE_MS_FIRST);
            assert_eq!(logs[0].borrow()[1].1, PATIENCE_MS_MIN);
            assert!(team.describe().ends_with(&format!("{} workers", 1 + helpers)), "{}", team.describe());
        }
        assert!(setup(&[]).team.describe().ends_with("1 thread"));
    }

    #[test]
    fn a_rehearsal_is_done_together_and_changes_nothing() {
        for lives in [&[][..], &[LIVES, LIVES]] {
            let Setup { mut team, logs } = setup(lives);
            assert!(block_on(team.rehearse(&tokens(9))).unwrap());
            assert!(logs.iter().all(|log| log.borrow().len() == 1), "helpers took part");
            assert_eq!(train(&mut team, 3), train(&mut setup(lives).team, 3));
        }
    }

    /// Goal: a failed helper costs only time and changes no bit, not even in the step in which it fails.
    #[test]
    fn work_of_a_failed_helper_is_recomputed_with_the_same_bits() {
        let whole = train(&mut setup(&[LIVES, LIVES]).team, 3);
        let len = whole.1.len();
        for (fault, reason) in [
            (HelperFault::Dies, HelperError::Late { patience_ms: PATIENCE_MS_MIN }),
            (HelperFault::Short, HelperError::Length { found: len - 1, expected: len }),
        ] {
            let Setup { mut team, .. } = setup(&[(2, fault), LIVES]);
            assert_eq!(train(&mut team, 3), whole);
            assert_eq!(team.dropped(), [reason]);
            assert!(team.describe().ends_with("2 workers"));
        }
    }

    #[test]
    fn learner_trains_alone_after_all_helpers_fail() {
        let Setup { mut team, logs } = setup(&[(4, HelperFault::Dies), (2, HelperFault::Dies)]);
        assert_close(&train(&mut team, 6), &train(&mut setup(&[]).team, 6));
        assert_eq!(team.dropped().len(), 2);
        assert!(team.describe().ends_with("1 thread"));
        // By the test clock, the first helper is as fast as the own worker, and the second is slower.
        let windows = logs.iter().map(|log| log.borrow().iter().map(|asked| asked.0).collect::<Vec<_>>());
        assert_eq!(windows.collect::<Vec<_>>(), [vec![3, 3, 3, 4, 4], vec![2, 2, 2]]);
    }

    #[test]
    fn more_helpers_than_windows_stand_by() {
        let Setup { mut team, logs } = setup(&[LIVES; 10]);
        assert_close(&train(&mut team, 3), &train(&mut setup(&[]).team, 3));
        let asked: Vec<_> = logs.iter().map(|log| log.borrow().len()).collect();
        assert_eq!(asked, [3, 3, 3, 3, 3, 3, 3, 0, 0, 0]);
    }

    #[test]
    fn bad_input_reaches_no_helper() {
        let Setup { mut team, logs } = setup(&[LIVES]);
        let error =
            |team: &mut DataParallel, tokens: &[u32], lr| block_on(team.step(tokens, lr)).unwrap_err();
        assert!(matches!(
            error(&mut team, &tokens(0)[65..], 1e-3),
            EngineError::Windows { found: 7, batch: 8 }
        ));
        assert!(matches!(error(&mut team, &[50; 8 * 65], 1e-3), EngineError::Model(_)));
        assert!(matches!(error(&mut team, &tokens(0), -1.0), EngineError::Rate { .. }));
        assert!(logs[0].borrow().is_empty());

        let before = team.host.params().to_vec();
        team.host.trainer_mut().params_mut()[100] = f32::NAN;
        assert!(matches!(error(&mut team, &tokens(0), 1e-3), EngineError::NotFinite { .. }));
        team.host.trainer_mut().params_mut()[100] = before[100];
        assert!(team.host.params() == before, "no step was taken");
        assert_eq!(team.saved_moments().unwrap().steps, 0);
    }

    /// Simulates `steps` steps in which each worker takes its given time per window.
    fn work(shares: &mut WindowDivision, steps: u32, window_us: &[u64]) {
        for _ in 0..steps {
            for (worker, window_us) in window_us.iter().enumerate() {
                let windows = shares.of(worker) as u64;
                if windows > 0 {
                    shares.measured(worker, windows * window_us);
                }
            }
            shares.balance();
        }
    }

    #[test]
    fn every_window_goes_to_one_worker() {
        for (windows, workers, expected) in [
            (8, 1, vec![8]),
            (8, 2, vec![4, 4]),
            (7, 3, vec![3, 2, 2]),
            (2, 4, vec![1, 1, 0, 0]),
            (1, 2, vec![1, 0]),
        ] {
            assert_eq!(WindowDivision::new(windows, workers).counts(), expected);
        }
        let mut shares = WindowDivision::new(8, 3);
        shares.remove(1);
        assert_eq!(shares.counts(), [4, 4]);
        shares.remove(1);
        assert_eq!(shares.counts(), [8]);
    }

    #[test]
    fn faster_worker_gets_more_windows_after_the_balance_interval() {
        let mut shares = WindowDivision::new(8, 2);
        work(&mut shares, BALANCE_STEPS - 1, &[100, 300]);
        assert_eq!(shares.counts(), [4, 4]);
        work(&mut shares, 1, &[100, 300]);
        assert_eq!(shares.counts(), [6, 2]);
        assert_eq!(shares.expected_us(1), Some(600.0));
        work(&mut shares, 10 * BALANCE_STEPS, &[300, 100]);
        assert_eq!(shares.counts(), [2, 6]);
    }

    /// Dividing the windows as 5 and 3 would take 500 µs instead of 504 µs.
    #[test]
    fn a_small_gain_is_no_reason_to_change_bits() {
        let mut shares = WindowDivision::new(8, 2);
        work(&mut shares, 10 * BALANCE_STEPS, &[100, 126]);
        assert_eq!(shares.counts(), [4, 4]);
    }

    #[test]
    fn idle_worker_gets_windows_again() {
        let mut shares = WindowDivision::new(4, 2);
        work(&mut shares, BALANCE_STEPS, &[100, 1_000]);
        assert_eq!(shares.counts(), [4, 0]);
        work(&mut shares, 40 * BALANCE_STEPS, &[100, 100]);
        assert_eq!(shares.counts(), [2, 2]);
    }
}
