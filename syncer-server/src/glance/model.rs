//! What a run trains, in words.

use serde::Deserialize;

use super::text::{count, percent, plain};

/// As much of the adapters in `/v1/status` as is shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Adapters {
    rank: u32,
    targets: String,
    frozen_params: u64,
}

/// What is trained, counted: `params` parameters, of `adapters` if it is those.
pub(super) fn parameters(params: u64, adapters: Option<&Adapters>) -> String {
    let trained = format!("{} parameters", count(params));
    let Some(Adapters { rank, targets, frozen_params }) = adapters else { return trained };
    let all = params + frozen_params;
    let share = percent(params as f64 / all.max(1) as f64);
    format!("{trained} of adapters of rank {rank} on {}, {share} of {}", plain(targets), count(all))
}
