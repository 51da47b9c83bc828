//! Deterministic core of Archipelago: all decisions, without sockets, clocks, threads or hash maps.
//!
//! **This crate is internal.** Its public items serve the programs of this repository. They may change in any
//! version, without any promise of [Semantic Versioning](https://semver.org/). The crate `archipelago` re-exports the
//! stable part: depend on that one.
//!
//! Archipelago trains one language model on many unreliable machines, by Decoupled DiLoCo ([arXiv
//! 2604.21428](https://arxiv.org/abs/2604.21428)), which builds on DiLoCo
//! ([2311.08105](https://arxiv.org/abs/2311.08105)) and Streaming DiLoCo
//! ([2501.18512](https://arxiv.org/abs/2501.18512)). This crate has the algorithm as deterministic state machines:
//! events go in, effects come out, and time is an argument. It performs no I/O, so the server, the native learner,
//! the browser and the simulator all run the same code.
//!
//! The most important types are [`Syncer`](diloco::syncer::Syncer), the authority of a run, and
//! [`LearnerDriver`](driver::LearnerDriver), one of its learners. A driver consists of a
//! [`Learner`](diloco::learner::Learner), which is the learner's side of the protocol, and of its feed, duty cycle
//! and connection. All of them have the same three methods: `handle` takes an event, `poll` returns the next action,
//! and `deadline` returns the time of the next call if no event comes before. [`RunSpec`](wire::RunSpec) describes a
//! run, and [`Message`](wire::Message) is the unit of communication. [`Layout`](diloco::Layout) and
//! [`Fragments`](diloco::Fragments) divide the parameters into fragments, and [`Replica`](diloco::Replica) is a
//! learner's copy of the published parameters.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | the messages, their bytes and their limits |
//! | [`data`] | shards of tokens, the order of windows, and the feed that makes batches from leases |
//! | [`diloco`] | syncer and learner, and their parts: codec, merge, outer step, quorum, leases, ledger |
//! | [`driver`] | a learner with all that its shells have in common: feed, duty cycle, connection, backoff |
//! | [`cluster`] | the leader of a fragment and the gateways of its learners, for a run on several machines |
//! | [`model`] | the shape of the model, its initial values, AdamW, and a scalar reference implementation |
//! | [`rng`] | random numbers from a seed |
//! | [`bytes`], [`text`], [`time`], [`token`] | bytes of numbers, untrusted text, time, tokens of windows |
//!
//! | feature | what it adds |
//! |---|---|
//! | `simd` | merge loops for each instruction set, chosen at run time; results have the same bits |
//! | `ts` | TypeScript definitions of the types that are sent as JSON |
//!
//! The crate `archipelago-runtime` adds engines, sockets and clocks, `archipelago` the learner's loop, and
//! `archipelago-sim` a whole world in virtual time.
//!
//! # A learner meets a syncer
//!
//! ```
//! # use archipelago_core::diloco::{Layout, MergeClass, Tensor, learner, syncer};
//! # use archipelago_core::model::Preset;
//! # use archipelago_core::wire::{ApplyPolicy, Code, ConnId, DataSpec, ExchangeSpec, Identity, LearnerId, Millis};
//! # use archipelago_core::wire::{RunId, RunSpec, ShardSpec};
//! # let tensor = Tensor { name: "all".into(), rows: 8, cols: 8, merge: MergeClass::Radial };
//! # let layout = Layout::new(vec![tensor])?;
//! # let apply = ApplyPolicy::Keep { residue: true };
//! # let exchange = ExchangeSpec { fragments: 2, sync_every: 10, block: 8, code: Code::Int4, apply };
//! # let data = DataSpec { token_bytes: 2, masks: false, shards: vec![ShardSpec { tokens: 1_000, sha256: [0; 32] }] };
//! # let (model, inner) = (Preset::Tiny.model(256), Preset::Tiny.inner());
//! # let spec = RunSpec { model: model.into(), inner, exchange, data, seed: 1, frozen: None };
//! # let (config, theta) = (syncer::SyncerConfig::default(), vec![0.0; layout.len()]);
//! # let identity = Identity([1; 32]);
//! # let (name, device) = ("first".into(), "cpu".into());
//! # let me = learner::LearnerConfig { identity, name, device, invite: None, serial_first: 1 };
//! let mut syncer = syncer::Syncer::new(RunId(7), spec, config, &layout, &theta)?;
//! let mut learner = learner::Learner::new(me);
//! let (now, conn) = (Millis(0), ConnId(1));
//!
//! // A connection is open. The learner's messages go to the syncer …
//! learner.handle(now, learner::Input::Connected);
//! while let Some(learner::Output::Send(message)) = learner.poll() {
//!     syncer.handle(now, syncer::Input::Message(conn, message));
//! }
//! // … and the syncer's answers go to the learner.
//! while let Some(output) = syncer.poll() {
//!     if let syncer::Output::Send(_, message) = output {
//!         learner.handle(now, learner::Input::Message(message));
//!     }
//! }
//! // The learner is admitted, and the syncer returns the time at which it must be called again.
//! assert_eq!(learner.run(), Some((RunId(7), LearnerId(1))));
//! assert!(syncer.deadline(now).is_some_and(|at| at > now));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A shell continues like this: it waits for a message or for the deadline, calls `handle`, and drains `poll`. The
//! example `own_syncer` of the crate `archipelago` is such a shell, with threads and channels, from the first `Hello`
//! to the last merge.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod cluster;
pub mod data;
pub mod diloco;
pub mod driver;
pub mod model;
mod polar;
pub mod rng;
#[cfg(test)]
mod testing;
pub mod text;
pub mod time;
pub mod token;
pub mod wire;
