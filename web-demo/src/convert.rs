//! Conversion of plain data to and from JavaScript.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;

use crate::Failure;

/// Reads options from JavaScript.
pub(crate) fn read<T: DeserializeOwned>(options: JsValue) -> Result<T, Failure> {
    serde_wasm_bindgen::from_value(options).map_err(|error| Failure::Options(error.to_string()))
}

/// Converts plain data to plain objects.
pub(crate) fn to_js(value: &impl Serialize) -> JsValue {
    let serializer = serde_wasm_bindgen::Serializer::json_compatible();
    value.serialize(&serializer).expect("plain data")
}
