//! What this machine computes with.

use std::collections::BTreeMap;

use archipelago_core::model::Preset;
use archipelago_runtime::engine::gpu::{AdapterFacts, Choice, Form, Trial, adapters};
use archipelago_runtime::engine::{AnyEngine, Engine, Rehearsal};
use archipelago_runtime::platform::Clock;
use serde_json::{Value, json};

use super::Finding;
use crate::cli::ComputeArgs;
use crate::compute::Compute;
use crate::exit::{Exit, Failure};

/// Looks at every adapter, and takes a step with the engine that `args` ask for. What was found, for people
/// and for programs.
pub(super) async fn look(args: &ComputeArgs) -> (Vec<Finding>, Value) {
    let adapters = adapters().await;
    let mut findings: Vec<Finding> =
        adapters.iter().map(|facts| Finding::well("adapter", describe(facts))).collect();
    if findings.is_empty() {
        findings.push(Finding::well("adapter", "no GPU was found; the CPU can train"));
    }
    let mut figures = json!({
        "asked": args.engine.name(), "adapters": adapters.iter().map(figures_of).collect::<Vec<_>>(),
    });
    match train(args).await {
        Ok((engine, mut compute, trials)) => {
            figures["engine"] = json!(engine.kind().name());
            figures["device"] = json!(engine.describe());
            figures["matmul"] = json!(trials);
            let mut text = vec![format!("--engine {} trains with {}", args.engine, engine.describe())];
            text.extend(compute.take_notes());
            findings.push(Finding::well("compute", text.join("; ")));
            let chosen = compute.builder.tunings().last().filter(|_| !trials.is_empty());
            findings.extend(chosen.into_iter().flat_map(|tuning| matmul(&tuning.choice, &trials)));
        }
        Err(failure) => findings.push(Finding { what: "compute", well: false, text: failure.message }),
    }
    (findings, figures)
}

/// One step of a small model.
async fn train(args: &ComputeArgs) -> Result<(AnyEngine, Compute, Vec<Trial>), Failure> {
    let Rehearsal { spec, tokens } = Rehearsal::new(Preset::Small);
    let failed = |error| Failure::new(Exit::Unwell, error);
    let mut compute = Compute::open(args, Clock::start()).await?;
    let mut engine = compute.build(&spec, None).await.map_err(failed)?;
    engine.step(&tokens, spec.inner.lr_max).await.map_err(failed)?;
    let trials = compute.trials(&spec).await.map_err(failed)?;
    Ok((engine, compute, trials))
}

fn describe(facts: &AdapterFacts) -> String {
    let AdapterFacts { name, kind, backend, driver, .. } = facts;
    let mib = |bytes: u64| bytes >> 20;
    let features = [("f16", facts.f16), ("timestamps", facts.timestamps), ("subgroups", facts.subgroups)];
    let has: Vec<&str> = features.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    format!(
        "{name}, {kind} by {backend}, driver {driver}; binds {} MiB, buffers to {} MiB; {}; {}",
        mib(facts.binding_bytes_max),
        mib(facts.buffer_bytes_max),
        if has.is_empty() { "no extras".to_owned() } else { format!("has {}", has.join(", ")) },
        facts.unfit.as_ref().map_or_else(|| "fit".to_owned(), |unfit| format!("unfit: {unfit}")),
    )
}

fn figures_of(facts: &AdapterFacts) -> Value {
    json!({
        "name": facts.name, "kind": facts.kind, "backend": facts.backend, "driver": facts.driver,
        "software": facts.software, "binding_bytes_max": facts.binding_bytes_max,
        "buffer_bytes_max": facts.buffer_bytes_max, "f16": facts.f16, "timestamps": facts.timestamps,
        "subgroups": facts.subgroups, "unfit": facts.unfit.as_ref().map(ToString::to_string),
    })
}

/// How the kernels of each form did.
fn matmul(choice: &Choice, trials: &[Trial]) -> Vec<Finding> {
    let forms = [(Form::Nt, choice.nt), (Form::Nn, choice.nn), (Form::Tn, choice.tn)];
    let finding = |&(form, chosen)| {
        let mut shapes: BTreeMap<[u32; 3], String> = BTreeMap::new();
        for Trial { variant, m, n, k, gflops, .. } in trials.iter().filter(|trial| trial.form == form) {
            shapes.entry([*m, *n, *k]).or_default().push_str(&format!(" {variant:?} {gflops:.1}"));
        }
        let shapes = shapes.iter().map(|(shape, speeds)| format!("; GFLOP/s of {shape:?}:{speeds}"));
        Finding::well("matmul", format!("{form:?} takes {chosen:?}{}", shapes.collect::<String>()))
    };
    forms.iter().map(finding).collect()
}
