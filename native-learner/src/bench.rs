//! `native-learner bench`: how fast this machine trains.

use archipelago::data::BYTE_VOCAB;
use archipelago::engine::Trainer;
use archipelago::engine::cpu::CpuTrainer;
use archipelago::model::Preset;
use archipelago::platform::Clock;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::{Exit, Failure, machine, show};

pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let preset: Preset = args.preset.parse().map_err(|error| Failure::new(Exit::Usage, error))?;
    if !(args.seconds > 0.0 && args.seconds < 1e6) {
        let message = format!("--seconds {} makes no sense: give a number above 0", args.seconds);
        return Err(Failure::new(Exit::Usage, message));
    }
    let threads = args.threads.unwrap_or_else(machine::cores);
    let (model, inner) = (preset.model(BYTE_VOCAB), preset.inner());
    let failed = |error| Failure::new(Exit::Machine, format!("cannot train {}: {error}", preset.name()));
    let mut trainer = CpuTrainer::new(&model, &inner, threads).map_err(failed)?;
    let tokens = tokens(inner.batch as usize * (model.context as usize + 1));
    trainer.step(&tokens, inner.lr_max).map_err(failed)?;

    let clock = Clock::start();
    let (mut steps_us, mut trained) = (Vec::new(), 0);
    while (clock.now_us() as f64) < args.seconds * 1e6 {
        let from_us = clock.now_us();
        trained += trainer.step(&tokens, inner.lr_max).map_err(failed)?.tokens;
        steps_us.push(clock.now_us() - from_us);
    }
    let tokens_per_s = trained as f64 * 1e6 / steps_us.iter().sum::<u64>() as f64;
    steps_us.sort_unstable();
    let step_ms = steps_us[steps_us.len() / 2] as f64 / 1e3;
    let (params, device, steps) = (trainer.layout().len(), trainer.describe(), steps_us.len());
    if args.json {
        show::print(&json!({
            "preset": preset.name(), "params": params, "device": device, "threads": threads,
            "batch": inner.batch, "context": model.context, "steps": steps,
            "step_ms_p50": step_ms, "tokens_per_s": tokens_per_s,
        }));
    } else {
        show::write(format_args!(
            "{}: {tokens_per_s:.0} tokens/s on {device} ({params} parameters, {steps} steps, median {step_ms:.1} ms)\n",
            preset.name()
        ));
    }
    Ok(())
}

/// Bytes that look like anything: what they are does not change the speed.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| index.wrapping_mul(2_654_435_761) >> 24).collect()
}
