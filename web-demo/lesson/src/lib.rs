//! Browser interface of lessons and of the models of large machines, for the Workers of `pages/teach` and
//! `pages/scale`. A separate, small module without GPU engines and sockets.
//!
//! Compiled for `simd128` and never for `relaxed-simd`, so that a lesson has the same bits everywhere.

#![forbid(unsafe_code)]

#[cfg(test)]
mod types;

use archipelago_sim::lesson;
use archipelago_sim::scale::bandwidth::{LATENCY_S, Method, Release, Training};
use archipelago_sim::scale::goodput::{Cluster, Constants};
use js_sys::{Error, Reflect};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

/// Runs when the module is loaded. A panic, which is a bug of ours, then ends the Worker with its message instead of a
/// bare trap.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| wasm_bindgen::throw_str(&panic.to_string())));
}

macro_rules! face {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[wasm_bindgen]
        pub struct $name(lesson::$name);

        #[wasm_bindgen]
        impl $name {
            /// Creates the initial state for `spec`, a `LessonSpec`.
            ///
            /// # Errors
            /// An `Error` with the code "options": a number is missing or out of its range.
            #[wasm_bindgen(constructor)]
            pub fn new(spec: JsValue) -> Result<$name, JsValue> {
                lesson::$name::new(read(spec)?).map(Self).map_err(|error| failure(&error))
            }

            /// Applies `action`, an `Action`, to an island.
            ///
            /// # Errors
            /// An `Error` with the code "options": there is no such island, or a number is out of its range.
            pub fn act(&mut self, action: JsValue) -> Result<(), JsValue> {
                self.0.act(read(action)?).map_err(|error| failure(&error))
            }

            /// Changes a setting while the run continues; `change` is a `Change`.
            ///
            /// # Errors
            /// An `Error` with the code "options": no such setting can change, or its value is out of its range.
            pub fn change(&mut self, change: JsValue) -> Result<(), JsValue> {
                self.0.change(read(change)?).map_err(|error| failure(&error))
            }

            /// Advances time to `to_ms`, in milliseconds of the lesson.
            pub fn advance(&mut self, to_ms: f64) {
                // The cast saturates.
                self.0.advance(to_ms as u64);
            }

            /// Returns the current state for display, and the events since the last call.
            #[must_use]
            pub fn frame(&mut self) -> JsValue {
                to_js(&self.0.frame())
            }

            /// Returns text of `bytes` bytes that the model writes now.
            #[must_use]
            pub fn sample(&mut self, bytes: u32) -> String {
                self.0.sample(bytes)
            }

            /// Returns the SHA-256 of the result as hex digits: the same for the same spec and actions everywhere.
            #[must_use]
            pub fn digest(&self) -> String {
                self.0.digest()
            }
        }
    };
}

face! {
    /// A run of a few islands in virtual time.
    Lesson
}

face! {
    /// The same islands in lock-step.
    Twin
}

/// Returns the `LessonSpec` that a page starts from.
#[wasm_bindgen(js_name = lessonDefaults)]
#[must_use]
pub fn lesson_defaults() -> JsValue {
    to_js(&lesson::LessonSpec::default())
}

fn read<T: DeserializeOwned>(options: JsValue) -> Result<T, JsValue> {
    serde_wasm_bindgen::from_value(options).map_err(|error| failure(&error))
}

fn to_js(value: &impl Serialize) -> JsValue {
    let serializer = serde_wasm_bindgen::Serializer::json_compatible();
    value.serialize(&serializer).expect("plain data")
}

fn failure(reason: &impl std::fmt::Display) -> JsValue {
    let error = Error::new(&reason.to_string());
    // A new object accepts any property.
    Reflect::set(&error, &"code".into(), &"options".into()).ok();
    error.into()
}

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

/// Result for one machine.
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
    /// Exchange method.
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

/// Exchange method.
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
    /// Fragments, in turn, without waiting.
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
