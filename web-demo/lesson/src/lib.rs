//! Browser interface of lessons and of the models of large machines, for the Workers of `pages/teach` and
//! `pages/scale`. A separate, small module without GPU engines and sockets.
//!
//! Compiled for `simd128` and never for `relaxed-simd`, so that a lesson has the same bits everywhere.

#![forbid(unsafe_code)]

mod scale;
#[cfg(test)]
mod types;

use archipelago_sim::lesson;
use js_sys::{Error, Reflect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

pub use scale::{ClusterSpec, LinkNeed, Way, Yield, goodput, link_gbit_per_s};

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
