//! Plain data across to JavaScript and back.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;

use crate::Failure;

/// Options as Rust has them.
pub(crate) fn read<T: DeserializeOwned>(options: JsValue) -> Result<T, Failure> {
    serde_wasm_bindgen::from_value(options).map_err(|error| Failure::Options(error.to_string()))
}

/// Plain data as plain objects.
pub(crate) fn to_js(value: &impl Serialize) -> JsValue {
    let serializer = serde_wasm_bindgen::Serializer::json_compatible();
    value.serialize(&serializer).expect("plain data")
}
