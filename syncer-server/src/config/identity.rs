//! Settings that define a run.

use std::num::NonZeroU32;
use std::path::PathBuf;

use archipelago_cli::{Bytes, ExchangeArgs, one_of, some_tokens, tokens};
use archipelago_core::wire::Optimiser;
use serde::Serialize;

/// Settings that define a run and cannot change. They are stored even at their defaults. A change of the text is
/// detected separately.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunIdentity {
    /// Size of the generated text, for builtin:grammar and builtin:pictures
    #[arg(long, value_name = "BYTES", default_value = "4MiB", help_heading = "Data")]
    pub corpus_bytes: Bytes,
    /// Key or column with the text, in .jsonl and Parquet files whose documents have other keys than text, messages, or
    /// prompt and completion
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    pub column: Option<String>,
    /// Train a byte-level BPE tokenizer with this many tokens on the data; by default a token is a byte
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<u32>, help_heading = "Data")]
    #[arg(conflicts_with_all = ["tokenizer", "init"])]
    pub vocab: Option<u32>,
    /// Share of the text, at its end, that is held out to measure the loss (above 0, below 1); for .jsonl files, a
    /// share of the documents, drawn with the seed
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, help_heading = "Data")]
    pub held_out: f64,
    /// Model preset: tiny (0.1 M), small (0.8 M), medium (11 M), base (124 M), or the shape of SmolLM2: llama-135m and
    /// llama-360m
    #[arg(long, value_name = "NAME", default_value = "small", help_heading = "Training")]
    pub preset: String,
    /// Length of a training window in tokens; by default the preset's, or the one that the model of --init was made for
    #[arg(long, value_name = "TOKENS", value_parser = some_tokens, help_heading = "Training")]
    pub context: Option<NonZeroU32>,
    /// Seed of the initial parameters, of the order of the data and of generated text
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    pub seed: u64,
    /// Windows in one step of one learner; by default the preset's
    #[arg(long, value_name = "WINDOWS", help_heading = "Training")]
    pub batch: Option<NonZeroU32>,
    /// Optimiser of the learners' steps: adamw, or muon for matrices with adamw for the rest
    #[arg(
        long,
        value_name = "NAME",
        default_value = Optimiser::AdamW.name(),
        value_parser = one_of(&Optimiser::ALL, Optimiser::name),
        help_heading = "Training"
    )]
    pub inner: Optimiser,
    /// Highest inner learning rate; by default the preset's
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    pub lr: Option<f32>,
    /// Lowest inner learning rate relative to the highest, from --total-tokens on (0 to 1); by default the preset's
    #[arg(long, value_name = "SHARE", help_heading = "Training")]
    pub lr_min_ratio: Option<f32>,
    /// Merged tokens at which the learning rate reaches its lowest value (e.g. 10M, 1.5B); by default the preset's
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<u64>, help_heading = "Training")]
    pub total_tokens: Option<u64>,
    /// Name of the architecture of --params, by which learners recognise it
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    pub architecture: Option<String>,
    /// Settings of that architecture in a format of its own; the syncer passes them to learners without interpreting
    /// them
    #[arg(long, value_name = "TEXT", help_heading = "Training", requires = "architecture")]
    pub architecture_settings: Option<String>,
    /// Exchange of parameters between learners and the syncer.
    #[command(flatten)]
    #[serde(flatten)]
    pub exchange: ExchangeArgs,
}

/// Files that only the first start reads. Their names are not stored, because the run has its own copy and the source
/// may disappear.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InitialFiles {
    /// Jinja template for conversations in .jsonl files; by default the one in the folder of --init
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub chat_template: Option<PathBuf>,
    /// Start from the model and the tokenizer in this Hugging Face folder of a Llama or a Mixtral; batch and learning
    /// rates come from the preset
    #[arg(long, value_name = "FOLDER", help_heading = "Training")]
    pub init: Option<PathBuf>,
    /// Train a model of your own instead of the built-in decoder: a safetensors file with named vectors and matrices
    /// and their initial values; learners bring the program, and window, batch and learning rates come from the preset
    #[arg(long, value_name = "FILE", help_heading = "Training", conflicts_with = "init")]
    pub params: Option<PathBuf>,
}
