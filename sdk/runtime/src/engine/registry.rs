//! Every engine that an [`super::EngineBuilder`] can build: a row for each, in the order in which
//! [`EngineKind::Auto`] prefers them.
//!
//! For an engine more, implement [`Engine`] and [`Backend`] in a file of its own, give it a name in [`EngineKind`],
//! and add its row at the end of this file.

use std::collections::BTreeMap;

use super::backend::{Backend, CpuBackend, GpuBackend, Setup};
use super::gpu::{GpuEngine, GpuError, KernelTime, Room};
use super::{Engine, EngineError, EngineKind, Exchange, OptimiserState, StepStats, Team};
use crate::wire::RunSpec;

/// Implements [`AnyEngine`] and declares [`AnyBackend`], with one variant for each row.
macro_rules! engines {
    ($($(#[$doc:meta])* $kind:ident: $engine:ty, built by $backend:ty;)*) => {
        /// What an [`AnyEngine`] is.
        enum Built {
            $($(#[$doc])* $kind(Box<$engine>),)*
        }

        impl AnyEngine {
            /// The name of its row, never [`EngineKind::Auto`].
            #[must_use]
            pub fn kind(&self) -> EngineKind {
                match &self.0 {
                    $(Built::$kind(_) => EngineKind::$kind,)*
                }
            }
        }

        impl Engine for AnyEngine {
            fn exchange(&self) -> &dyn Exchange {
                match &self.0 {
                    $(Built::$kind(engine) => engine.exchange(),)*
                }
            }

            fn exchange_mut(&mut self) -> &mut dyn Exchange {
                match &mut self.0 {
                    $(Built::$kind(engine) => engine.exchange_mut(),)*
                }
            }

            fn describe(&self) -> String {
                match &self.0 {
                    $(Built::$kind(engine) => engine.describe(),)*
                }
            }

            async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
                match &mut self.0 {
                    $(Built::$kind(engine) => engine.step(tokens, lr).await,)*
                }
            }

            async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
                match &mut self.0 {
                    $(Built::$kind(engine) => engine.rehearse(tokens).await,)*
                }
            }

            async fn settle(&mut self) -> Result<(), EngineError> {
                match &mut self.0 {
                    $(Built::$kind(engine) => engine.settle().await,)*
                }
            }

            fn is_busy(&self) -> bool {
                match &self.0 {
                    $(Built::$kind(engine) => engine.is_busy(),)*
                }
            }

            fn salvage(&mut self) -> Option<OptimiserState> {
                match &mut self.0 {
                    $(Built::$kind(engine) => engine.salvage(),)*
                }
            }

            fn take_seen(&mut self) -> Vec<u64> {
                match &mut self.0 {
                    $(Built::$kind(engine) => engine.take_seen(),)*
                }
            }
        }

        /// What builds the engines of one row.
        pub enum AnyBackend {
            $($(#[$doc])* $kind($backend),)*
        }

        impl AnyBackend {
            /// The kinds of all rows.
            pub const KINDS: &[EngineKind] = &[$(EngineKind::$kind),*];

            /// The kind of its row.
            pub fn kind(&self) -> EngineKind {
                match self {
                    $(Self::$kind(_) => EngineKind::$kind,)*
                }
            }

            /// [`Backend::open`] of the row of `kind`, one of [`Self::KINDS`].
            pub async fn open(kind: EngineKind, setup: &Setup) -> Result<Self, GpuError> {
                match kind {
                    $(EngineKind::$kind => Ok(Self::$kind(<$backend>::open(setup).await?)),)*
                    EngineKind::Auto => unreachable!("it has no row"),
                }
            }

            /// [`Backend::HOST_COPIES`].
            pub fn host_copies(&self) -> u64 {
                match self {
                    $(Self::$kind(_) => <$backend>::HOST_COPIES,)*
                }
            }

            /// [`Backend::is_lost`].
            pub fn is_lost(&self) -> bool {
                match self {
                    $(Self::$kind(backend) => backend.is_lost(),)*
                }
            }

            /// [`Backend::renew`].
            pub async fn renew(&mut self, setup: &Setup) -> Result<(), GpuError> {
                match self {
                    $(Self::$kind(backend) => backend.renew(setup).await,)*
                }
            }

            /// [`Backend::build`].
            pub async fn build(
                &mut self,
                setup: &Setup,
                spec: &RunSpec,
                moments: Option<OptimiserState>,
            ) -> Result<AnyEngine, EngineError> {
                match self {
                    $(Self::$kind(backend) => {
                        let engine = backend.build(setup, spec, moments).await?;
                        Ok(AnyEngine(Built::$kind(Box::new(engine))))
                    })*
                }
            }
        }
    };
}

/// Whichever engine an [`super::EngineBuilder`] built.
pub struct AnyEngine(Built);

impl AnyEngine {
    /// Bytes that the exchange has read back from a GPU so far; `None` on the CPU.
    #[must_use]
    pub fn exchange_bytes(&self) -> Option<u64> {
        if let Built::Gpu(engine) = &self.0 { Some(engine.exchange_bytes()) } else { None }
    }

    /// What it does to take less memory of a GPU, and how much it takes; `None` on the CPU.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        if let Built::Gpu(engine) = &self.0 { Some(engine.room()) } else { None }
    }

    /// Takes the last step once more, kernel by kernel, and says what each took on the device's own clock; `None` if
    /// that has none, and on the CPU.
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn profile(&mut self) -> Result<Option<BTreeMap<&'static str, KernelTime>>, EngineError> {
        if let Built::Gpu(engine) = &mut self.0 { engine.profile().await } else { Ok(None) }
    }
}

engines! {
    /// On a GPU.
    Gpu: GpuEngine, built by GpuBackend;
    /// On the processor.
    Cpu: Team, built by CpuBackend;
}
