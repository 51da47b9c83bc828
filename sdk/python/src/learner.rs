//! Thread of the learner's loop.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use archipelago::model::RunSpec;
use archipelago::run::identity::{IdentityError, IdentityLock, default_folder};
use archipelago::run::{
    Address, AddressError, BatchChoice, BatchError, Control, FrozenSource, Report, RunConfig, RunError, run,
};
use archipelago_runtime::engine::EngineError;

use crate::bridge::{ProgramBridge, ProgramError};
use crate::engine::BridgeEngine;
use crate::tensors::{ParameterMap, TensorShape};

/// Settings that the program gives for its learner.
#[derive(Clone, Debug)]
pub struct LearnerSettings {
    /// Address of the syncer, or a link to the run.
    pub url: String,
    /// Trained tensors, in the order of the program.
    pub tensors: Vec<TensorShape>,
    /// Display name.
    pub name: String,
    /// Device, for display.
    pub device: String,
    /// Whether the program can measure a loss, in case the run's owner trusts it with that.
    pub measures: bool,
    /// File of the learner's key. By default, the user's first key file that no other process uses.
    pub identity: Option<PathBuf>,
    /// Windows in a batch. By default, the number of the run's description.
    pub batch: Option<u32>,
    /// Time limit for the first admission, in milliseconds.
    pub contact_ms_max: u64,
}

/// Reason why a learner cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is malformed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The batch is out of range.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// No key can be used.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The system cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Running learner. Dropping the handle ends the learner.
#[derive(Debug)]
pub struct LearnerHandle {
    /// Bridge between the loop and the program.
    pub bridge: Arc<ProgramBridge>,
    /// Control of the learner.
    pub control: Control,
}

impl LearnerHandle {
    /// Starts a learner with `settings`, which puts its requests and reports on the handle's bridge.
    ///
    /// # Errors
    /// Each variant of [`StartError`].
    pub fn start(settings: LearnerSettings) -> Result<Self, StartError> {
        let address: Address = settings.url.parse()?;
        let batch = settings.batch.map_or(Ok(BatchChoice::AUTO), BatchChoice::given)?;
        let identity = match &settings.identity {
            Some(file) => IdentityLock::in_file(file)?,
            None => IdentityLock::in_folder(&default_folder(|name| std::env::var(name).ok())?, &address)?,
        };
        let (bridge, control) = (Arc::new(ProgramBridge::default()), Control::new());
        let running = Self { bridge: Arc::clone(&bridge), control: control.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("archipelago".to_owned()).spawn(move || {
            let ends = EndReporter(Arc::clone(&bridge));
            let key = identity.key.clone();
            let config = RunConfig {
                name: settings.name.clone(),
                device: settings.device.clone(),
                contact_ms_max: settings.contact_ms_max,
                batch,
                frozen: FrozenSource::Engine,
                ..RunConfig::new(address, key)
            };
            let build = async |spec: &RunSpec, _basis| engine(spec, &settings, &bridge);
            let end = runtime.block_on(run(config, &control, build, |event| bridge.record_event(event)));
            // The key is released before the end is reported, because the program may then start the same learner
            // again.
            drop(identity);
            ends.with(end);
        })?;
        Ok(running)
    }
}

/// Requests a graceful end of the learner, without waiting for it.
impl Drop for LearnerHandle {
    fn drop(&mut self) {
        self.control.stop();
        self.bridge.let_go();
    }
}

fn engine(
    spec: &RunSpec,
    settings: &LearnerSettings,
    bridge: &Arc<ProgramBridge>,
) -> Result<BridgeEngine, EngineError> {
    let fit = ParameterMap::new(&settings.tensors, &spec.model);
    let fit = fit.map_err(|error| EngineError::Unfit(error.to_string()))?;
    BridgeEngine::new(spec, fit, Arc::clone(bridge), settings.device.clone(), settings.measures)
}

/// Guard that reports the end of the loop to the program, even after a panic.
struct EndReporter(Arc<ProgramBridge>);

impl EndReporter {
    fn with(&self, end: Result<Report, RunError>) {
        self.0.end(end.map_err(ProgramError::from));
    }
}

impl Drop for EndReporter {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end(Err(ProgramError::Failed(
                "the learner's loop ended because of an internal error".into(),
            )));
        }
    }
}
