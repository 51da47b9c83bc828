//! Requests of a team to its helpers, and their answers.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;

use crate::wire::RunSpec;

/// A worker with a [`crate::engine::cpu::CpuGradient`] of the same model, without shared memory.
pub trait Helper {
    /// Begins a part of a step and returns once it has read the task, without waiting for the result. An earlier
    /// unfinished part is abandoned.
    fn begin(&mut self, task: &Task<'_>) -> Working;
}

/// A part of a step in progress. It ends by itself, at the latest after [`Task::patience_ms`].
pub type Working = Pin<Box<dyn Future<Output = Result<Part, HelperError>>>>;

/// Request to a helper: the arguments of [`crate::engine::cpu::CpuGradient::differentiate`].
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The parameters, `[len]`.
    pub params: &'a [f32],
    /// Some windows of the batch, `[n, context + 1]`, with given tokens marked as in [`crate::token`].
    pub tokens: &'a [u32],
    /// Number of learnt tokens in the whole batch.
    pub count: u64,
    /// Time after which the helper counts as failed, in milliseconds.
    pub patience_ms: u64,
}

/// Result of a helper.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Sum of the losses of its learnt tokens, in nats.
    pub loss: f64,
    /// Its part of the gradient, `[len]`.
    pub grad: Vec<f32>,
    /// Time that the helper took, in microseconds.
    pub busy_us: u64,
}

impl Part {
    /// # Errors
    /// - [`HelperError::Length`]: the gradient does not have `expected` values.
    pub(super) fn check(self, expected: usize) -> Result<Self, HelperError> {
        let found = self.grad.len();
        if found == expected { Ok(self) } else { Err(HelperError::Length { found, expected }) }
    }
}

/// Reason why a helper was given up. Its part was then computed without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// It could not be started, or it broke down.
    #[error("a helper failed: {reason}")]
    Failed {
        /// Reason from the system.
        reason: String,
    },
    /// It took too long.
    #[error("a helper did not answer within {patience_ms} ms")]
    Late {
        /// [`Task::patience_ms`].
        patience_ms: u64,
    },
    /// Its gradient belongs to another model.
    #[error("a helper's gradient has {found} values, the model has {expected}")]
    Length {
        /// Number given.
        found: usize,
        /// Number expected.
        expected: usize,
    },
}

type Start = dyn Fn(&RunSpec) -> Vec<Box<dyn Helper>>;

/// Factory of an engine's helpers, by default without helpers. Helpers end when they are dropped.
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
