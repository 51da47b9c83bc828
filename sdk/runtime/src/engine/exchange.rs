//! What an engine offers the exchange: its parameters in fragments, on the way out and back.

use std::sync::Arc;

use super::{Encoded, EngineError};
use crate::diloco::{Fragments, Layout};
use crate::wire::{FragmentId, Serial};

/// The parameters of an engine as the learner's loop exchanges them: in fragments, coded on the way out and taken in
/// on the way back.
///
/// Operations take effect in the order of the calls, though a device may carry them out later; an error
/// of one may then come out of a later call.
pub trait Exchange {
    /// The tensors of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// How the parameters are split for the exchange.
    fn fragments(&self) -> &Arc<Fragments>;

    /// Begins to code the progress on `fragment` as of now; the body comes out of [`Self::encoded`].
    /// What is reported is remembered as by [`crate::diloco::Replica::encode`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError>;

    /// A body that is ready, in the order in which they were begun. Does not wait.
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError>;

    /// Takes in that the update coded last is merged, see [`crate::diloco::Replica::include`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError>;

    /// Takes in a merged change, see [`crate::diloco::Replica::apply`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError>;

    /// Takes in a whole Θ̂, `[fragment_len]`, see [`crate::diloco::Replica::load`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError>;
}
