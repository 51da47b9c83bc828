//! What fragments begin in, made when somebody needs it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use archipelago_core::diloco::FragmentState;
use archipelago_core::wire::FragmentId;

/// What a fragment begins in, or why that cannot be made.
type Begun = Result<FragmentState, Box<dyn Error + Send + Sync>>;

/// Makes the states that fragments begin in, each time anew: whoever leads a few fragments of a large run holds no more
/// than those.
#[derive(Clone)]
pub struct Beginnings(Arc<dyn Fn(FragmentId) -> Begun + Send + Sync>);

impl Beginnings {
    /// Those that `make` makes: version 0 of the fragment, the same in each process of the run. It may take its time,
    /// and is called where that disturbs nobody. What it fails with is logged, and it is called again after a while.
    pub fn new(make: impl Fn(FragmentId) -> Begun + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// What `fragment` begins in.
    ///
    /// # Errors
    /// Those of what makes it.
    pub(super) fn make(&self, fragment: FragmentId) -> Begun {
        (self.0)(fragment)
    }
}

impl fmt::Debug for Beginnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Beginnings")
    }
}
