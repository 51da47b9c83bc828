//! Browser interface of lessons and of the models of large machines, for the Workers of `pages/teach` and
//! `pages/scale`. It is a separate module, small because it has no GPU engine and no sockets.
//!
//! It is compiled for `simd128` and never for `relaxed-simd`, so that a lesson has the same bits everywhere.

#![forbid(unsafe_code)]

use archipelago_sim::lesson;
use archipelago_sim::scale::bandwidth::{LATENCY_S, Method, Release, Training};
use archipelago_sim::scale::goodput::{Cluster, Constants};
use js_sys::{Error, Reflect};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

/// Sets the panic hook when the module is loaded. A panic, which is a bug of this program, then ends the Worker with
/// its message instead of a trap.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| wasm_bindgen::throw_str(&panic.to_string())));
}

macro_rules! export {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[wasm_bindgen]
        pub struct $name(lesson::$name);

        #[wasm_bindgen]
        impl $name {
            /// Creates the initial state for `spec`, a `LessonSpec`.
            ///
            /// # Errors
            /// `Error` with the code "options": a number is missing or out of range.
            #[wasm_bindgen(constructor)]
            pub fn new(spec: JsValue) -> Result<$name, JsValue> {
                lesson::$name::new(read(spec)?).map(Self).map_err(|error| failure(&error))
            }

            /// Schedules `action`, an `Action`.
            ///
            /// # Errors
            /// `Error` with the code "options": there is no such island, or a number is out of range.
            pub fn act(&mut self, action: JsValue) -> Result<(), JsValue> {
                self.0.act(read(action)?).map_err(|error| failure(&error))
            }

            /// Schedules `change`, a `Change` of a setting.
            ///
            /// # Errors
            /// `Error` with the code "options": no such setting can change, or its value is out of range.
            pub fn change(&mut self, change: JsValue) -> Result<(), JsValue> {
                self.0.change(read(change)?).map_err(|error| failure(&error))
            }

            /// Advances the time to `to_ms`, in milliseconds of virtual time.
            pub fn advance(&mut self, to_ms: f64) {
                // The cast saturates.
                self.0.advance(to_ms as u64);
            }

            /// Returns the current state for display, and the events since the previous call.
            #[must_use]
            pub fn frame(&mut self) -> JsValue {
                to_js(&self.0.frame())
            }

            /// Returns a continuation of a fixed prompt by the model, `bytes` bytes long.
            #[must_use]
            pub fn sample(&mut self, bytes: u32) -> String {
                self.0.sample(bytes)
            }

            /// Returns the SHA-256 of the results so far, in hexadecimal. It depends only on spec, actions and time.
            #[must_use]
            pub fn digest(&self) -> String {
                self.0.digest()
            }
        }
    };
}

export! {
    /// Decoupled run of a few islands in virtual time.
    Lesson
}

export! {
    /// Same islands, trained in lockstep.
    Twin
}

/// Returns the default `LessonSpec`, with which a page begins.
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
/// Highest link rate considered, in bit/s.
const RATE_MAX: f64 = 1e15;
/// Number of pieces in which a backward pass releases gradients, as in the published simulator.
const BUCKETS: u32 = 128;
/// Expected number of interruptions in a simulation: enough for a precise goodput, and fast to compute.
const INTERRUPTIONS: f64 = 3_000.0;

/// Machine of many chips.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSpec {
    /// Total number of chips, N.
    pub chips: u64,
    /// Mean time between interruptions of one chip, in years.
    pub mtbi_years: f64,
    /// Number of learners that share the chips, M.
    pub learners: u32,
    /// Whether a learner continues without chips that it lost.
    pub elastic: bool,
    /// Seed of all random numbers.
    pub seed: u32,
}

/// Result of simulating a machine.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Yield {
    /// Fraction of the chip time that was spent training, 0 to 1.
    pub goodput: f64,
    /// Fraction of the time in which at least one learner trained, 0 to 1.
    pub uptime: f64,
    /// Number of interruptions per hour.
    pub interruptions_per_hour: f64,
}

/// Training over several data centres.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkNeed {
    /// Number of parameters, in billions.
    pub params_billion: f64,
    /// Bits per exchanged value.
    pub bits: f64,
    /// Time of an inner step, in seconds.
    pub step_s: f64,
    /// Number of data centres.
    pub data_centres: u32,
    /// Exchange method.
    pub method: Way,
    /// Number of steps between two exchanges, H.
    pub sync_every: u32,
    /// Number of fragments, P.
    pub fragments: u32,
    /// Number of steps that an exchange may take, τ.
    pub rounds_in_flight: u32,
    /// Required compute utilisation, 0 to 1.
    pub utilisation: f64,
}

/// Exchange method.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// All gradients in each step.
    DataParallel,
    /// All parameters every H steps.
    Diloco,
    /// One fragment after the other.
    Streaming,
    /// One fragment after the other, without waiting for its arrival.
    Decoupled,
}

/// Simulates a machine. `spec` is a `ClusterSpec`, and the result is a `Yield`.
///
/// # Errors
/// `Error` with the code "options": a number is invalid.
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

/// Returns the required link rate in Gbit/s for `need`, a `LinkNeed`; infinite if no rate suffices.
///
/// # Errors
/// `Error` with the code "options": a number is invalid.
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

/// TypeScript types of lessons: `web-demo/pages/shared/lesson.ts`.
#[cfg(test)]
mod types {
    use archipelago_core::diloco::MergeRule;
    use archipelago_core::wire::{Code, LateReason, Refusal};
    use archipelago_sim::lesson::{
        Action, Apply, Bounds, Change, Deed, Frame, Island, IslandState, LESSON_MS_MAX, LessonSpec, Lockstep,
        Mark, ParcelKind, Setting, Share, Totals, TwinFrame, TwinMark,
    };
    use archipelago_sim::scale::bandwidth::LATENCY_S;
    use archipelago_ts::Module;

    use crate::{ClusterSpec, LinkNeed, Way, Yield};

    #[test]
    fn types_of_lessons_are_current() {
        let heading = "Inputs and results of lessons, and the figures of the paper's models.";
        let module = Module::new("web-demo/pages/shared/lesson.ts", heading)
            .import::<LateReason>("@archipelago-train/learner")
            .import::<Refusal>("@archipelago-train/learner");
        let module = module
            .declare::<Code>()
            .declare::<MergeRule>()
            .declare::<Bounds>()
            .declare::<Apply>()
            .declare::<Lockstep>()
            .declare::<LessonSpec>();
        let module = module
            .declare::<Deed>()
            .declare::<Action>()
            .declare::<Setting>()
            .declare::<Change>()
            .declare::<IslandState>()
            .declare::<Island>();
        let module = module.declare::<Totals>().declare::<ParcelKind>().declare::<Share>().declare::<Mark>();
        let module = module.declare::<Frame>().declare::<TwinMark>().declare::<TwinFrame>();
        let module =
            module.declare::<ClusterSpec>().declare::<Yield>().declare::<Way>().declare::<LinkNeed>();
        let longest = "/** Longest lesson, in milliseconds of its own time. */";
        let latency =
            "/** What each data centre adds to an exchange of Decoupled DiLoCo, in milliseconds. */";
        module
            .text(&format!("{longest}\nexport const LESSON_MS_MAX = {LESSON_MS_MAX};\n"))
            .text(&format!("{latency}\nexport const DATA_CENTRE_LATENCY_MS = {};\n", 1e3 * LATENCY_S))
            .check();
    }
}
