//! Registry of the engines that an [`super::EngineBuilder`] can build. Each has one row at the end of this file, in the
//! order in which [`EngineKind::Auto`] tries them.
//!
//! To add an engine, implement [`Engine`] in its own module, implement [`Backend`] in `backend.rs`, add a name to
//! [`EngineKind`], and add a row before that of the CPU. The CPU always opens, so `Auto` never reaches rows after it.

use std::collections::BTreeMap;

use super::backend::{Backend, CpuBackend, GpuBackend, Setup};
use super::gpu::{GpuEngine, GpuError, KernelTime, Room};
use super::{DataParallel, Engine, EngineError, EngineKind, Exchange, OptimiserState, StepStats};
use crate::wire::RunSpec;

/// Declares [`AnyBackend`] and implements [`AnyEngine`], with one variant per row.
macro_rules! engines {
    ($($(#[$doc:meta])* $kind:ident: $engine:ty, built by $backend:ty;)*) => {
        /// Engine inside an [`AnyEngine`].
        enum EngineVariant {
            $($(#[$doc])* $kind(Box<$engine>),)*
        }

        impl AnyEngine {
            /// Returns the kind of the engine, never [`EngineKind::Auto`].
            #[must_use]
            pub fn kind(&self) -> EngineKind {
                match &self.0 {
                    $(EngineVariant::$kind(_) => EngineKind::$kind,)*
                }
            }
        }

        impl Engine for AnyEngine {
            fn exchange(&self) -> &dyn Exchange {
                match &self.0 {
                    $(EngineVariant::$kind(engine) => engine.exchange(),)*
                }
            }

            fn exchange_mut(&mut self) -> &mut dyn Exchange {
                match &mut self.0 {
                    $(EngineVariant::$kind(engine) => engine.exchange_mut(),)*
                }
            }

            fn describe(&self) -> String {
                match &self.0 {
                    $(EngineVariant::$kind(engine) => engine.describe(),)*
                }
            }

            async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
                match &mut self.0 {
                    $(EngineVariant::$kind(engine) => engine.step(tokens, lr).await,)*
                }
            }

            async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
                match &mut self.0 {
                    $(EngineVariant::$kind(engine) => engine.rehearse(tokens).await,)*
                }
            }

            async fn synchronise(&mut self) -> Result<(), EngineError> {
                match &mut self.0 {
                    $(EngineVariant::$kind(engine) => engine.synchronise().await,)*
                }
            }

            fn is_busy(&self) -> bool {
                match &self.0 {
                    $(EngineVariant::$kind(engine) => engine.is_busy(),)*
                }
            }

            fn saved_moments(&mut self) -> Option<OptimiserState> {
                match &mut self.0 {
                    $(EngineVariant::$kind(engine) => engine.saved_moments(),)*
                }
            }

            fn take_expert_counts(&mut self) -> Vec<u64> {
                match &mut self.0 {
                    $(EngineVariant::$kind(engine) => engine.take_expert_counts(),)*
                }
            }
        }

        /// Backend of any kind.
        pub enum AnyBackend {
            $($(#[$doc])* $kind($backend),)*
        }

        impl AnyBackend {
            /// Kinds of all rows.
            pub const KINDS: &[EngineKind] = &[$(EngineKind::$kind),*];

            /// Returns the kind of the backend, never [`EngineKind::Auto`].
            pub fn kind(&self) -> EngineKind {
                match self {
                    $(Self::$kind(_) => EngineKind::$kind,)*
                }
            }

            /// Opens the backend of `kind`, which is in [`Self::KINDS`]; see [`Backend::open`].
            pub async fn open(kind: EngineKind, setup: &Setup) -> Result<Self, GpuError> {
                match kind {
                    $(EngineKind::$kind => Ok(Self::$kind(<$backend>::open(setup).await?)),)*
                    EngineKind::Auto => unreachable!("it has no row"),
                }
            }

            /// Returns [`Backend::HOST_COPIES`].
            pub fn host_copies(&self) -> u64 {
                match self {
                    $(Self::$kind(_) => <$backend>::HOST_COPIES,)*
                }
            }

            /// Returns [`Backend::is_lost`].
            pub fn is_lost(&self) -> bool {
                match self {
                    $(Self::$kind(backend) => backend.is_lost(),)*
                }
            }

            /// Calls [`Backend::renew`].
            pub async fn renew(&mut self, setup: &Setup) -> Result<(), GpuError> {
                match self {
                    $(Self::$kind(backend) => backend.renew(setup).await,)*
                }
            }

            /// Calls [`Backend::build`].
            pub async fn build(
                &mut self,
                setup: &Setup,
                spec: &RunSpec,
                moments: Option<OptimiserState>,
            ) -> Result<AnyEngine, EngineError> {
                match self {
                    $(Self::$kind(backend) => {
                        let engine = backend.build(setup, spec, moments).await?;
                        Ok(AnyEngine(EngineVariant::$kind(Box::new(engine))))
                    })*
                }
            }
        }
    };
}

/// Engine of any kind, built by an [`super::EngineBuilder`].
pub struct AnyEngine(EngineVariant);

impl AnyEngine {
    /// Returns the total bytes that the exchange has read back from a GPU, or `None` on the CPU.
    #[must_use]
    pub fn exchange_bytes(&self) -> Option<u64> {
        if let EngineVariant::Gpu(engine) = &self.0 { Some(engine.exchange_bytes()) } else { None }
    }

    /// Returns the memory plan in use on a GPU and its memory, or `None` on the CPU.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        if let EngineVariant::Gpu(engine) = &self.0 { Some(engine.room()) } else { None }
    }

    /// Runs the last step again with a pass per kernel, and returns the time of each kernel by the device's clock.
    /// Returns `None` on the CPU and on devices without timestamps.
    ///
    /// # Errors
    /// Those of [`GpuEngine::profile`].
    pub async fn profile(&mut self) -> Result<Option<BTreeMap<&'static str, KernelTime>>, EngineError> {
        if let EngineVariant::Gpu(engine) = &mut self.0 { engine.profile().await } else { Ok(None) }
    }
}

engines! {
    /// Engine on a GPU.
    Gpu: GpuEngine, built by GpuBackend;
    /// Engine on the processor.
    Cpu: DataParallel, built by CpuBackend;
}
