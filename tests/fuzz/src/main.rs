//! Fuzzer: searches for bytes that make the target in `FUZZ_TARGET` panic, with libFuzzer's arguments.

#![no_main]
#![expect(clippy::panic, reason = "libFuzzer knows no other way to end")]

use std::panic::{self, catch_unwind};
use std::sync::OnceLock;
use std::{env, process};

use archipelago_fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        panic::set_hook(Box::new(|info| eprintln!("{info}")));
        let name = env::var("FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET names no target: {name:?}"))
    });
    // A panic that the program catches does not count; libFuzzer would end with it.
    if catch_unwind(|| (target.run)(data)).is_err() {
        process::abort();
    }
});
