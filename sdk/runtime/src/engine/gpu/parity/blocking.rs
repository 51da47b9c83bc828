//! Tests that compare blocking trainers with the CPU engine and run several on one GPU. Not for browsers, which must
//! not block.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::{Gpu, GpuTrainer, GpuTrainers};
use super::engine::{distance, partly_masked, ramps, tokens};
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

/// Creates a factory of trainers. On its clock, each measured product uses up the time of all its runs at once, so it
/// is not repeated.
fn trainers(gpu: &Gpu) -> GpuTrainers {
    let clock_us = AtomicU64::new(0);
    GpuTrainers::on(gpu.clone(), Arc::new(move || clock_us.fetch_add(30_000, Ordering::Relaxed)))
}

fn trainer(gpu: &Gpu) -> GpuTrainer {
    trainers(gpu).trainer(&model(), &inner()).unwrap()
}

/// Goal: parameters written on the host reach the device, in whole or in part, and parameters read on the host come
/// from it.
#[test]
fn blocking_trainer_equals_cpu_trainer_after_writes() {
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
                    // The first range is read before and after it is written. The second is only written. The rest is
                    // not accessed.
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

/// Goal: the held-out loss of any parameters equals the CPU's for any number of windows, and does not affect training.
#[test]
fn held_out_loss_equals_cpu_and_does_not_affect_training() {
    each(|gpu| {
        let mut cpu = CpuModel::fixed(&model()).unwrap();
        let [mut ours, mut plain] = [trainer(gpu), trainer(gpu)];
        let (start, other) = (init(&model(), 7).unwrap(), init(&model(), 8).unwrap());
        for trainer in [&mut ours, &mut plain] {
            trainer.params_mut().copy_from_slice(&start);
            trainer.step(&ramps(0), 2e-3).unwrap();
        }
        for windows in [tokens(&model(), 9, 3), partly_masked(&model(), 4), tokens(&model(), 1, 0)] {
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

/// Goal: two trainers that take turns on one device give the same results as each trainer alone.
#[test]
fn two_trainers_on_one_device_equal_separate_ones() {
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
