//! One training run in virtual time, one JSON line: the instrument behind the defaults.
#![expect(clippy::print_stdout, reason = "the line is the result")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Instant;

use archipelago::data::{BYTE_VOCAB, grammar};
use archipelago::diloco::syncer::SyncerConfig;
use archipelago::diloco::{MergeRule, OuterSpec, QuorumPolicy};
use archipelago::model::{InnerSpec, Preset};
use archipelago::wire::{ApplyPolicy, Code, ExchangeSpec};
use archipelago_tests::lab::{Corpus, Recipe, reference_model};
use clap::{Parser, ValueEnum};

/// Trains M equal learners in virtual time on the real cores and measures the outer parameters.
#[derive(Parser)]
struct Args {
    /// A text file, or "builtin" for the built-in corpus.
    #[arg(long, default_value = "builtin")]
    data: PathBuf,
    /// tiny, small, medium, base, or ref: the shape of the independent model of the method.
    #[arg(long, default_value = "ref")]
    preset: String,
    /// M, the learners.
    #[arg(long, default_value_t = 4)]
    learners: u32,
    /// Tokens to train on, all learners together.
    #[arg(long, default_value_t = 1_500_000)]
    tokens: u64,
    /// Seed of parameters, data order and world.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Windows in a step of one learner.
    #[arg(long, default_value_t = 8)]
    batch: u32,
    /// Highest inner learning rate.
    #[arg(long, default_value_t = 2e-3)]
    inner_lr: f32,
    /// Decay of AdamW's second moment.
    #[arg(long, default_value_t = 0.99)]
    beta2: f32,
    /// Outer learning rate.
    #[arg(long, default_value_t = OuterSpec::default().lr)]
    outer_lr: f32,
    /// Outer momentum.
    #[arg(long, default_value_t = OuterSpec::default().momentum)]
    outer_momentum: f32,
    /// H, steps between two rounds of a fragment.
    #[arg(long, default_value_t = 24)]
    sync_every: u32,
    /// P, the fragments.
    #[arg(long, default_value_t = 8)]
    fragments: u16,
    /// keep, keep-residue, overwrite, or blend:ALPHA.
    #[arg(long, default_value = "keep-residue", value_parser = parse_apply)]
    apply: ApplyPolicy,
    /// int4, e3m0 or f32.
    #[arg(long, value_enum, default_value_t = CodeArg::Int4)]
    code: CodeArg,
    /// Values that share a scale.
    #[arg(long, default_value_t = 256)]
    block: u32,
    /// radial or mean.
    #[arg(long, value_enum, default_value_t = MergeArg::Radial)]
    merge: MergeArg,
    /// τ, rounds in flight.
    #[arg(long, default_value_t = 2)]
    tau: u32,
    /// One trainer with the batches of all learners instead: synchronous data-parallel.
    #[arg(long)]
    baseline: bool,
    /// Threads of a trainer.
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CodeArg {
    Int4,
    E3m0,
    F32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MergeArg {
    Radial,
    Mean,
}

fn parse_apply(text: &str) -> Result<ApplyPolicy, String> {
    match text {
        "keep" => Ok(ApplyPolicy::Keep { residue: false }),
        "keep-residue" => Ok(ApplyPolicy::Keep { residue: true }),
        "overwrite" => Ok(ApplyPolicy::Overwrite),
        _ => {
            let alpha = text.strip_prefix("blend:").and_then(|alpha| alpha.parse().ok());
            alpha.map(|alpha| ApplyPolicy::Blend { alpha }).ok_or_else(|| {
                format!("{text:?} is no policy: choose keep, keep-residue, overwrite or blend:ALPHA")
            })
        }
    }
}

impl Args {
    fn recipe(&self) -> Result<Recipe, String> {
        let model = match self.preset.as_str() {
            "ref" => reference_model(),
            name => name.parse::<Preset>().map_err(|error| error.to_string())?.model(BYTE_VOCAB),
        };
        let inner = InnerSpec {
            batch: self.batch,
            lr_max: self.inner_lr,
            beta2: self.beta2,
            warmup_tokens: self.tokens / 20,
            total_tokens: self.tokens,
            ..Preset::Small.inner()
        };
        let code = match self.code {
            CodeArg::Int4 => Code::Int4,
            CodeArg::E3m0 => Code::E3m0,
            CodeArg::F32 => Code::F32,
        };
        let (fragments, sync_every, block) = (self.fragments, self.sync_every, self.block);
        let quorum = QuorumPolicy { rounds_in_flight: self.tau, ..QuorumPolicy::default() };
        let syncer = SyncerConfig {
            quorum,
            outer: OuterSpec { lr: self.outer_lr, momentum: self.outer_momentum },
            merge: match self.merge {
                MergeArg::Radial => MergeRule::Radial,
                MergeArg::Mean => MergeRule::Mean,
            },
            learners_start: NonZeroU32::new(self.learners).ok_or("--learners must be at least 1")?.get(),
            ..SyncerConfig::default()
        };
        Ok(Recipe {
            model,
            inner,
            exchange: ExchangeSpec { fragments, sync_every, block, code, apply: self.apply },
            syncer,
            learners: self.learners,
            tokens: self.tokens,
            seed: self.seed,
            threads: self.threads,
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "how long the run took is part of its line")]
fn main() -> Result<(), String> {
    let args = Args::parse();
    let recipe = args.recipe()?;
    let text = match args.data.to_str() {
        Some("builtin") => grammar::generate(1, 1_000_000).into_bytes(),
        _ => std::fs::read(&args.data).map_err(|error| format!("{}: {error}", args.data.display()))?,
    };
    let corpus = Corpus::new(&text);
    let start = Instant::now();
    let outcome = if args.baseline { recipe.train_alone(&corpus) } else { recipe.train(&corpus) };
    let line = serde_json::json!({
        "val": outcome.val,
        "tokens": outcome.tokens,
        "tokens_merged": outcome.tokens_merged,
        "steps_per_learner": outcome.steps_per_learner,
        "rounds": outcome.rounds,
        "virtual_ms": outcome.virtual_ms,
        "s": start.elapsed().as_secs_f64(),
        "baseline": args.baseline,
        "preset": args.preset,
        "learners": args.learners,
        "seed": args.seed,
        "batch": args.batch,
        "inner_lr": args.inner_lr,
        "beta2": args.beta2,
        "outer_lr": args.outer_lr,
        "outer_momentum": args.outer_momentum,
        "sync_every": args.sync_every,
        "fragments": args.fragments,
        "apply": format!("{:?}", args.apply),
        "code": format!("{:?}", args.code),
        "block": args.block,
        "merge": format!("{:?}", args.merge),
        "tau": args.tau,
    });
    println!("{line}");
    Ok(())
}
