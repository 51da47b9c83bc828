//! The run's settings: shown to all, changed by the owner.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_cli::{Bytes as Size, from_toml, with_key};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

use super::App;
use super::admin::{check_owner, read, said};
use crate::actor::Obeyed;
use crate::config::{PATHS, SETTINGS_FILE, ServeConfig, is_kept, syncer_config};
use crate::errors::ServerError;
use crate::status::Happening;
use crate::store::{is_there, write_private};

/// What may change while a run goes on. All else is part of what the run is, was agreed upon with every learner, or is
/// read once at the start.
const CHANGEABLE: [&str; 7] = [
    "min-quorum",
    "grace-ratio",
    "rounds-in-flight",
    "merge",
    "cohort-max",
    "learners-max",
    "stop-at-tokens",
];

/// `/v1/settings`: the settings of the run, in the order of the help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SettingsView {
    /// All but secrets and what names files.
    pub settings: Vec<SettingView>,
}

/// One setting of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SettingView {
    /// Its flag, without the hyphens before it.
    pub key: String,
    /// What it is, as it would be given; `None` where that follows from another one.
    pub value: Option<String>,
    /// What it means, as a sentence.
    pub about: String,
    /// What it belongs to.
    pub group: String,
    /// Whether the owner may change it while the run goes on.
    pub changeable: bool,
    /// What it may be, where that is one of a few.
    pub choices: Vec<String>,
}

/// The settings of a run that is served.
#[derive(Debug)]
pub struct Settings(Mutex<ServeConfig>);

impl Settings {
    /// For a run that was started with `config`.
    #[must_use]
    pub fn new(config: &ServeConfig) -> Self {
        Self(Mutex::new(config.clone()))
    }
}

/// `/v1/settings`.
pub async fn settings(State(app): State<Arc<App>>) -> Response {
    let body = serde_json::to_vec(&view(&*app.settings.0.lock().await)).expect("plain data");
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

/// `/v1/admin/settings`: these hold from now on, and after the next start.
pub async fn change(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refused) = check_owner(&app, &headers) {
        return refused;
    }
    let bad = |why: String| (StatusCode::BAD_REQUEST, why + "\n").into_response();
    let wanted = match read::<BTreeMap<String, Value>>(&body, "{\"min-quorum\": 2}") {
        Ok(wanted) => wanted,
        Err(why) => return bad(why),
    };
    // One change after the other, so that the file, the run and what is shown agree.
    let mut held = app.settings.0.lock().await;
    let Changed { config, words } = match changed(&held, &wanted) {
        Ok(changed) => changed,
        Err(why) => return bad(why),
    };
    let core = match syncer_config(&config) {
        Ok(core) => core,
        Err(error) => return bad(error.to_string()),
    };
    let (before, after) = (view(&held), view(&config));
    let pairs = before.settings.into_iter().zip(after.settings).filter(|(before, after)| before != after);
    let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
    let changes = pairs.map(|(before, after)| Happening::Retuned {
        setting: after.key,
        from: text(before.value),
        to: text(after.value),
    });
    let changes: Vec<Happening> = changes.collect();
    if changes.is_empty() {
        return (StatusCode::ACCEPTED, "nothing changed: it is so already\n").into_response();
    }
    // A crash must not undo the owner's word.
    let file = config.dir.join(SETTINGS_FILE);
    let kept = tokio::task::spawn_blocking(move || keep(&file, &words)).await;
    let failed = match kept {
        Ok(kept) => kept.err().map(|error| error.to_string()),
        Err(_) => Some("a background task panicked".to_owned()),
    };
    if let Some(why) = failed {
        return (StatusCode::INTERNAL_SERVER_ERROR, why + "\n").into_response();
    }
    let obeyed = app.context.actor.retune(core, changes).await;
    if obeyed == Some(Obeyed::Taken) {
        *held = config;
    }
    said(obeyed, None, "the settings hold from now on\n")
}

struct Changed {
    config: ServeConfig,
    /// Keys and values, as they would be given.
    words: Vec<(String, String)>,
}

