//! Errors as JavaScript sees them: an `Error` with a stable `code`.

use archipelago::run::{AddressError, DutyError, RunError};
use archipelago_core::wire::CloseCode;
use archipelago_runtime::engine::gpu::GpuError;
use archipelago_runtime::engine::{EngineError, Fallback};
use js_sys::{Error, Reflect};
use wasm_bindgen::JsValue;

/// Why the learner cannot run here, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Options that make no sense.
    #[error("{0}")]
    Options(String),
    /// There is no engine that can train the model here.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// This browser offers no GPU at all. (What helps natively, a driver, is nothing that a page can ask for.)
    #[error("this browser offers no GPU: turn WebGPU on in its settings, or train with the processor")]
    NoGpu,
    /// There is a GPU, and it cannot be used.
    #[error(transparent)]
    Gpu(GpuError),
    /// The run ended otherwise than by the owner's wish or its own end.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Failure {
    /// Names the cause; it does not change between versions.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Options(_) => "options",
            Self::NoGpu | Self::Gpu(_) => "gpu",
            Self::Engine(_)
            | Self::Run(RunError::Build(_) | RunError::Frozen { .. } | RunError::Engine(_)) => "engine",
            Self::Run(RunError::Unreachable { .. } | RunError::NoRun { .. }) => "unreachable",
            Self::Run(RunError::Refused { code: CloseCode::Replaced, .. }) => "replaced",
            Self::Run(RunError::Refused { code: CloseCode::Invite, .. }) => "invite",
            Self::Run(RunError::Refused { .. }) => "refused",
            Self::Run(RunError::Random(_)) => "random",
        }
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        if matches!(error, GpuError::NoAdapter) { Self::NoGpu } else { Self::Gpu(error) }
    }
}

/// Why it trains on the processor, in the browser's words.
pub(crate) fn told(fallback: &Fallback) -> String {
    match fallback {
        Fallback::Gpu(error) => format!("training on the processor: {}", Failure::from(error.clone())),
        fallback => fallback.to_string(),
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::Options(error.to_string())
    }
}

impl From<DutyError> for Failure {
    fn from(error: DutyError) -> Self {
        Self::Options(error.to_string())
    }
}

impl From<Failure> for JsValue {
    fn from(failure: Failure) -> Self {
        let error = Error::new(&failure.to_string());
        // A fresh object takes any property.
        Reflect::set(&error, &"code".into(), &failure.code().into()).ok();
        error.into()
    }
}
