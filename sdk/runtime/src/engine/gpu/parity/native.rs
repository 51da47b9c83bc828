//! The tests in `cargo test`, which blocks on each.

use std::sync::OnceLock;

use futures::executor::block_on;

use super::super::Gpu;
use super::Gpus;

/// Variable that skips all tests that need an adapter if it is `no`. Otherwise a missing adapter is a failure.
const SWITCH: &str = "ARCHIPELAGO_TEST_GPU";

/// Returns the devices shared by all tests of this process, or `None` if they are switched off.
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

/// Runs `test`, if there are devices.
pub fn run(test: impl AsyncFnOnce(&Gpus)) {
    if let Some(gpus) = gpus() {
        block_on(test(gpus));
    }
}

/// Runs `test` on each device, if there are devices, and lets it block on them.
pub fn each(test: impl FnMut(&Gpu)) {
    if let Some(gpus) = gpus() {
        gpus.all().iter().for_each(test);
    }
}
