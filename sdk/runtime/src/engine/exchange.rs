//! The engine's side of the exchange: its parameters in fragments, on the way out and back.

use std::sync::Arc;

use super::{Encoded, EngineError};
use crate::diloco::{Fragments, Layout};
use crate::wire::{FragmentId, Serial};

/// The parameters of an engine as the learner's loop exchanges them: in fragments, encoded on the way out and applied
/// on the way back.
///
/// Operations take effect in call order, but a device may execute them later. An error of one operation may then come
/// out of a later call.
pub trait Exchange {
    /// Returns the layout of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// Returns the fragments into which the exchange splits the parameters.
    fn fragments(&self) -> &Arc<Fragments>;

    /// Begins to encode the current progress on `fragment`. [`Self::encoded`] returns the body later. Reported progress
    /// is recorded as in [`crate::diloco::Replica::encode`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError>;

    /// Returns the next finished body, in the order in which encoding began. Does not wait.
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError>;

    /// Records that the most recently encoded update was merged, see [`crate::diloco::Replica::include`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError>;

    /// Applies a merged change, see [`crate::diloco::Replica::apply`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError>;

    /// Loads a whole Θ̂, `[fragment_len]`, see [`crate::diloco::Replica::load`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError>;
}
