//! `native-learner bench`: measures the training speed of this machine.

use std::collections::BTreeMap;

use archipelago::run::EngineInputs;
use archipelago_core::model::{ModelSpec, flops_per_token};
use archipelago_core::wire::{RunSpec, Serial};
use archipelago_runtime::engine::gpu::{KernelTime, Trial};
use archipelago_runtime::engine::{AnyEngine, Engine, EngineError, EngineKind, Rehearsal, cpu};
use archipelago_runtime::platform::Clock;
use serde_json::{Value, json};

use crate::cli::BenchArgs;
use crate::compute::Compute;
use crate::exit::{Exit, Failure};
use crate::show::{self, short};

pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let seconds = args.seconds()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    runtime.block_on(measure(args, seconds))
}

/// Results of a measurement.
struct Figures {
    /// Time from the search for the device to the end of the first step, in microseconds.
    first_step_us: u64,
    /// Duration of the call of each step, in microseconds, in ascending order.
    steps_us: Vec<u64>,
    tokens_per_s: f64,
    /// Bytes that the GPU engine reads back for one round of every fragment, coded as updates.
    exchange_bytes: Option<u64>,
    peak_flops_per_s: Option<f64>,
    profile: Option<BTreeMap<&'static str, KernelTime>>,
}

async fn measure(args: &BenchArgs, seconds: f64) -> Result<(), Failure> {
    let rehearsal = Rehearsal::new(args.preset);
    let spec = &rehearsal.spec;
    let failed = |error: EngineError| {
        Failure::new(Exit::Machine, format!("cannot train {}: {error}", args.preset.name()))
    };
    let clock = Clock::start();
    let mut compute = Compute::open(&args.compute, clock).await?;
    let mut engine = compute.build(spec, EngineInputs::default()).await.map_err(failed)?;
    let notes = compute.take_notes();
    if !args.json {
        notes.iter().for_each(|note| show::write(format_args!("{note}\n")));
    }
    let mut figures = steps(&mut engine, &rehearsal, seconds, clock).await.map_err(failed)?;
    if args.profile {
        figures.profile = engine.profile().await.map_err(failed)?;
    }
    let trials = compute.trials(spec).await.map_err(failed)?;
    figures.peak_flops_per_s = if engine.kind() == EngineKind::Gpu {
        trials.iter().map(|trial| trial.gflops * 1e9).reduce(f64::max)
    } else {
        let peak = cpu::matmul_flops_per_s(args.compute.threads(), &move || clock.now_us());
        Some(peak.map_err(failed)?)
    };
    if args.json {
        let mut all = figures.json(args, &engine, spec);
        let facts = compute.builder.gpu().map(|gpu| gpu.facts());
        all["adapter"] = json!(facts.map(|facts| &facts.name));
        all["driver"] = json!(facts.map(|facts| &facts.driver));
        all["software"] = json!(facts.is_some_and(|facts| facts.software));
        all["kernels_known"] = json!(compute.builder.trials().is_empty());
        all["matmul"] = json!(trials);
        all["notes"] = json!(notes);
        show::print(&all);
    } else {
        figures.show(args, &engine, spec, &trials);
    }
    Ok(())
}

/// Loads parameters, trains for `seconds`, and codes an update of each fragment once.
async fn steps(
    engine: &mut AnyEngine,
    rehearsal: &Rehearsal,
    seconds: f64,
    clock: Clock,
) -> Result<Figures, EngineError> {
    let Rehearsal { spec, tokens } = rehearsal;
    rehearsal.load(engine)?;
    let fragments = engine.fragments().clone();
    engine.step(tokens, spec.inner.lr_max).await?;
    let first_step_us = clock.now_us();
    engine.synchronise().await?;

    let start_us = clock.now_us();
    let (mut steps_us, mut trained, mut now_us) = (Vec::new(), 0, start_us);
    while ((now_us - start_us) as f64) < seconds * 1e6 {
        trained += engine.step(tokens, spec.inner.lr_max).await?.tokens;
        let then_us = now_us;
        now_us = clock.now_us();
        steps_us.push(now_us - then_us);
    }
    // The tokens of asynchronous steps are counted already, so their end must be awaited.
    engine.synchronise().await?;
    let tokens_per_s = trained as f64 * 1e6 / (clock.now_us() - start_us) as f64;
    steps_us.sort_unstable();

    let before = engine.exchange_bytes();
    for fragment in fragments.ids() {
        engine.encode(Serial(0), fragment)?;
        engine.synchronise().await?;
        while engine.encoded()?.is_some() {}
    }
    let exchange_bytes = engine.exchange_bytes().zip(before).map(|(after, before)| after - before);
    let (peak_flops_per_s, profile) = (None, None);
    Ok(Figures { first_step_us, steps_us, tokens_per_s, exchange_bytes, peak_flops_per_s, profile })
}

