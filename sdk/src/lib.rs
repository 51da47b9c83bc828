//! Archipelago: one language model trained on many unreliable machines.
//!
//! The method is Decoupled DiLoCo ([arXiv 2604.21428](https://arxiv.org/abs/2604.21428)). This crate has all that a
//! program needs to take part in a run or to host one, natively and in browsers. The most important types are at the
//! root.
//!
//! | type | what it is for |
//! |---|---|
//! | [`RunConfig`], [`Control`] | settings of [`run()`], and control while it runs |
//! | [`Event`], [`Report`] | its progress, and its final report |
//! | [`Trainer`] | the interface that a model of your own implements |
//! | [`HostEngine`] | turns a trainer into an engine by adding the exchange |
//! | [`Engine`] | the interface that the learner's loop drives |
//! | `EngineBuilder` | chooses between CPU and GPU for the built-in model (with the feature `gpu`) |
//! | [`Syncer`], [`Learner`] | the two state machines of the protocol, for shells of your own |
//!
//! Modules have the types that these use. Choose the module for your purpose:
//!
//! | what you do | module |
//! |---|---|
//! | take part in a run, by its address | [`run`](mod@run) |
//! | train the built-in model, on CPU or GPU, or implement [`Trainer`] | [`engine`] |
//! | describe a run and the layout of a model's parameters | [`model`] |
//! | turn your text into tokens | [`data`] |
//! | drive a syncer by hand | [`syncer`], and [`wire`] for its messages |
//! | drive a learner by hand | [`learner`], and [`wire`] for its messages |
//!
//! | feature | what it adds |
//! |---|---|
//! | `learner` (default) | [`run`](mod@run): the learner's loop, with its sockets and clocks |
//! | `cpu` (default) | the CPU engine with `gemm`, threads, and the instruction set chosen at run time |
//! | `cpu-portable` | the same engine with a portable matrix product, for wasm32 |
//! | `gpu` | the GPU engine, on Vulkan, Metal or the browser's WebGPU |
//! | `ts` | TypeScript definitions of the types that are sent as JSON |
//!
//! This crate follows [Semantic Versioning](https://semver.org/). The crates behind it, `archipelago-core` and
//! `archipelago-runtime`, do not.
//!
//! # A model of your own
//!
//! ```
//! use archipelago::engine::{EngineError, StepStats};
//! use archipelago::model::{Layout, MergeClass, Tensor};
//! use archipelago::wire::{FragmentId, Serial};
//! use archipelago::{Engine, HostEngine, Trainer};
//! # use archipelago::model::{ApplyPolicy, Code, DataSpec, ExchangeSpec, Preset, RunSpec, ShardSpec};
//!
//! /// Means of the tokens at each of 8 positions.
//! struct Means(Layout, Vec<f32>);
//!
//! impl Trainer for Means {
//!     fn layout(&self) -> &Layout { &self.0 }
//!     fn params(&self) -> &[f32] { &self.1 }
//!     fn params_mut(&mut self) -> &mut [f32] { &mut self.1 }
//!     fn describe(&self) -> String { "means".into() }
//!     fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
//!         let mut loss = 0.0;
//!         for (mean, &token) in self.1.iter_mut().zip(tokens) {
//!             let error = token as f32 - *mean;
//!             loss += error * error / tokens.len() as f32;
//!             *mean += lr * error;
//!         }
//!         Ok(StepStats { loss, grad_norm: loss.sqrt(), tokens: tokens.len() as u64 })
//!     }
//! }
//!
//! let tensor = Tensor { name: "means".into(), rows: 1, cols: 8, merge: MergeClass::Mean };
//! let layout = Layout::new(vec![tensor])?;
//! let mut means = Means(layout, vec![0.0; 8]);
//! let first = means.step(&[4; 8], 0.5)?.loss;
//! assert!(means.step(&[4; 8], 0.5)?.loss < first);
//!
//! // The exchange is the same for every trainer: here it encodes the progress since the syncer's parameters.
//! # let apply = ApplyPolicy::Keep { residue: true };
//! # let exchange = ExchangeSpec { fragments: 1, sync_every: 10, block: 8, code: Code::Int4, apply };
//! # let data = DataSpec { token_bytes: 2, masks: false, shards: vec![ShardSpec { tokens: 1_000, sha256: [0; 32] }] };
//! # let (model, inner) = (Preset::Tiny.model(256).into(), Preset::Tiny.inner());
//! # let spec = RunSpec { model, inner, exchange, data, seed: 1, frozen: None };
//! let mut engine = HostEngine::new(&spec, means)?;
//! engine.load(FragmentId(0), &[0.0; 8], true)?;
//! engine.encode(Serial(1), FragmentId(0))?;
//! assert_eq!(engine.encoded()?.expect("a trainer in host memory is done at once").serial, Serial(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Examples
//!
//! `learner` takes part in a run in thirty lines. `custom_model` takes part with a model of its own, a table of
//! bigrams. `own_syncer` is a whole run in one program. `killed_island`, of the crate `archipelago-sim`, damages a
//! simulated run. Start one with `cargo run --release -p archipelago --example learner -- ws://HOST:7700`.

