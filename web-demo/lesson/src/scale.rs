//! Models of large machines, for pages.

use archipelago_sim::scale::bandwidth::{LATENCY_S, Method, Release, Training};
use archipelago_sim::scale::goodput::{Cluster, Constants};
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::{failure, read, to_js};

const YEAR_S: f64 = 365.0 * 24.0 * 3_600.0;
const GBIT: f64 = 1e9;
/// Fastest link considered, in bit/s.
const RATE_MAX: f64 = 1e15;
/// Pieces in which a backward pass releases gradients, as in the published simulator.
const BUCKETS: u32 = 128;
/// Target number of interruptions in a simulation: enough for one goodput value, computed in milliseconds.
const INTERRUPTIONS: f64 = 3_000.0;

/// A machine of many chips.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSpec {
    /// N, chips in all.
    pub chips: u64,
    /// Mean time between interruptions of one chip, in years.
    pub mtbi_years: f64,
    /// M, learners that share them.
    pub learners: u32,
    /// Whether a learner goes on without the chips that it lost.
    pub elastic: bool,
    /// Seed of all chance.
    pub seed: u32,
}

/// What a machine comes to.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Yield {
    /// Share of the chip time that trained, 0 to 1.
    pub goodput: f64,
    /// Share of the time in which anyone trained, 0 to 1.
    pub uptime: f64,
    /// Interruptions in an hour.
    pub interruptions_per_hour: f64,
}

/// A training over several data centres.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkNeed {
    /// Parameters, in billions.
    pub params_billion: f64,
    /// Bits of a value.
    pub bits: f64,
    /// Time of a step, in seconds.
    pub step_s: f64,
    /// Data centres.
    pub data_centres: u32,
    /// Who exchanges what.
    pub method: Way,
    /// H.
    pub sync_every: u32,
    /// P.
    pub fragments: u32,
    /// τ.
    pub rounds_in_flight: u32,
    /// Share of the time that is to be computing, 0 to 1.
    pub utilisation: f64,
}

/// Who exchanges what.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// All gradients at each step.
    DataParallel,
    /// All parameters now and then.
    Diloco,
    /// Fragments, in turn.
    Streaming,
    /// Fragments, in turn, and nobody waits.
    Decoupled,
}

/// Returns the yield of a machine; `spec` is a `ClusterSpec`, the result a `Yield`.
///
/// # Errors An `Error` with the code "options": a number is invalid.
#[wasm_bindgen]
pub fn goodput(spec: JsValue) -> Result<JsValue, JsValue> {
    let spec: ClusterSpec = read(spec)?;
    let mtbi_s = spec.mtbi_years * YEAR_S;
    let constants = Constants { mtbi_s, ..Constants::default() };
    let cluster = Cluster { chips: spec.chips, learners: spec.learners, elastic: spec.elastic, constants };
    let per_hour = spec.chips as f64 * 3_600.0 / mtbi_s;
    let hours = (INTERRUPTIONS / per_hour).clamp(1e-3, 1e7);
    let found = cluster.simulate(spec.seed.into(), hours).map_err(|error| failure(&error))?;
    let interruptions_per_hour = found.interruptions as f64 / hours;
    Ok(to_js(&Yield { goodput: found.goodput, uptime: found.uptime, interruptions_per_hour }))
}

/// Returns the required speed of a link, in Gbit/s; `need` is a `LinkNeed`. Infinite if no link is fast enough.
///
/// # Errors An `Error` with the code "options": a number is invalid.
#[wasm_bindgen(js_name = linkGbitPerS)]
pub fn link_gbit_per_s(need: JsValue) -> Result<f64, JsValue> {
    let need: LinkNeed = read(need)?;
    let positive = [need.params_billion, need.bits, need.step_s].iter().all(|x| x.is_finite() && *x > 0.0);
    if !(positive && need.data_centres > 0 && (0.0..1.0).contains(&need.utilisation)) {
        return Err(failure(
            &"parameters, bits, seconds and data centres must be above 0, the utilisation below 1",
        ));
    }
    let (sync_every, fragments, overlap_steps) = (need.sync_every, need.fragments, need.rounds_in_flight);
    let method = match need.method {
        Way::DataParallel => Method::DataParallel,
        Way::Diloco => Method::DiLoCo { sync_every },
        Way::Streaming => Method::Streaming { sync_every, fragments, overlap_steps },
        Way::Decoupled => Method::Decoupled { fragments, overlap_steps },
    };
    let training = Training {
        params: need.params_billion * 1e9,
        value_bits: need.bits,
        step_s: need.step_s,
        data_centres: need.data_centres,
        latency_s: method.latency_s(need.data_centres, LATENCY_S),
        release: Release::Even(BUCKETS),
    };
    Ok(training.rate_for(method, need.utilisation, RATE_MAX).map_or(f64::INFINITY, |rate| rate / GBIT))
}
