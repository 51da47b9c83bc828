//! The browser's face of the learner: the pure floor of the SDK behind `wasm-bindgen`.

use wasm_bindgen::prelude::wasm_bindgen;

/// The wire version this build speaks; a page compares it with the syncer's before it joins.
#[wasm_bindgen(js_name = wireVersion)]
pub fn wire_version() -> u16 {
    archipelago::wire::VERSION
}
