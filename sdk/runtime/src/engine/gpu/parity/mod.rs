//! Tests that compare each kernel with a scalar function on the CPU at irregular sizes. They run within WebGPU's
//! default limits, and also within the adapter's own limits if these allow more kernels.
//!
//! A test is an `async fn` that takes the devices. `cargo test` blocks on it, and a browser awaits it.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::pin::Pin;

pub use harness::Gpus;

/// Adds tests to the module's `PARITY`, and in native builds to `cargo test`.
macro_rules! parity {
    ($($(#[$when:meta])* $name:ident),* $(,)?) => {
        pub const PARITY: &[super::Test] = &[$($(#[$when])* super::Test {
            name: concat!(module_path!(), "::", stringify!($name)),
            run: |gpus| Box::pin($name(gpus)),
        }),*];

        #[cfg(test)]
        mod tests {
            $($(#[$when])* #[test]
            fn $name() {
                super::super::native::run(super::$name);
            })*
        }
    };
}

mod adapters;
mod attention;
#[cfg(test)]
mod blocking;
mod code;
mod engine;
mod exchange;
mod harness;
mod layers;
mod matmul;
// In a browser, these tests would give the same result, because the engine counts buffer sizes itself, but take 90
// seconds.
#[cfg(not(target_arch = "wasm32"))]
mod memory;
mod muon;
#[cfg(test)]
mod native;
mod ring;
#[cfg(test)]
mod table;

/// One test.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Path of the test function in this crate.
    pub name: &'static str,
    /// Runs the test. It panics if the test fails.
    pub run: for<'a> fn(&'a Gpus) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

const GROUPS: &[&[Test]] = &[
    adapters::PARITY,
    attention::PARITY,
    code::PARITY,
    layers::PARITY,
    engine::PARITY,
    exchange::PARITY,
    matmul::PARITY,
    #[cfg(not(target_arch = "wasm32"))]
    memory::PARITY,
    muon::PARITY,
    ring::PARITY,
];

/// Returns all tests, in a stable order.
pub fn tests() -> impl Iterator<Item = Test> {
    GROUPS.iter().copied().flatten().copied()
}
