//! What a learner of Archipelago runs on: engines that train, and the platform's sockets and clocks.
//!
//! **This crate is machinery.** Its public items serve the programs of this repository: they may change in any version,
//! and no promise of [Semantic Versioning](https://semver.org/) is made for them. What is meant for your programs is
//! passed on, and promised, by the crate `archipelago`: depend on that one.
//!
//! | module | what it holds |
//! |---|---|
//! | [`engine`] | the traits `Trainer`, `Exchange` and `Engine`, engines for CPU and GPU, what chooses among them |
//! | `platform` | what differs between targets: a clock, a socket, HTTP, a timer, random bytes, vectors of floats |
//!
//! | feature | what it adds |
//! |---|---|
//! | `cpu` | the CPU engine with `gemm`, threads, and the instruction set chosen when it runs |
//! | `cpu-portable` | the same engine with a portable matrix product, for wasm32 |
//! | `gpu` | the GPU engine, on Vulkan, Metal or the browser's WebGPU |
//! | `parity` | the parity tests of the GPU engine, for a browser to run |
//! | `platform` | sockets and clocks, natively and in browsers |
//! | `client` | the native HTTP client: proxies, failed transfers, hang-ups of the terminal |

pub mod engine;
#[cfg(any(feature = "cpu-portable", feature = "platform", feature = "client"))]
pub mod platform;

use archipelago_core::{data, diloco, model, token, wire};

#[cfg(any(feature = "parity", all(test, feature = "gpu")))]
use archipelago_core::rng;
