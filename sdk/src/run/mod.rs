//! The learner's loop: platform → [`archipelago_core::member`] → engine, as one future on one thread.
//!
//! It trains whenever there are parameters and data, and never waits for the network then: sockets and
//! transfers live on threads of their own, and between two steps it takes what they have brought. It
//! goes on training while the connection is down, and comes back as the same learner.

mod address;
mod batch;
mod control;
mod downloads;
mod effects;
mod event;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fake_device;
#[cfg(test)]
mod fake_run;
mod fit;
mod frozen;
mod gather;
pub mod identity;
mod key;
mod link;
mod meter;
mod piece;
mod report;
mod salvage;
mod session;
mod shelf;
mod tally;
#[cfg(test)]
mod tests;
mod transfer;

pub use archipelago_runtime::platform::RandomError;

pub use address::{Address, AddressError};
pub use batch::{BatchChoice, BatchError};
pub use control::{Control, DutyError};
pub use event::{Doing, Event, Offline, Report};
pub use key::{Key, SignError, Signer};
pub use shelf::{Folder, Shelf, ShelfError, default_shelf};

use std::rc::Rc;
use std::sync::Arc;

use archipelago_core::model::FrozenWeights;
use archipelago_core::wire::{CloseCode, RunSpec};
use archipelago_runtime::engine::{Engine, EngineError, OptimiserState};
use session::Session;

/// What a learner needs to know to take part.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Where the syncer is.
    pub address: Address,
    /// Signs for the learner, with the same key at each start.
    pub signer: Rc<dyn Signer>,
    /// Its name for people; cut to 64 bytes.
    pub name: String,
    /// What it computes with, for people; cut to 64 bytes.
    pub device: String,
    /// How long to try to be taken in for the first time, in milliseconds.
    pub contact_ms_max: u64,
    /// How long to try to be taken in again, in milliseconds; `None` for ever.
    pub reconnect_ms_max: Option<u64>,
    /// Leave after this time, in milliseconds; `None` for never.
    pub run_ms_max: Option<u64>,
    /// Windows that it trains on in one step.
    pub batch: BatchChoice,
    /// Keeps the frozen weights of runs from one start to the next; without it they are fetched at each.
    pub shelf: Option<Rc<dyn Shelf>>,
    /// Whether its engines can build on frozen weights. If not, a run that has some is left before they are fetched.
    pub takes_adapters: bool,
}

/// What an engine is built from beside what the run says.
#[derive(Debug, Default)]
pub struct Basis {
    /// The moments of the engine before, if that one's device was lost in this very run.
    pub moments: Option<OptimiserState>,
    /// The weights that are not trained, if the run has some.
    pub frozen: Option<Arc<FrozenWeights>>,
}

impl RunConfig {
    /// How long [`Self::new`] lets a learner try to be taken in for the first time, in milliseconds.
    pub const CONTACT_MS_MAX: u64 = 30_000;

    /// A learner without a name that comes back for as long as the run lasts, and trains all weights of its model. Set
    /// the other fields as you like.
    #[must_use]
    pub fn new(address: Address, signer: impl Signer + 'static) -> Self {
        Self {
            address,
            signer: Rc::new(signer),
            name: "learner".into(),
            device: String::new(),
            contact_ms_max: Self::CONTACT_MS_MAX,
            reconnect_ms_max: None,
            run_ms_max: None,
            batch: BatchChoice::AUTO,
            shelf: None,
            takes_adapters: false,
        }
    }
}

/// Why a run ended otherwise than by the owner's wish or its own end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The syncer did not admit this learner, or gave it no parameters, within the time limit.
    #[error(
        "{address} did not take this learner in for {waited_s} s: {reason}; see that the syncer runs and the address \
         is right"
    )]
    Unreachable {
        /// The syncer.
        address: Address,
        /// How long it was tried, in seconds.
        waited_s: u64,
        /// What came of the last attempt.
        reason: String,
    },
    /// Something answers at the address that knows no run there, and this learner was never taken in.
    #[error(
        "there is no run at {address}, which {reason}; open that address in a browser and give the link to the run's \
         own page, such as http://HOST:PORT/ or http://HOST:PORT/runs/NAME/"
    )]
    NoRun {
        /// What was taken for the syncer.
        address: Address,
        /// What was said there.
        reason: String,
    },
    /// The syncer will not have this learner, now or later.
    #[error("the syncer refused this learner: {reason}")]
    Refused {
        /// Why, as a number.
        code: CloseCode,
        /// Why, in words.
        reason: String,
    },
    /// The run cannot be trained here.
    #[error("this machine cannot take part in the run: {0}")]
    Build(#[source] EngineError),
    /// What the run builds on cannot be used.
    #[error("the weights that the run builds on cannot be used: {reason}")]
    Frozen {
        /// What is wrong with them.
        reason: String,
    },
    /// The engine gave up, or its device was lost again and again.
    #[error("training failed: {0}")]
    Engine(#[from] EngineError),
    /// There is no randomness for the retries.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Takes part in the run at `config.address` until `control` stops it, its time is up, or the run ends.
///
/// `build` makes the engine of a run, with whatever parameters; they are overwritten. It is given what the run
/// says, with this learner's own batch, and what else there is to build from. With [`BatchChoice::AUTO`] it may be
/// asked again at once, for a smaller batch; the engine before is gone then, and its moments are those that it was
/// built with. `observe` hears of everything worth showing and
/// should return at once. Natively this must be polled within a Tokio runtime that has its timer on; a step on the
/// CPU blocks the thread.
///
/// # Errors
/// - [`RunError::Unreachable`]: not taken in within `contact_ms_max`, or again within `reconnect_ms_max`.
/// - [`RunError::NoRun`]: it was never taken in, and no syncer is at the address; browsers do not tell.
/// - [`RunError::Refused`]: the syncer will not have this learner.
/// - [`RunError::Build`], [`RunError::Frozen`], [`RunError::Engine`]: the run cannot be trained here.
/// - [`RunError::Random`]: the operating system gives no random bytes.
pub async fn run<E, B, O>(
    config: RunConfig,
    control: &Control,
    build: B,
    observe: O,
) -> Result<Report, RunError>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Basis) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    Session::new(config, control, build, observe)?.run().await
}
