//! JSON objects with a checksum among their entries, so that damage is detected.

use archipelago_core::bytes::hex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Key of the checksum. It is the SHA-256, in hexadecimal, of all other entries as compact JSON, sorted by key.
const SEAL: &str = "sha256";

/// Returns `content` as a JSON object with its checksum. `content` must have no entry with the checksum's key.
pub(super) fn seal(content: &impl Serialize) -> Value {
    let text = serde_json::to_string(content).expect("plain data");
    let mut value: Value = serde_json::from_str(&text).expect("it was written here");
    let seal = digest(&value);
    if let Value::Object(entries) = &mut value {
        entries.insert(SEAL.to_owned(), seal.into());
    }
    value
}

/// Parses `json` after a check of its checksum.
///
/// # Errors
/// A sentence: `json` is invalid, its checksum is missing or wrong, or it does not describe a `T`.
pub(super) fn unseal<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    let mut value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let seal = value.as_object_mut().and_then(|entries| entries.remove(SEAL));
    let seal = seal.ok_or("it has no checksum")?;
    if seal.as_str() != Some(&digest(&value)) {
        return Err("it is damaged: its content does not match its checksum".to_owned());
    }
    // Numbers are parsed from text, which restores them to the bit.
    let text = serde_json::to_string(&value).expect("it was read from JSON");
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// Returns the checksum of `value`. The order of its keys does not matter.
fn digest(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    hex(&Sha256::digest(serde_json::to_string(&value).expect("it is JSON")))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Content {
        seed: u64,
        rate: f32,
        names: Vec<String>,
    }

    fn content() -> Content {
        Content { seed: u64::MAX, rate: 0.1, names: vec!["ä".into(), "b".into()] }
    }

    /// Goal: any change of one byte yields the original content or an error.
    #[test]
    fn no_changed_byte_is_believed() {
        let json = serde_json::to_vec_pretty(&seal(&content())).unwrap();
        assert_eq!(unseal::<Content>(&json).unwrap(), content());
        let mut refused = 0;
        for at in 0..json.len() {
            for byte in (0..=255).filter(|byte| *byte != json[at]) {
                let mut changed = json.clone();
                changed[at] = byte;
                match unseal::<Content>(&changed) {
                    Ok(read) => assert_eq!(read, content(), "byte {at} became {byte}"),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > json.len() * 200, "{refused} of {}", json.len() * 255);
    }

    #[test]
    fn a_description_without_a_checksum_is_refused() {
        let json = serde_json::to_vec(&content()).unwrap();
        assert_eq!(unseal::<Content>(&json), Err("it has no checksum".to_owned()));
    }
}
