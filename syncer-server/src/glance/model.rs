//! Description of a run's trained model.

use serde::Deserialize;

use super::text::{count, percent, plain};

/// The part of the adapters in `/v1/status` that is shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Adapters {
    rank: u32,
    targets: String,
    frozen_params: u64,
}

/// Describes the number of trained parameters: `params`, which belong to `adapters` if the run has any.
pub(super) fn parameters(params: u64, adapters: Option<&Adapters>) -> String {
    let trained = format!("{} parameters", count(params));
    let Some(Adapters { rank, targets, frozen_params }) = adapters else { return trained };
    let all = params + frozen_params;
    let share = percent(params as f64 / all.max(1) as f64);
    format!("{trained} of adapters of rank {rank} on {}, {share} of {}", plain(targets), count(all))
}
