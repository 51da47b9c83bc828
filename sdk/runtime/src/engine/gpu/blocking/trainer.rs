//! One trainer on a GPU, with a mirror of its parameters in host memory.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;

use futures::executor::block_on;

use super::super::arena::Run;
use super::super::ring::Ring;
use super::super::vectors::reader;
use super::super::{Gpu, GpuEngine};
use crate::diloco::Layout;
use crate::engine::{Engine, EngineError, Exchange, StepStats, Trainer};

/// Trains a model on a GPU; [`super::GpuTrainers`] make it.
///
/// Parameters and moments stay on the device. What is looked at is read back once after a step, and what is written
/// goes there before the next one; with [`Trainer::params_at`] and [`Trainer::params_mut_at`] that is a part of them. A
/// step returns before it is done, but for the first: loss and norm are then those of the step before, and what blew up
/// is told of by the next step. Parameters that cannot be read as the device is lost mean nothing, and the next step
/// says so.
pub struct GpuTrainer {
    engine: RefCell<GpuEngine>,
    layout: Layout,
    ring: RefCell<Ring<Vec<Run>>>,
    /// The mirror where all of it is as on the device, or newer.
    whole: OnceCell<Vec<f32>>,
    /// The mirror where that holds in `fresh` only.
    mirror: Cell<Vec<f32>>,
    fresh: Vec<Range<usize>>,
    /// What of it the device has not heard of.
    written: Vec<Range<usize>>,
    fault: Cell<Option<EngineError>>,
}

impl GpuTrainer {
    pub(super) fn new(engine: GpuEngine, gpu: &Gpu) -> Self {
        let layout = Exchange::layout(&engine).clone();
        let len = layout.len();
        Self {
            ring: RefCell::new(reader(gpu, len)),
            engine: RefCell::new(engine),
            layout,
            // As new parameters are on the device.
            whole: OnceCell::from(vec![0.0; len]),
            mirror: Cell::default(),
            fresh: Vec::new(),
            written: Vec::new(),
            fault: Cell::default(),
        }
    }

    fn all(&self) -> Range<usize> {
        0..self.layout.len()
    }

    /// Reads `ranges` into `flat`, the mirror.
    fn read(&self, ranges: &[Range<usize>], flat: &mut [f32]) {
        if ranges.is_empty() {
            return;
        }
        let (mut engine, mut ring) = (self.engine.borrow_mut(), self.ring.borrow_mut());
        if let Err(error) = block_on(engine.read_params(ranges, &mut ring, flat)) {
            self.fault.set(Some(error));
        }
    }

    /// From a mirror of which all is as on the device to one of which a part is.
    fn part(&mut self) {
        if let Some(whole) = self.whole.take() {
            self.mirror.set(whole);
            self.fresh = one(self.all());
        }
    }

    /// The mirror, as on the device in `ranges`, or newer.
    fn fetch(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        self.part();
        let missing = without(ranges, &self.fresh);
        let mut mirror = self.mirror.take();
        self.read(&missing, &mut mirror);
        self.fresh.extend(missing);
        self.mirror.set(mirror);
        self.mirror.get_mut()
    }

    /// Tells the device of what was written.
    fn flush(&mut self) {
        self.part();
        let (engine, mirror) = (self.engine.get_mut(), self.mirror.get_mut());
        for range in self.written.drain(..) {
            engine.write_params(range, mirror);
        }
    }
}

impl Trainer for GpuTrainer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        self.whole.get_or_init(|| {
            let mut mirror = self.mirror.take();
            self.read(&without(&one(self.all()), &self.fresh), &mut mirror);
            mirror
        })
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.params_mut_at(&one(self.all()))
    }

    fn params_at(&mut self, ranges: &[Range<usize>]) -> &[f32] {
        self.fetch(ranges)
    }

    fn params_mut_at(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        let new = without(ranges, &self.written);
        self.written.extend(new);
        self.fetch(ranges)
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        self.flush();
        self.fresh.clear();
        block_on(self.engine.get_mut().step(tokens, lr))
    }

    fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        block_on(self.engine.get_mut().rehearse(tokens))
    }

    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        self.fetch(&one(self.all()));
        // The device's own are gone: they are the mirror's from now on.
        self.written = one(self.all());
        let engine = self.engine.get_mut();
        engine.set_params(params);
        block_on(engine.loss(windows)).map(Some)
    }

    fn takes_given(&self) -> bool {
        true
    }

    fn take_seen(&mut self) -> Vec<u64> {
        self.engine.get_mut().take_seen()
    }

    fn describe(&self) -> String {
        Engine::describe(&*self.engine.borrow())
    }
}

/// `range` alone.
fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

/// What of `ranges` is in none of `taken`.
fn without(ranges: &[Range<usize>], taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = ranges.to_vec();
    for cut in taken {
        let parts = left
            .into_iter()
            .flat_map(|range| [range.start..range.end.min(cut.start), range.start.max(cut.end)..range.end]);
        left = parts.filter(|range| range.start < range.end).collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is meant, and not what is in it")]
    fn ranges_are_cut() {
        let check = |taken: &[Range<usize>], expected: &[Range<usize>]| {
            assert_eq!(without(&[2..6, 8..9], taken), expected, "{taken:?}");
        };
        check(&[], &[2..6, 8..9]);
        check(&[0..2, 6..8, 9..20], &[2..6, 8..9]);
        check(&[3..4], &[2..3, 4..6, 8..9]);
        check(&[0..3], &[3..6, 8..9]);
        check(&[5..8, 2..3], &[3..5, 8..9]);
        check(&[5..10], &[2..5]);
        check(&[0..10], &[]);
    }
}
