//! The engines that a builder may build, as one type.

use std::sync::Arc;

use super::gpu::GpuEngine;
use super::{Encoded, Engine, EngineError, EngineKind, Moments, StepStats, Team};
use crate::diloco::{Fragments, Layout};
use crate::wire::{FragmentId, Round};

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
    fn layout(&self) -> &Layout {
        either!(self, engine => engine.layout())
    }

    fn fragments(&self) -> &Arc<Fragments> {
        either!(self, engine => engine.fragments())
    }

    fn describe(&self) -> String {
        either!(self, engine => engine.describe())
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        either!(self, engine => engine.step(tokens, lr).await)
    }

    fn encode(&mut self, round: Round, fragment: FragmentId) -> Result<(), EngineError> {
        either!(self, engine => engine.encode(round, fragment))
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        either!(self, engine => engine.encoded())
    }

    fn apply(&mut self, fragment: FragmentId, body: &[u8], included: bool) -> Result<(), EngineError> {
        either!(self, engine => engine.apply(fragment, body, included))
    }

    fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
    ) -> Result<(), EngineError> {
        either!(self, engine => engine.load(fragment, values, keep, included))
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
