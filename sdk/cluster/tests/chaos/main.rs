//! Chaos test of a cluster of real processes and servers, which are killed and paused. Then all receipts and notices
//! are compared with the tape. `cargo xtask test --only cluster` runs it; `--count` is the number of faults, and
//! `--seeds` selects them.
//!
//! Leading processes and gateways are this program, started with a role. Learners run in this process, and reach
//! gateways over TCP.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that is a program of its own")]

mod role;
mod storm;
#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::ops::Range;
use std::process::ExitCode;

use tokio::runtime::Runtime;

/// Default number of faults.
const FAULTS: u64 = 12;

/// Returns the requested number of faults.
fn faults() -> u64 {
    env::var("ARCHIPELAGO_TEST_COUNT")
        .map_or(FAULTS, |count| count.parse().expect("the number of faults is a number"))
}

/// Returns the requested seeds; by default, one seed.
fn seeds() -> Range<u64> {
    let Ok(asked) = env::var("ARCHIPELAGO_TEST_SEEDS") else { return 1..2 };
    let (from, until) = asked.split_once("..").expect("seeds are FROM..UNTIL");
    from.parse().expect("a number")..until.parse().expect("a number")
}

fn main() -> ExitCode {
    let runtime = Runtime::new().expect("a runtime");
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [name, orders] = &arguments[..]
        && name == role::FLAG
    {
        runtime.block_on(role::play(serde_json::from_str(orders).expect("orders of this program")));
        return ExitCode::SUCCESS;
    }
    let Some(bin) = support::servers::wanted() else { return ExitCode::SUCCESS };
    let faults = faults();
    for seed in seeds() {
        match runtime.block_on(storm::run(&bin, seed, faults)) {
            Ok(figures) => println!("{figures}"),
            Err(broken) => {
                eprintln!("seed {seed}, {faults} faults: {broken}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
