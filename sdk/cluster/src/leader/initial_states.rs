//! Initial states of fragments, made on demand.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use archipelago_core::diloco::FragmentState;
use archipelago_core::wire::FragmentId;

/// Initial state of a fragment, or the reason why it cannot be made.
type Begun = Result<FragmentState, Box<dyn Error + Send + Sync>>;

/// Source of initial states, which makes a state again for each request. A process that leads a few fragments of a
/// large run thus holds only theirs.
#[derive(Clone)]
pub struct InitialStates(Arc<dyn Fn(FragmentId) -> Begun + Send + Sync>);

impl InitialStates {
    /// Creates a source from `make`, which returns version 0 of a fragment, the same in each process of the run. It may
    /// take long and runs on a blocking thread. Its errors are logged, and it is called again later.
    pub fn new(make: impl Fn(FragmentId) -> Begun + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Makes the initial state of `fragment`.
    ///
    /// # Errors
    /// Those of the function that makes it.
    pub(super) fn make(&self, fragment: FragmentId) -> Begun {
        (self.0)(fragment)
    }
}

impl fmt::Debug for InitialStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InitialStates")
    }
}
