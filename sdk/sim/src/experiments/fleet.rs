//! `simulate fleet`: a run of real processes beside the simulator's word on it.

use std::path::{Path, PathBuf};

use archipelago_cli::within;
use archipelago_core::data::{BYTE_VOCAB, grammar};
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::{InnerSpec, Preset};
use archipelago_core::wire::ExchangeSpec;
use archipelago_sim::lab::{Budget, Corpus, Joining, Outcome, Recipe};
use archipelago_sim::world::{Fault, LinkSpec, MachineSpec};
use serde::{Deserialize, Serialize};

use super::training::failed;
use super::{Case, CommonArgs, Report};
use crate::experiments::SimulateError;

/// How much longer or shorter than usual a step takes. Constant of ours.
const STEP_JITTER: f64 = 0.1;
/// Longest run that is simulated, in milliseconds.
const LENGTH_MS_MAX: f64 = 3_600_000.0;

/// Settings of `simulate fleet`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FleetArgs {
    /// What `cargo xtask bench fleet --json` printed last, a JSON object
    #[arg(long, value_name = "FILE")]
    pub observed: PathBuf,
    /// Runs, with seeds of the world from --seed on; what is trained has the seed of the real run
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub seeds: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// A run of real processes: how it was made, and what became of it from when all took part.
#[derive(Clone, Debug, Deserialize)]
pub struct Observed {
    preset: String,
    seed: u64,
    corpus_bytes: u32,
    total_tokens: u64,
    length_ms: u64,
    kills: Vec<Kill>,
    machines: Vec<Machine>,
    tokens_trained: f64,
    tokens_merged: f64,
    rounds: f64,
    updates_merged: f64,
    updates_late: f64,
    /// Milliseconds and held-out loss.
    losses: Vec<(u64, f64)>,
}

/// When a learner was killed, and started again.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Kill {
    machine: u32,
    at_ms: u64,
    back_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Machine {
    place: String,
    round_trip_ms: u64,
    mbit_per_s: Option<f64>,
    /// Before anybody was killed.
    tokens_per_s: f64,
    tokens_merged: f64,
}