#[cfg(feature = "learner")]
pub mod run;

pub use archipelago_core::diloco::learner::Learner;
pub use archipelago_core::diloco::syncer::Syncer;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use archipelago_runtime::engine::EngineBuilder;
pub use archipelago_runtime::engine::{Engine, HostEngine, Trainer};
#[cfg(feature = "learner")]
pub use run::{Control, Event, Report, RunConfig, run};

/// Inputs and outputs of [`Trainer`] and [`Engine`], and the engines for the built-in model.
pub mod engine {
    #[cfg(all(feature = "cpu-portable", feature = "gpu"))]
    pub use archipelago_runtime::engine::{AnyEngine, EngineOptions, Fallback};
    pub use archipelago_runtime::engine::{
        Encoded, EngineError, EngineKind, Exchange, OptimiserState, StepStats, UnknownEngine,
    };

    /// The built-in model on the CPU: training, evaluation and text generation.
    #[cfg(feature = "cpu-portable")]
    pub mod cpu {
        pub use archipelago_runtime::engine::cpu::{CpuModel, CpuTrainer, Writer};
    }

    /// GPUs: their list, their tuning results, and their errors.
    #[cfg(feature = "gpu")]
    pub mod gpu {
        pub use archipelago_runtime::engine::gpu::{
            AdapterFacts, Best, Choice, ChoiceError, Form, Gpu, GpuError, GpuOptions, KernelTime, MemoryPlan,
            Room, Trial, Tuning, Variant, adapters,
        };
    }
}

/// Description of a run, and the layout of a model's parameters: tensors, cut into fragments.
pub mod model {
    pub use archipelago_core::diloco::{
        FragmentExpert, Fragments, Layout, LayoutError, MergeClass, Segment, Tensor,
    };
    pub use archipelago_core::model::{
        DECODER, ExpertSpec, FrozenError, FrozenForm, FrozenWeights, LoraSpec, LoraTarget, LoraTargets,
        ModelError, ModelSpec, Preset, TargetsError, UnknownForm, UnknownPreset, add_adapters, init, layout,
    };
    pub use archipelago_core::wire::{
        ApplyPolicy, Architecture, Code, DataSpec, ExchangeSpec, InnerSpec, Mixture, Model, Optimiser,
        RunSpec, ShardSpec,
    };
}

/// Conversion between text and tokens, where a token is a byte unless there is a vocabulary; and the marks of masked
/// tokens.
pub mod data {
    pub use archipelago_core::data::{BYTE_VOCAB, bytes_to_tokens, tokens_to_text};
    pub use archipelago_core::token;
}

/// Inputs, outputs, settings and state of a [`Syncer`]. The example `own_syncer` drives one.
///
/// [`Syncer::record`] and [`Syncer::restore`] preserve a run across a restart; record the state while no merge is in
/// progress. `syncer-server` also stores every decision before any learner sees its effect. That is internal to
/// `archipelago-core`. The contents of [`Output::Record`](syncer::Output::Record), the rollback based on it
/// ([`Output::Rollback`](syncer::Output::Rollback)) and the input of [`Syncer::resume`] are therefore not part of this
/// crate.
pub mod syncer {
    pub use archipelago_core::diloco::syncer::{
        Event, Host, Input, LearnerStatus, LeaveCause, Output, Status, SyncerConfig, SyncerError,
        SyncerRecord,
    };
    pub use archipelago_core::diloco::{
        AbandonCause, Account, Decision, DownlinkPolicy, FateCounts, FragmentState, LeaseError, LeasePool,
        Ledger, MergeCause, MergeError, MergeFailure, MergeJob, MergeOutcome, MergeRule, OuterSpec,
        PartialSum, QuorumPolicy, Restrictions, SumError, SumPlan, Timing, TrustLevel, TrustRecord, Verified,
        Verifier, WeightBounds,
    };
}

/// Inputs and outputs of a [`Learner`], and its copy of the published parameters.
pub mod learner {
    pub use archipelago_core::diloco::learner::{DrainState, Input, LearnerConfig, Output, Step};
    pub use archipelago_core::diloco::{Codec, QuantError, Replica, ReplicaError};
}

/// Messages between the syncer and learners, their encoding, and the types of their fields.
pub mod wire {
    pub use archipelago_core::wire::{
        BodyFault, Bye, Challenge, CloseCode, ConnId, DecodeError, Fate, Fingerprint, FingerprintError,
        FragmentId, Hello, Identity, Invite, LateReason, LayoutHash, LearnerId, LearnerState, LeaseGrant,
        LeaseId, Merged, Message, Millis, Progress, Refusal, Round, RunId, Serial, Share, ShareError,
        Signature, UnknownCloseCode, Update, Version, Welcome, decode, encode,
    };
}
