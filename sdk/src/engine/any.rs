//! The engines that a builder may build, as one type.

use super::gpu::GpuEngine;
use super::{Engine, EngineError, EngineKind, Exchange, Moments, StepStats, Team};

/// Whichever engine an [`super::EngineBuilder`] built.
pub enum AnyEngine {
    /// On the processor.
    Cpu(Box<Team>),
    /// On a GPU.
    Gpu(Box<GpuEngine>),
}

impl AnyEngine {
    /// [`EngineKind::Gpu`] or [`EngineKind::Cpu`].
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        match self {
            Self::Cpu(_) => EngineKind::Cpu,
            Self::Gpu(_) => EngineKind::Gpu,
        }
    }
}

/// Calls either engine.
macro_rules! either {
    ($any:ident, $engine:ident => $call:expr) => {
        match $any {
            Self::Cpu($engine) => $call,
            Self::Gpu($engine) => $call,
        }
    };
}

impl Engine for AnyEngine {
    fn exchange(&self) -> &dyn Exchange {
        either!(self, engine => engine.exchange())
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        either!(self, engine => engine.exchange_mut())
    }

    fn describe(&self) -> String {
        either!(self, engine => engine.describe())
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        either!(self, engine => engine.step(tokens, lr).await)
    }

    async fn settle(&mut self) -> Result<(), EngineError> {
        either!(self, engine => engine.settle().await)
    }

    fn is_busy(&self) -> bool {
        either!(self, engine => engine.is_busy())
    }

    fn salvage(&mut self) -> Option<Moments> {
        either!(self, engine => engine.salvage())
    }
}
