//! The settings on which all processes of a run must agree, in addition to the run's identity.

use serde_json::Value;

use crate::config::{CHANGEABLE, ServeConfig};
use crate::errors::ServerError;

/// Settings that affect merges and admission but are not part of the run's identity. Bus and storage compare that
/// identity by itself, as a number.
const ALSO_AGREED: [&str; 5] =
    ["outer-lr", "outer-momentum", "momentum-warmup", "learners-start", "hide-names"];

/// Returns the settings of `config` on which the processes must agree, by key.
pub(super) fn agreed(config: &ServeConfig) -> Vec<(String, String)> {
    let values = serde_json::to_value(config).expect("plain data");
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let keys = CHANGEABLE.iter().chain(&ALSO_AGREED);
    keys.filter_map(|key| Some(((*key).to_owned(), text(values.get(key)?)))).collect()
}

/// Checks that `ours` equal the settings of the other processes.
///
/// # Errors
/// `Config`: they differ; the error names the first difference.
pub(super) fn compare(ours: &[(String, String)], theirs: &[(String, String)]) -> Result<(), ServerError> {
    let of = |all: &[(String, String)], key: &str| {
        all.iter().find(|(other, _)| other == key).map(|(_, value)| value.clone())
    };
    let keys = ours.iter().chain(theirs).map(|(key, _)| key);
    for key in keys {
        let (mine, others) = (of(ours, key), of(theirs, key));
        if mine != others {
            let text = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
            let why = format!(
                "--{key} is {} here, but the other processes of this run began with {}: start all of them with the \
                 same settings and the same version; later changes by the owner reach them anyway",
                text(mine),
                text(others)
            );
            return Err(ServerError::Config { why });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_setting_is_named() {
        let config = ServeConfig::default();
        let ours = agreed(&config);
        assert_eq!(ours.len(), CHANGEABLE.len() + ALSO_AGREED.len(), "each of them is a setting: {ours:?}");
        assert!(compare(&ours, &ours).is_ok());
        let other = ServeConfig { cohort_max: 7, ..config };
        let error = compare(&ours, &agreed(&other)).unwrap_err().to_string();
        assert!(error.contains("--cohort-max is 256 here") && error.contains("began with 7"), "{error}");
        let error = compare(&ours, &ours[1..]).unwrap_err().to_string();
        assert!(error.contains(&ours[0].0) && error.contains("unknown"), "{error}");
    }
}
