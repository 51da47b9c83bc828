//! Runtime of an Archipelago learner: training engines, and the platform's sockets and clocks.
//!
//! **This crate is internal.** Its public items serve the programs of this repository, and any version may change them,
//! without the rules of [Semantic Versioning](https://semver.org/). The crate `archipelago` re-exports the items that
//! are meant for other programs, and follows these rules. Depend on that crate.
//!
//! | module | contents |
//! |---|---|
//! | [`engine`] | the traits `Trainer`, `Exchange` and `Engine`, engines for CPU and GPU, and the choice between them |
//! | `platform` | target-specific parts: a clock, a socket, HTTP, a timer, random bytes, vectors of floats |
//!
//! | feature | contents |
//! |---|---|
//! | `cpu` | the CPU engine with `gemm`, threads, and the instruction set chosen at run time |
//! | `cpu-portable` | the same engine with a portable matrix product, for wasm32 |
//! | `gpu` | the GPU engine, on Vulkan, Metal or the browser's WebGPU |
//! | `parity` | the parity tests of the GPU engine, for a browser to run |
//! | `platform` | sockets and clocks, natively and in browsers |
//! | `client` | the native HTTP client: proxies, failed transfers, hang-ups of the terminal |

pub mod engine;
#[cfg(any(feature = "cpu-portable", feature = "platform", feature = "client"))]
pub mod platform;

use archipelago_core::{data, diloco, model, token, wire};

#[cfg(any(feature = "parity", all(test, any(feature = "cpu-portable", feature = "gpu"))))]
use archipelago_core::rng;
