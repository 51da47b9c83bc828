//! Many parameters with almost no cost, for worlds in which only bytes and time count.

use archipelago_core::diloco::{Layout, MergeClass, Tensor};
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};

/// Each step moves one in this many parameters.
const STRIDE: usize = 16;

/// Equal tensors whose values drift upwards at the learning rate.
#[derive(Clone, Debug)]
pub(super) struct Drift {
    layout: Layout,
    params: Vec<f32>,
    steps: usize,
}

impl Drift {
    pub(super) fn new(layout: Layout) -> Self {
        Self { params: vec![0.0; layout.len()], layout, steps: 0 }
    }

    /// Returns `tensors` tensors of one row of `values` values each.
    pub(super) fn layout(tensors: u16, values: u32) -> Layout {
        let tensor = |i| Tensor { name: format!("t{i}"), rows: 1, cols: values, merge: MergeClass::Radial };
        Layout::new((0..tensors).map(tensor).collect()).expect("tensors with names of their own")
    }
}

impl Trainer for Drift {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let first = self.steps % STRIDE;
        self.params.iter_mut().skip(first).step_by(STRIDE).for_each(|param| *param += lr);
        self.steps += 1;
        // Windows of 8 tokens and a target each, as in the toys' data.
        Ok(StepStats { loss: 1.0, grad_norm: 1.0, tokens: 8 * (tokens.len() / 9) as u64 })
    }

    fn describe(&self) -> String {
        "drift".into()
    }
}
