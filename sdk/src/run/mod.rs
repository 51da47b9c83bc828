//! The learner's loop as one future on one thread: it connects the platform, the [`archipelago_core::driver`] and an
//! engine.
//!
//! The learner trains whenever it has parameters and data, and never waits for the network meanwhile. Sockets and
//! transfers run on their own threads, and their input is handled between two steps. Training continues while the
//! connection is down, and the learner reconnects with the same identity.

mod address;
mod batch;
mod control;
mod downloads;
mod event;
#[cfg(test)]
mod fake;
mod frozen;
pub mod identity;
mod key;
mod link;
mod meter;
mod session;
#[cfg(test)]
mod tests;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use archipelago_core::model::FrozenWeights;
use archipelago_core::wire::{CloseCode, RunSpec};
use archipelago_runtime::engine::{Engine, EngineError, OptimiserState};

use session::LearnerSession;

pub use address::{Address, AddressError};
pub use archipelago_runtime::platform::RandomError;
pub use batch::{BatchChoice, BatchError};
pub use control::{Control, DutyError};
pub use event::{Doing, Event, Offline, Report};
pub use frozen::{CacheError, Folder, WeightCache, default_cache_folder};
pub use key::{Key, SignError, Signer};

/// Settings of a learner in a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Address of the syncer.
    pub address: Address,
    /// Key that signs for the learner, the same at each start.
    pub signer: Rc<dyn Signer>,
    /// Display name; shortened to 64 bytes.
    pub name: String,
    /// Device, for display; shortened to 64 bytes.
    pub device: String,
    /// Time limit for the first admission, in milliseconds.
    pub contact_ms_max: u64,
    /// Time limit for a readmission, in milliseconds; `None` sets no limit.
    pub reconnect_ms_max: Option<u64>,
    /// Time after which the learner leaves, in milliseconds; `None` sets no limit.
    pub run_ms_max: Option<u64>,
    /// Choice of the number of windows in one training step.
    pub batch: BatchChoice,
    /// Cache of frozen weights across starts. Without it they are fetched at each start.
    pub weight_cache: Option<Rc<dyn WeightCache>>,
    /// Source of the frozen weights in runs that train adapters.
    pub frozen: FrozenSource,
}

/// Source of the frozen weights in runs that train adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrozenSource {
    /// The engines do not support adapters. The learner leaves such a run.
    #[default]
    Unsupported,
    /// The learner fetches the frozen weights from the syncer and gives them to the engine.
    Syncer,
    /// The engine has the frozen weights. The learner does not fetch them.
    Engine,
}

/// Inputs of a new engine besides the run's description.
#[derive(Debug, Default)]
pub struct EngineInputs {
    /// Optimiser state of the previous engine, if its device was lost in this same run.
    pub moments: Option<OptimiserState>,
    /// Frozen weights, if the run has them and the learner fetched them.
    pub frozen: Option<Arc<FrozenWeights>>,
}

impl RunConfig {
    /// Time limit for the first admission in settings from [`Self::new`], in milliseconds.
    pub const CONTACT_MS_MAX: u64 = 30_000;

    /// Returns settings for a learner with the default name that reconnects without a time limit and trains all
    /// weights of its model. Set the other fields as needed.
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
            weight_cache: None,
            frozen: FrozenSource::Unsupported,
        }
    }
}

/// Remedy for a learner that was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The syncer did not answer, so it may not run there.
    CheckAddress,
    /// The syncer answered, and turned the learner away.
    TryLater {
        /// Time after which the learner may try again, in milliseconds; 0 if it is over or not known.
        after_ms: u64,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CheckAddress => f.write_str("check that the syncer runs and the address is right"),
            Self::TryLater { after_ms: 0 } => f.write_str("try again later"),
            Self::TryLater { after_ms: after_ms @ 120_000.. } => {
                write!(f, "try again in {} min", after_ms.div_ceil(60_000))
            }
            Self::TryLater { after_ms } => write!(f, "try again in {} s", after_ms.div_ceil(1_000)),
        }
    }
}

/// Reason why a learner ended, other than its owner's decision or the completion of the run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The syncer did not admit this learner, or delivered no parameters, within the time limit.
    #[error("{address} did not admit this learner within {waited_s} s: {reason}; {remedy}")]
    Unreachable {
        /// Address of the run.
        address: Address,
        /// Waiting time in seconds.
        waited_s: u64,
        /// Result of the last attempt.
        reason: String,
        /// Suggested remedy.
        remedy: Remedy,
    },
    /// A server answered without a run at the address, and this learner was never admitted.
    #[error(
        "there is no run at {address}, which {reason}; open that address in a browser and give the link to the run's \
         own page, such as http://HOST:PORT/ or http://HOST:PORT/runs/NAME/"
    )]
    NoRun {
        /// Address that was tried.
        address: Address,
        /// Answer of the server.
        reason: String,
    },
    /// The syncer permanently refuses this learner.
    #[error("the syncer refused this learner: {reason}")]
    Refused {
        /// Reason as a number.
        code: CloseCode,
        /// Reason in words.
        reason: String,
    },
    /// No engine for the run can be built here.
    #[error("this machine cannot take part in the run: {0}")]
    Build(#[source] EngineError),
    /// The frozen weights of the run cannot be used.
    #[error("the frozen weights of the run cannot be used: {reason}")]
    Frozen {
        /// Fault of the weights, in words.
        reason: String,
    },
    /// The engine failed during training, or its device was lost too many times.
    #[error("training failed: {0}")]
    Engine(#[from] EngineError),
    /// The system provides no random bytes for the retries.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Takes part in the run at `config.address` until `control` stops it, its time is up, or the run ends.
///
/// `build` returns the engine of a run, whose initial parameters are then overwritten. Its arguments are the run's
/// description with this learner's batch, and the other inputs of the engine. With [`BatchChoice::AUTO`] it may be
/// called again at once for a smaller batch; the previous engine has been dropped before. `observe` receives all
/// events worth showing and should return at once. A native caller must poll the future in a Tokio runtime with an
/// enabled timer. A step on the CPU blocks the thread.
///
/// # Errors
/// - [`RunError::Unreachable`]: no admission within `contact_ms_max`, or within `reconnect_ms_max` later.
/// - [`RunError::NoRun`]: the learner was never admitted, and the address has no run; browsers cannot detect this.
/// - [`RunError::Refused`]: the syncer permanently refuses this learner.
/// - [`RunError::Build`], [`RunError::Frozen`]: no engine for the run can be built here.
/// - [`RunError::Engine`]: training failed, or the device was lost too many times.
/// - [`RunError::Random`]: the system provides no random bytes.
pub async fn run<E, B, O>(
    config: RunConfig,
    control: &Control,
    build: B,
    observe: O,
) -> Result<Report, RunError>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, EngineInputs) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    LearnerSession::new(config, control, build, observe)?.run().await
}
