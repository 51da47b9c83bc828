//! A learner in thirty lines: `cargo run --release -p archipelago --example learner -- ws://HOST:7700`.
//!
//! It trains the model of the run at that address on this CPU until the run ends, and prints its progress.
//! `native-learner` also supports GPUs and settings, and keeps its identity.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use std::num::NonZeroUsize;
use std::{env, error::Error, thread};

use archipelago::engine::cpu::CpuTrainer;
use archipelago::model::{ModelSpec, RunSpec};
use archipelago::run::Key;
use archipelago::{Control, Event, HostEngine, RunConfig, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).ok_or("say which run: ws://HOST:PORT")?;
    // This is a new key. If a program stores its secret and uses it again, it is recognised as the same learner.
    let config = RunConfig::new(address.parse()?, Key::random()?);
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let build = async |spec: &RunSpec, _basis| {
        HostEngine::new(spec, CpuTrainer::new(&ModelSpec::of(&spec.model)?, &spec.inner, threads)?)
    };
    let control = Control::new();
    let report = run(config, &control, build, |event| {
        if let Event::Progress(now) = event {
            let (steps, trained, merged) = (now.steps, now.tokens_trained, now.tokens_merged);
            println!(
                "{steps} steps, loss {:.3}, {merged} of {trained} tokens merged",
                now.loss.unwrap_or(f32::NAN)
            );
        }
    });
    println!("{} updates of this learner were merged", report.await?.updates_merged);
    Ok(())
}
