//! Tests of teams: training is the same with any number of helpers, even if they fail.

// For the executor of futures.
#![cfg(feature = "platform")]

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

/// A helper on this thread, with a log of its requests.
struct Mate {
    gradient: CpuGradient,
    log: Rc<RefCell<Vec<Asked>>>,
    /// Remaining tasks before it fails.
    lives: usize,
    fault: Fault,
}

#[derive(Clone, Copy)]
enum Fault {
    Dies,
    Short,
}

/// Windows and patience of a request.
type Asked = (usize, u64);

impl Helper for Mate {
    fn begin(&mut self, task: &Task<'_>) -> Working {
        self.log.borrow_mut().push((task.tokens.len() / 65, task.patience_ms));
        self.gradient.params_mut().copy_from_slice(task.params);
        let loss = self.gradient.differentiate(task.tokens, task.count).unwrap().loss;
        let mut part = Part { loss, grad: self.gradient.grad().to_vec(), busy_us: 1 };
        let result = match (self.lives, self.fault) {
            (0, Fault::Dies) => Err(HelperError::Late { patience_ms: task.patience_ms }),
            (0, Fault::Short) => {
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
    logs: Vec<Rc<RefCell<Vec<Asked>>>>,
}

/// Creates a team in which each helper fails after the given number of tasks.
fn setup(lives: &[(usize, Fault)]) -> Setup {
    let spec = spec();
    let trainer = CpuTrainer::new(&model(), &spec.inner, NonZeroUsize::MIN).unwrap();
    let logs: Vec<_> = lives.iter().map(|_| Rc::default()).collect();
    let helper = |(&(lives, fault), log): (_, &Rc<_>)| -> Box<dyn Helper> {
        let gradient = CpuGradient::new(&model(), spec.inner.batch, NonZeroUsize::MIN).unwrap();
        Box::new(Mate { gradient, log: Rc::clone(log), lives, fault })
    };
    let helpers = lives.iter().zip(&logs).map(helper).collect();
    let now_us = Cell::new(0);
    let clock = move || now_us.replace(now_us.get() + 1);
    Setup { team: DataParallel::new(HostEngine::new(&spec, trainer).unwrap(), helpers, Rc::new(clock)), logs }
}

/// Returns tokens in which every other batch is partly given, mostly in the windows of the first workers.
fn tokens(step: u32) -> Vec<u32> {
    let is_given = |i: u32| step % 2 == 1 && (i / 65 < 3 && i % 65 != 9 || i.is_multiple_of(4));
    let marked = |i, id| if is_given(i) { id | token::GIVEN } else { id };
    (0..8 * 65).map(|i| marked(i, (i * i / 7 + i % 5 + step) % 50)).collect()
}

/// Returns losses and norms of some steps, and the final parameters.
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

const LIVES: (usize, Fault) = (usize::MAX, Fault::Dies);

#[test]
fn a_team_trains_as_one_does() {
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

/// Goal: a failure costs only time and changes no bit, not even in the step in which it happens.
#[test]
fn what_a_failed_helper_leaves_is_done_here() {
    let whole = train(&mut setup(&[LIVES, LIVES]).team, 3);
    let len = whole.1.len();
    for (fault, reason) in [
        (Fault::Dies, HelperError::Late { patience_ms: PATIENCE_MS_MIN }),
        (Fault::Short, HelperError::Length { found: len - 1, expected: len }),
    ] {
        let Setup { mut team, .. } = setup(&[(2, fault), LIVES]);
        assert_eq!(train(&mut team, 3), whole);
        assert_eq!(team.dropped(), [reason]);
        assert!(team.describe().ends_with("2 workers"));
    }
}

#[test]
fn the_last_one_left_trains_alone() {
    let Setup { mut team, logs } = setup(&[(4, Fault::Dies), (2, Fault::Dies)]);
    assert_close(&train(&mut team, 6), &train(&mut setup(&[]).team, 6));
    assert_eq!(team.dropped().len(), 2);
    assert!(team.describe().ends_with("1 thread"));
    // By the clocks, the first helper is as fast as this worker, and the second is slower.
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
    let error = |team: &mut DataParallel, tokens: &[u32], lr| block_on(team.step(tokens, lr)).unwrap_err();
    assert!(matches!(error(&mut team, &tokens(0)[65..], 1e-3), EngineError::Windows { found: 7, batch: 8 }));
    assert!(matches!(error(&mut team, &[50; 8 * 65], 1e-3), EngineError::Model(_)));
    assert!(matches!(error(&mut team, &tokens(0), -1.0), EngineError::Rate { .. }));
    assert!(logs[0].borrow().is_empty());

    let before = team.host.params().to_vec();
    team.host.trainer_mut().params_mut()[100] = f32::NAN;
    assert!(matches!(error(&mut team, &tokens(0), 1e-3), EngineError::NotFinite { .. }));
    team.host.trainer_mut().params_mut()[100] = before[100];
    assert!(team.host.params() == before, "no step was taken");
    assert_eq!(team.salvage().unwrap().steps, 0);
}
