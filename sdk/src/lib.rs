//! Archipelago: one language model trained on many unreliable islands of compute.
//!
//! The method is Decoupled DiLoCo ([arXiv 2604.21428](https://arxiv.org/abs/2604.21428)). Everything that decides
//! anything is a pure state machine of the crate `archipelago-core`, whose modules are re-exported here: events go in,
//! effects come out, and time is an argument. This crate is a learner around them: engines that train, the
//! platform's sockets and clocks, and the loop that joins them.
//!
//! Ten types matter, and stand at the root. All else is for those who need more.
//!
//! | type | what it is for |
//! |---|---|
//! | [`RunConfig`], [`Control`] | what [`run()`] needs to take part in a run, and the hand on it meanwhile |
//! | [`Event`], [`Report`] | what it tells as it goes, and in the end |
//! | [`Trainer`] | all that a model of your own must implement |
//! | [`HostEngine`] | makes an engine of a trainer: it does the exchange |
//! | [`Engine`] | what the learner's loop drives |
//! | `EngineBuilder` | chooses between CPU and GPU for the built-in model (with the feature `gpu`) |
//! | [`Syncer`], [`Learner`] | the two machines of the protocol, for whoever writes a shell of their own |
//!
//! | feature | what it adds |
//! |---|---|
//! | `learner` (default) | `platform` and `run`: sockets, clocks and the learner's loop, natively and in browsers |
//! | `cpu` (default) | the CPU engine with `gemm`, threads, and the instruction set chosen when it runs |
//! | `cpu-portable` | the same engine with a portable matrix product, for wasm32 |
//! | `gpu` | the GPU engine, on Vulkan, Metal or the browser's WebGPU |
//! | `parity` | the parity tests of the GPU engine, for a browser to run |
//! | `ts` | TypeScript of the types that are shown as JSON |
//!
//! # A model of your own
//!
//! ```
//! use archipelago::diloco::{Layout, MergeClass, Tensor};
//! use archipelago::engine::{EngineError, StepStats};
//! use archipelago::{Engine, HostEngine, Trainer};
//! # use archipelago::model::Preset;
//! # use archipelago::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, FragmentId, RunSpec, Serial, ShardSpec};
//!
//! /// The mean of the tokens, one parameter for each place of 8.
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
//! // The exchange is the same for every trainer: here it codes what was learnt since the syncer's parameters.
//! # let apply = ApplyPolicy::Keep { residue: true };
//! # let exchange = ExchangeSpec { fragments: 1, sync_every: 10, block: 8, code: Code::Int4, apply };
//! # let data = DataSpec { token_bytes: 2, shards: vec![ShardSpec { tokens: 1_000, sha256: [0; 32] }] };
//! # let (model, inner) = (Preset::Tiny.model(256), Preset::Tiny.inner());
//! # let spec = RunSpec { model, inner, exchange, data, seed: 1 };
//! let mut engine = HostEngine::new(&spec, means)?;
//! engine.load(FragmentId(0), &[0.0; 8], true)?;
//! engine.encode(Serial(1), FragmentId(0))?;
//! assert_eq!(engine.encoded()?.expect("a trainer in host memory is done at once").serial, Serial(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Examples
//!
//! `learner` takes part in a run in thirty lines; `custom_model` joins one with a table of bigrams; `own_syncer` is a
//! whole run inside one program; and `killed_island`, of the crate `archipelago-sim`, breaks a simulated one. Run them
//! as `cargo run --release -p archipelago --example learner -- ws://HOST:7700`.

pub mod engine;
#[cfg(any(feature = "cpu-portable", feature = "learner"))]
pub mod platform;
#[cfg(feature = "learner")]
pub mod run;

pub use diloco::learner::Learner;
pub use diloco::syncer::Syncer;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use engine::EngineBuilder;
pub use engine::{Engine, HostEngine, Trainer};
#[cfg(feature = "learner")]
pub use run::{Control, Event, Report, RunConfig, run};

pub use archipelago_core::{bytes, data, diloco, member, model, wire};

#[cfg(any(feature = "parity", all(test, feature = "gpu")))]
use archipelago_core::rng;