impl Figures {
    fn step_ms_p50(&self) -> f64 {
        self.steps_us[self.steps_us.len() / 2] as f64 / 1e3
    }

    fn flops_per_s(&self, spec: &RunSpec) -> f64 {
        let flops = ModelSpec::of(&spec.model).and_then(|model| flops_per_token(&model));
        self.tokens_per_s * flops.map_or(0.0, |flops| flops as f64)
    }

    fn json(&self, args: &BenchArgs, engine: &AnyEngine, spec: &RunSpec) -> Value {
        let (model, flops_per_s) = (args.preset.model(spec.model.vocab), self.flops_per_s(spec));
        let profile = |profile: &BTreeMap<&'static str, KernelTime>| {
            let kernel =
                |time: &KernelTime| json!({"dispatches": time.dispatches, "us": time.us, "flop": time.cost});
            Value::from_iter(profile.iter().map(|(name, time)| (*name, kernel(time))))
        };
        json!({
            "preset": args.preset.name(), "params": engine.layout().len(),
            "vocab": model.vocab, "d_model": model.d_model, "layers": model.layers, "heads": model.heads,
            "d_ff": model.d_ff, "context": model.context, "batch": spec.inner.batch,
            "engine": engine.kind().name(), "device": engine.describe(), "threads": args.compute.threads(),
            "steps": self.steps_us.len(), "step_ms_p50": self.step_ms_p50(),
            "first_step_ms": self.first_step_us as f64 / 1e3, "tokens_per_s": self.tokens_per_s,
            "flops_per_token": flops_per_token(&model).ok(), "flops_per_s": flops_per_s,
            "peak_flops_per_s": self.peak_flops_per_s,
            "share_of_peak": self.peak_flops_per_s.map(|peak| flops_per_s / peak),
            "bytes_read_back_per_round": self.exchange_bytes,
            "profile": self.profile.as_ref().map(profile),
        })
    }

    fn show(&self, args: &BenchArgs, engine: &AnyEngine, spec: &RunSpec, trials: &[Trial]) {
        let (params, steps) = (engine.layout().len(), self.steps_us.len());
        let flops_per_s = self.flops_per_s(spec);
        let share = match self.peak_flops_per_s {
            Some(peak) => {
                format!(", {:.0} % of what its matrix products alone reach", 100.0 * flops_per_s / peak)
            }
            None => String::new(),
        };
        show::write(format_args!(
            "{}: {:.0} tokens/s on {} ({params} parameters, {steps} steps, median {:.1} ms)\n\
             {}FLOP/s{share}; first step after {:.1} s\n",
            args.preset.name(),
            self.tokens_per_s,
            engine.describe(),
            self.step_ms_p50(),
            short(flops_per_s),
            self.first_step_us as f64 / 1e6,
        ));
        if let Some(bytes) = self.exchange_bytes {
            show::write(format_args!("{}B read back for a round of every fragment\n", short(bytes as f64)));
        }
        if args.verbose {
            trials.iter().for_each(|trial| show::write(format_args!("{}\n", show::trial(trial))));
        }
        let total_us: f64 = self.profile.iter().flatten().map(|(_, time)| time.us).sum();
        for (kernel, KernelTime { dispatches, us, cost }) in self.profile.iter().flatten() {
            show::write(format_args!(
                "{kernel:>20}: {:5.1} %, {:.1} ms in {dispatches} dispatches, {}FLOP/s\n",
                100.0 * us / total_us,
                us / 1e3,
                short(*cost as f64 * 1e6 / us.max(1.0)),
            ));
        }
        if args.profile && self.profile.is_none() {
            show::write("no profile: kernels can be timed on GPUs that have timestamps\n");
        }
    }
}
