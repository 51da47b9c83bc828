//! Callbacks that a learner uses in its Worker.

use js_sys::{Array, Promise, Uint8Array};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen]
extern "C" {
    /// Callbacks that a learner uses in its Worker.
    pub type Hooks;
    /// Receives an event.
    #[wasm_bindgen(method)]
    pub(crate) fn event(this: &Hooks, event: JsValue);
    /// Saves moments.
    #[wasm_bindgen(method)]
    pub(crate) fn save(this: &Hooks, steps: f64, vectors: Array);
    /// Resolves with the Ed25519 signature of a text, made with the key that the browser holds.
    #[wasm_bindgen(method)]
    pub(crate) fn sign(this: &Hooks, text: Uint8Array) -> Promise;
    /// Resolves with the saved moments of a model with `params` parameters, or with nothing.
    #[wasm_bindgen(method)]
    pub(crate) fn restore(this: &Hooks, params: f64) -> Promise;
    /// Resolves with the part of frozen weights stored under a name, or with nothing.
    #[wasm_bindgen(method, js_name = takeKept)]
    pub(crate) fn take_kept(this: &Hooks, name: &str) -> Promise;
    /// Stores a part of frozen weights under a name.
    #[wasm_bindgen(method)]
    pub(crate) fn keep(this: &Hooks, name: &str, bytes: Uint8Array) -> Promise;

    /// Result of `restore`.
    pub type Kept;
    #[wasm_bindgen(method, getter)]
    pub(crate) fn steps(this: &Kept) -> f64;
    #[wasm_bindgen(method, getter)]
    pub(crate) fn vectors(this: &Kept) -> Array;
}
