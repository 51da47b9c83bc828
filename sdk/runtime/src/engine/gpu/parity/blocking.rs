//! Blocking trainers compared with the CPU engine, and side by side. They cannot run in browsers, which must not block.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::{Gpu, GpuTrainer, GpuTrainers};
use super::engine::{distance, partly_given, ramps, tokens};
use super::native::each;
use crate::engine::cpu::{CpuModel, CpuTrainer};
use crate::engine::{EngineError, Trainer};
use crate::model::{InnerSpec, ModelSpec, Preset, init};

const BATCH: u32 = 4;

fn model() -> ModelSpec {
    Preset::Tiny.model(64)
}

fn inner() -> InnerSpec {
    InnerSpec { batch: BATCH, ..Preset::Tiny.inner() }
}

/// Creates trainers with a clock on which each tried product uses up the time of all its runs, so that none is
/// repeated.
fn trainers(gpu: &Gpu) -> GpuTrainers {
    let clock_us = AtomicU64::new(0);
    GpuTrainers::on(gpu.clone(), Arc::new(move || clock_us.fetch_add(30_000, Ordering::Relaxed)))
}

fn trainer(gpu: &Gpu) -> GpuTrainer {
    trainers(gpu).trainer(&model(), &inner()).unwrap()
}

/// Written parameters reach the device, in whole or in part, and read parameters come from it.
#[test]
fn follows_the_cpu_trainer_through_what_is_written() {
    each(|gpu| {
        let mut cpu = CpuTrainer::new(&model(), &inner(), NonZeroUsize::MIN).unwrap();
        let mut ours = trainer(gpu);
        let (start, other) = (init(&model(), 7).unwrap(), init(&model(), 8).unwrap());
        assert!(ours.params().iter().all(|&value| value == 0.0));
        let [first, second] = [100..9_000, 12_000..12_345];
        let mut losses = Vec::new();
        for step in 0..30 {
            let trainers: [&mut dyn Trainer; 2] = [&mut cpu, &mut ours];
            let stats = trainers.map(|trainer| {
                match step {
                    0 => trainer.params_mut().copy_from_slice(&start),
                    10 => trainer.params_mut().iter_mut().for_each(|value| *value *= 0.9),
                    // One range is read before and after it is written, the other is only written, and the rest is not
                    // accessed.
                    20 => {
                        let old = trainer.params_at(std::slice::from_ref(&first))[100];
                        let ranges = [first.clone(), second.clone()];
                        let params = trainer.params_mut_at(&ranges);
                        assert_eq!(params[100], old);
                        for range in &ranges {
                            params[range.clone()].copy_from_slice(&other[range.clone()]);
                        }
                        assert_eq!(trainer.params_at(std::slice::from_ref(&first))[100], other[100]);
                    }
                    _ => {}
                }
                trainer.step(&ramps(step), 2e-3).unwrap()
            });
            losses.push(stats[0].loss);
            let expected = losses[losses.len().saturating_sub(2)];
            assert!((stats[1].loss / expected - 1.0).abs() < 1e-3, "{step}: {stats:?}");
            if [0, 9, 10, 20, 29].contains(&step) {
                let error = distance(ours.params(), cpu.params());
                let moved = distance(&start, cpu.params());
                assert!(error < 2e-2 * moved, "{step}: {error} apart after moving {moved}");
            }
        }
        assert!(losses[29] < losses[0] - 0.3, "it learns: {losses:?}");
    });
}

/// The held-out loss of any parameters equals the CPU's, over any number of windows, and has no side effects.
#[test]
fn measures_what_the_cpu_measures_and_trains_on_as_before() {
    each(|gpu| {
        let mut cpu = CpuModel::fixed(&model()).unwrap();
        let [mut ours, mut plain] = [trainer(gpu), trainer(gpu)];
        let (start, other) = (init(&model(), 7).unwrap(), init(&model(), 8).unwrap());
        for trainer in [&mut ours, &mut plain] {
            trainer.params_mut().copy_from_slice(&start);
            trainer.step(&ramps(0), 2e-3).unwrap();
        }
        for windows in [tokens(&model(), 9, 3), partly_given(&model(), 4), tokens(&model(), 1, 0)] {
            let found = ours.held_out_loss(&other, &windows).unwrap().unwrap();
            let expected = cpu.loss(&other, &windows).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-4, "{found} instead of {expected}");
        }
        assert!(matches!(ours.held_out_loss(&other, &[1; 66]), Err(EngineError::Model(_))));
        for trainer in [&mut ours, &mut plain] {
            trainer.step(&ramps(1), 2e-3).unwrap();
        }
        assert!(ours.params() == plain.params());
    });
}

/// Several trainers on one device take turns, and each has the same results as alone.
#[test]
fn two_on_one_device_do_not_disturb_each_other() {
    each(|gpu| {
        let trainers = trainers(gpu);
        let begun = |seed| {
            let mut trainer = trainers.trainer(&model(), &inner()).unwrap();
            trainer.params_mut().copy_from_slice(&init(&model(), seed).unwrap());
            trainer
        };
        let go = |trainer: &mut GpuTrainer, seed: u32, step: u32| {
            trainer.step(&ramps(10 * seed + step), 2e-3).unwrap();
        };
        let mut pair = [begun(1), begun(2)];
        for step in 0..6 {
            for (trainer, seed) in pair.iter_mut().zip(1..) {
                go(trainer, seed, step);
            }
        }
        for (together, seed) in pair.iter().zip(1..) {
            let mut alone = begun(seed.into());
            (0..6).for_each(|step| go(&mut alone, seed, step));
            assert!(together.params() == alone.params(), "{seed}");
        }
    });
}
