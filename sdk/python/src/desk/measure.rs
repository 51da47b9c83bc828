//! Measurements by the program.

use archipelago_runtime::engine::EngineError;

use super::{Desk, Order};
use crate::tensors::Place;

/// Parameters to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Id for [`Desk::measured`].
    pub id: u64,
    /// Parameters, as many as the places have.
    pub values: Vec<f32>,
    /// Positions of the parameters.
    pub places: Vec<Place>,
    /// Tokens, `[windows, context + 1]`, row-major.
    pub tokens: Vec<u32>,
    /// Number of windows.
    pub windows: u32,
}

impl Desk {
    /// Delivers the loss requested under `id`, in nats per token, or `None` if it could not be measured.
    pub fn measured(&self, id: u64, loss: Option<f32>) {
        self.state().measured = Some((id, loss));
        self.for_loop.notify_one();
    }

    /// Requests the loss of `values` at `places` on `windows` windows, and returns its id.
    pub fn ask(&self, values: Vec<f32>, places: Vec<Place>, tokens: &[u32], windows: u32) -> u64 {
        let mut state = self.state();
        let id = state.id();
        let task = Task { id, values, places, tokens: tokens.to_vec(), windows };
        state.orders.push_back(Order::Measure(task));
        self.for_program.notify_all();
        id
    }

    /// Takes the result for `id`, once it is there.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`]: training diverged; [`EngineError::Thread`]: the program is gone.
    pub fn take_measured(&self, id: u64) -> Result<Option<Option<f32>>, EngineError> {
        let mut state = self.state();
        state.check()?;
        Ok(state.measured.take_if(|(of, _)| *of == id).map(|(_, loss)| loss))
    }
}
