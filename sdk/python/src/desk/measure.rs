//! What the program measures at the desk.

use archipelago_runtime::engine::EngineError;

use super::{Desk, Order};
use crate::tensors::Place;

/// Parameters to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What [`Desk::measured`] is told.
    pub id: u64,
    /// The parameters, as many as the places have.
    pub values: Vec<f32>,
    /// Where they lie.
    pub places: Vec<Place>,
    /// `[windows, context + 1]`, row-major.
    pub tokens: Vec<u32>,
    /// How many windows they are.
    pub windows: u32,
}

impl Desk {
    /// The loss that was asked for under `id`, in nats per token, if it could be measured.
    pub fn measured(&self, id: u64, loss: Option<f32>) {
        self.state().measured = Some((id, loss));
        self.for_loop.notify_one();
    }

    /// Asks for the loss of `values`, which lie at `places`, on so many windows; the number that it will come under.
    pub fn ask(&self, values: Vec<f32>, places: Vec<Place>, tokens: &[u32], windows: u32) -> u64 {
        let mut state = self.state();
        let id = state.id();
        let task = Task { id, values, places, tokens: tokens.to_vec(), windows };
        state.orders.push_back(Order::Measure(task));
        self.for_program.notify_all();
        id
    }

    /// What came of the question `id`, once it did.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`]: training blew up; [`EngineError::Thread`]: the program is gone.
    pub fn take_measured(&self, id: u64) -> Result<Option<Option<f32>>, EngineError> {
        let mut state = self.state();
        state.check()?;
        Ok(state.measured.take_if(|(of, _)| *of == id).map(|(_, loss)| loss))
    }
}
