//! Runs of the parity tests in `cargo test`, which blocks on each.

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
            opened
                .unwrap_or_else(|error| panic!("{error}; skip the tests of the GPU engine with {SWITCH}=no")),
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
