//! What a learner calls in its Worker.

use js_sys::{Array, Promise, Uint8Array};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen]
extern "C" {
    /// What a learner calls in its Worker.
    pub type Hooks;
    /// Takes an event.
    #[wasm_bindgen(method)]
    pub(crate) fn event(this: &Hooks, event: JsValue);
    /// Keeps moments.
    #[wasm_bindgen(method)]
    pub(crate) fn save(this: &Hooks, steps: f64, vectors: Array);
    /// Resolves with the Ed25519 signature of a text, by the key that the browser holds.
    #[wasm_bindgen(method)]
    pub(crate) fn sign(this: &Hooks, text: Uint8Array) -> Promise;
    /// Resolves with the moments kept of a model with so many parameters, or with nothing.
    #[wasm_bindgen(method)]
    pub(crate) fn restore(this: &Hooks, params: f64) -> Promise;
    /// Resolves with the part of frozen weights that is kept under a name, or with nothing.
    #[wasm_bindgen(method, js_name = takeKept)]
    pub(crate) fn take_kept(this: &Hooks, name: &str) -> Promise;
    /// Keeps a part of frozen weights under a name.
    #[wasm_bindgen(method)]
    pub(crate) fn keep(this: &Hooks, name: &str, bytes: Uint8Array) -> Promise;

    /// What `restore` resolves with.
    pub type Kept;
    #[wasm_bindgen(method, getter)]
    pub(crate) fn steps(this: &Kept) -> f64;
    #[wasm_bindgen(method, getter)]
    pub(crate) fn vectors(this: &Kept) -> Array;
}
