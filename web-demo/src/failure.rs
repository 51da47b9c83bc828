//! Errors for JavaScript: each is an `Error` with a stable `code`.

use archipelago::run::{AddressError, DutyError, RunError};
use archipelago_core::wire::CloseCode;
use archipelago_runtime::engine::gpu::GpuError;
use archipelago_runtime::engine::{EngineError, Fallback};
use js_sys::{Error, Reflect};
use wasm_bindgen::JsValue;

/// Reason why the learner cannot start in this browser or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The options are invalid.
    #[error("{0}")]
    Options(String),
    /// No engine in this browser can train the model.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The browser offers no GPU. The message for native programs, to install a driver, would not help on a page.
    #[error("this browser offers no GPU: enable WebGPU in its settings, or train on the processor")]
    NoGpu,
    /// The browser has a GPU, but it cannot be used.
    #[error(transparent)]
    Gpu(GpuError),
    /// The run ended, but it was neither completed nor stopped by the visitor.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Failure {
    /// Returns the stable name of the cause. It does not change between versions.
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

/// Returns the reason for training on the processor, worded for a browser.
pub(crate) fn describe_fallback(fallback: &Fallback) -> String {
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
        // A new object accepts any property.
        Reflect::set(&error, &"code".into(), &failure.code().into()).ok();
        error.into()
    }
}
