//! Settings that may change after the start of a run.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use archipelago_cli::{OuterArgs, RoundArgs, from_toml, keys, tokens, with_key};
use archipelago_core::diloco::MergeRule;
use serde::Serialize;
use serde_json::Value;

use super::ServeConfig;
use super::stored::values;

/// Settings that may change while a run is served. All others define the run, or are read only at a start.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LiveSettings {
    /// K, the smallest number of updates in a merge (fewer if fewer learners are alive)
    #[arg(long, value_name = "COUNT", default_value = "1", help_heading = "Exchange")]
    pub min_quorum: NonZeroU32,
    /// Collection and merge of updates by the syncer.
    #[command(flatten)]
    #[serde(flatten)]
    pub rounds: RoundArgs,
    /// Maximum number of learners in one round; if more are connected, a rotating sample, which slows training
    #[arg(long, value_name = "COUNT", default_value_t = 256, help_heading = "Learners")]
    pub cohort_max: u32,
    /// Maximum number of learners at once
    #[arg(long, value_name = "COUNT", default_value_t = 2_048, help_heading = "Learners")]
    pub learners_max: u32,
    /// Finish the run at this many merged tokens (e.g. 10M, 1.5B); 0 means never
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = tokens::<u64>, help_heading = "Training")]
    pub stop_at_tokens: u64,
}

/// Settings that may change only at a start. All processes of a run on several machines must agree on them and on the
/// live ones, because merges, admission and pages depend on them.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AgreedSettings {
    /// Outer step of a merge.
    #[command(flatten)]
    #[serde(flatten)]
    pub outer: OuterArgs,
    /// Live learners needed before the first round
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Learners")]
    pub learners_start: u32,
    /// Hide the names and devices of learners: pages show numbers instead, and no board of names
    #[arg(long, help_heading = "Server")]
    pub hide_names: bool,
}

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

/// Returns the keys of the settings in `group` that have a value, with their values as text.
pub fn words(group: &impl Serialize) -> Vec<(String, String)> {
    let text = |value| match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        value => Some(value.to_string()),
    };
    values(group).into_iter().filter_map(|(key, value)| Some((key, text(value)?))).collect()
}

/// Returns `config` with the changes `wanted`.
///
/// # Errors
/// A sentence: a setting is unknown, fixed or invalid.
pub fn changed(config: &ServeConfig, wanted: &BTreeMap<String, Value>) -> Result<Changed, String> {
    let changeable = keys::<LiveSettings>();
    let mut changes = Vec::new();
    for (key, value) in wanted {
        if !changeable.contains(key) {
            let all = changeable.join(", ");
            return Err(format!(
                "{key} is fixed for this run: settings that may change during a run are {all}"
            ));
        }
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(format!("{key} is neither a number nor a text")),
        };
        changes.push((key.clone(), value));
    }
    let before = words(&config.live);
    let toml =
        before.iter().chain(&changes).fold(String::new(), |toml, (key, value)| with_key(&toml, key, value));
    let live: LiveSettings = from_toml(&toml, &[])?;
    let is_flat = |live: &LiveSettings| live.rounds.merge == MergeRule::Flat;
    if is_flat(&config.live) != is_flat(&live) {
        let why =
            "merge can change to or from flat only at a start of the syncer, because the outer step differs";
        return Err(why.to_owned());
    }
    Ok(Changed { config: ServeConfig { live, ..config.clone() }, words: changes })
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
        let LiveSettings { rounds, stop_at_tokens, .. } = config.live;
        assert_eq!((rounds.merge.name(), stop_at_tokens, words.len()), ("mean", 9, 2));
    }

    /// Goal: a change keeps the values of all other settings, to the last digit.
    #[test]
    fn every_live_setting_is_read_as_it_is_shown() {
        let mut config = ServeConfig::default();
        config.live.rounds.grace_ratio = 0.1 + 0.2;
        config.live.stop_at_tokens = u64::MAX;
        let shown = words(&config.live);
        assert_eq!(shown.len(), keys::<LiveSettings>().len(), "{shown:?}");
        for wanted in [given(&[]), given(&shown)] {
            assert_eq!(words(&changed(&config, &wanted).unwrap().config.live), shown);
        }
    }
}
