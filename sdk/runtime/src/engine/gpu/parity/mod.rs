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
mod ring;
#[cfg(test)]
mod table;

/// Runs of the parity tests in `cargo test`, which blocks on each.
#[cfg(test)]
mod native {
    use std::sync::OnceLock;

    use futures::executor::block_on;

    use super::super::Gpu;
    use super::Gpus;

    /// Environment variable; `no` skips all tests that need a GPU. Otherwise a missing GPU fails them.
    const SWITCH: &str = "ARCHIPELAGO_TEST_GPU";

    /// Returns the devices that all tests of this process share, or `None` if GPU tests are turned off.
    fn gpus() -> Option<&'static Gpus> {
        static GPUS: OnceLock<Option<Gpus>> = OnceLock::new();
        GPUS.get_or_init(|| {
            if std::env::var(SWITCH).is_ok_and(|value| value == "no") {
                eprintln!("skipped: {SWITCH}=no");
                return None;
            }
            let opened = block_on(Gpus::open());
            Some(
                opened.unwrap_or_else(|error| {
                    panic!("{error}; skip the tests of the GPU engine with {SWITCH}=no")
                }),
            )
        })
        .as_ref()
    }

    /// Runs `test`, unless GPU tests are turned off.
    pub fn run(test: impl AsyncFnOnce(&Gpus)) {
        if let Some(gpus) = gpus() {
            block_on(test(gpus));
        }
    }

    /// Runs the blocking `test` on each device, unless GPU tests are turned off.
    pub fn each(test: impl FnMut(&Gpu)) {
        if let Some(gpus) = gpus() {
            gpus.all().iter().for_each(test);
        }
    }
}

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