/// `config` with what is `wanted`.
///
/// # Errors
/// A sentence: a setting is unknown or fixed, or cannot be so.
fn changed(config: &ServeConfig, wanted: &BTreeMap<String, Value>) -> Result<Changed, String> {
    let mut words = Vec::new();
    let mut toml = String::new();
    for (key, value) in wanted {
        if !CHANGEABLE.contains(&&**key) {
            let all = CHANGEABLE.join(", ");
            return Err(format!("{key} is fixed for this run: what may change while it goes on is {all}"));
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

/// Has `file` say `words`.
fn keep(file: &Path, words: &[(String, String)]) -> Result<(), ServerError> {
    let before = match is_there(file)? {
        true => std::fs::read_to_string(file).map_err(crate::store::disk("read", file))?,
        false => String::new(),
    };
    let text = words.iter().fold(before, |text, (key, value)| with_key(&text, key, value));
    write_private(file, &text)
}

/// What is shown of `config`.
fn view(config: &ServeConfig) -> SettingsView {
    let values = serde_json::to_value(config).expect("plain data");
    let command = ServeConfig::augment_args(clap::Command::new("serve"));
    let shown = command.get_arguments().filter_map(|arg| {
        let key = arg.get_long()?;
        // Of secrets there is no value at all.
        let value = values.get(key)?;
        (is_kept(key) && !PATHS.contains(&key)).then(|| SettingView {
            key: key.to_owned(),
            value: match value {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                // The only numbers that are easier to read with a unit.
                Value::Number(bytes) if is_size(arg) => bytes.as_u64().map(|bytes| Size(bytes).to_string()),
                value => Some(value.to_string()),
            },
            about: arg.get_help().map(ToString::to_string).unwrap_or_default(),
            group: arg.get_help_heading().unwrap_or("Run").to_owned(),
            changeable: CHANGEABLE.contains(&key),
            choices: choices(arg),
        })
    });
    SettingsView { settings: shown.collect() }
}

/// Whether `arg` is a number of bytes.
fn is_size(arg: &clap::Arg) -> bool {
    arg.get_value_names().into_iter().flatten().any(|name| ["BYTES", "SIZE"].contains(&name.as_str()))
}

/// What `arg` may be, where that is one of a few; a switch is on or off, which nobody need be told.
fn choices(arg: &clap::Arg) -> Vec<String> {
    let all = arg.get_possible_values();
    all.iter().filter(|_| arg.get_action().takes_values()).map(|one| one.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_run_has_is_shown_and_no_secret() {
        let config = ServeConfig {
            admin_token: Some("a secret of the owner".into()),
            invite: Some("a-secret".into()),
            ..ServeConfig::default()
        };
        let view = view(&config);
        let text = serde_json::to_string(&view).unwrap();
        assert!(!text.contains("secret") && !text.contains("runs/default"), "{text}");
        let of = |key: &str| view.settings.iter().find(|one| one.key == key).unwrap();
        assert_eq!((of("preset").value.as_deref(), of("preset").changeable), (Some("small"), false));
        assert_eq!((of("min-quorum").value.as_deref(), of("min-quorum").changeable), (Some("1"), true));
        assert_eq!(of("merge").choices, ["radial", "mean"]);
        assert_eq!((of("lr").value.as_deref(), &*of("lr").group), (None, "Training"));
        assert_eq!(of("keep").value.as_deref(), Some("1.0GiB"));
        for key in CHANGEABLE {
            assert!(of(key).changeable && !of(key).about.is_empty(), "{key}");
        }
    }

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
        check(r#"{"merge": "median"}"#, "give one of radial, mean");
        check(r#"{"cohort-max": 0}"#, "cohort-max 0 is out of range");
        check(r#"{"learners-max": [1]}"#, "neither a number nor a text");
        let wanted = serde_json::from_str(r#"{"merge": "mean", "stop-at-tokens": 9}"#).unwrap();
        let Changed { config, words } = changed(&config, &wanted).unwrap();
        assert_eq!((config.method.merge.name(), config.stop_at_tokens, words.len()), ("mean", 9, 2));
    }
}
