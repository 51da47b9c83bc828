//! Settings that may change during a run.

use std::collections::BTreeMap;

use archipelago_cli::{from_toml, with_key};
use archipelago_core::diloco::MergeRule;
use serde_json::Value;

use super::ServeConfig;

/// Settings that may change during a run. All others define the run, are agreed upon with every learner, or are read
/// once at the start.
pub const CHANGEABLE: [&str; 7] = [
    "min-quorum",
    "grace-ratio",
    "rounds-in-flight",
    "merge",
    "cohort-max",
    "learners-max",
    "stop-at-tokens",
];

/// Changed settings.
pub struct Changed {
    /// All settings, with the changes.
    pub config: ServeConfig,
    /// Keys and values of the changes, as text.
    pub words: Vec<(String, String)>,
}

/// Returns the settings by key, in the form of an owner's request.
pub fn given(words: &[(String, String)]) -> BTreeMap<String, Value> {
    words.iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect()
}

/// Returns `config` with the changes `wanted`.
///
/// # Errors
/// A sentence: a setting is unknown, fixed or invalid.
pub fn changed(config: &ServeConfig, wanted: &BTreeMap<String, Value>) -> Result<Changed, String> {
    let mut words = Vec::new();
    let mut toml = String::new();
    for (key, value) in wanted {
        if !CHANGEABLE.contains(&&**key) {
            let all = CHANGEABLE.join(", ");
            return Err(format!(
                "{key} is fixed for this run: settings that may change during a run are {all}"
            ));
        }
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(format!("{key} is neither a number nor a text")),
        };
        toml = with_key(&toml, key, &value);
        words.push((key.clone(), value));
    }
    let given: ServeConfig = from_toml(&toml, &[])?;
    let mut config = config.clone();
    let is_given = |key: &str| wanted.contains_key(key);
    if is_given("min-quorum") {
        config.min_quorum = given.min_quorum;
    }
    if is_given("grace-ratio") {
        config.method.grace_ratio = given.method.grace_ratio;
    }
    if is_given("rounds-in-flight") {
        config.method.rounds_in_flight = given.method.rounds_in_flight;
    }
    if is_given("merge") {
        let is_flat = |config: &ServeConfig| config.method.merge == MergeRule::Flat;
        if is_flat(&config) != is_flat(&given) {
            let why = "merge can change to or from flat only at a start of the syncer, because the outer step differs";
            return Err(why.to_owned());
        }
        config.method.merge = given.method.merge;
    }
    if is_given("cohort-max") {
        config.cohort_max = given.cohort_max;
    }
    if is_given("learners-max") {
        config.learners_max = given.learners_max;
    }
    if is_given("stop-at-tokens") {
        config.stop_at_tokens = given.stop_at_tokens;
    }
    Ok(Changed { config, words })
}

#[cfg(test)]
mod tests {
    use super::super::syncer_config;
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let config = ServeConfig::default();
        let check = |json: &str, part: &str| {
            let wanted = serde_json::from_str(json).unwrap();
            let found = changed(&config, &wanted).and_then(|changed| {
                syncer_config(&changed.config).map(drop).map_err(|error| error.to_string())
            });
            assert!(found.as_ref().is_err_and(|why| why.contains(part)), "{json}: {found:?}");
        };
        check(r#"{"sync-every": 7}"#, "sync-every is fixed for this run");
        check(r#"{"no-such": 7}"#, "no-such is fixed for this run");
        check(r#"{"min-quorum": 0}"#, "--min-quorum");
        check(r#"{"grace-ratio": 1.5}"#, "grace-ratio 1.5 is out of range");
        check(r#"{"merge": "median"}"#, "give one of radial, radial-all, flat, mean");
        check(r#"{"merge": "flat"}"#, "only at a start");
        check(r#"{"cohort-max": 0}"#, "cohort-max 0 is out of range");
        check(r#"{"learners-max": [1]}"#, "neither a number nor a text");
        let wanted = serde_json::from_str(r#"{"merge": "mean", "stop-at-tokens": 9}"#).unwrap();
        let Changed { config, words } = changed(&config, &wanted).unwrap();
        assert_eq!((config.method.merge.name(), config.stop_at_tokens, words.len()), ("mean", 9, 2));
    }
}
