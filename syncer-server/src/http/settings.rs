//! Routes for the run's settings, which everyone may read and the owner may change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_cli::{Bytes as Size, keys, with_key};
use archipelago_core::cluster::AdminCommand;
use archipelago_core::diloco::syncer::SyncerConfig;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

use super::App;
use super::admin::{check_owner, order_response, publish, read};
use super::work_limit::WorkError;
use crate::actor::{ActorHandle, OrderOutcome};
use crate::cluster_node::AdminBroadcast;
use crate::config::{
    Changed, LiveSettings, SETTINGS_FILE, ServeConfig, changed, given, is_among, is_path, stored_flags,
    syncer_config,
};
use crate::errors::ServerError;
use crate::status::LogEvent;
use crate::store::{is_there, write_private};

/// `/v1/settings`: the settings of the run, in the order of the command's help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SettingsView {
    /// All settings except secrets and file names.
    pub settings: Vec<SettingView>,
}

/// One setting of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SettingView {
    /// Its flag without the leading hyphens.
    pub key: String,
    /// Its value as text; `None` if it follows from another setting.
    pub value: Option<String>,
    /// Its meaning, as a sentence.
    pub about: String,
    /// Its heading in the command's help.
    pub group: String,
    /// True if the owner may change it while the run goes on.
    pub changeable: bool,
    /// Its possible values, if there are few.
    pub choices: Vec<String>,
}

/// The settings of a served run.
#[derive(Debug)]
pub struct Settings(Mutex<ServeConfig>);

impl Settings {
    /// Creates the settings of a run that was started with `config`.
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

/// `/v1/admin/settings`: changes settings of the run. The changes also apply after a restart.
pub async fn change(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refused) = check_owner(&app, &headers) {
        return refused;
    }
    let bad = |why: String| (StatusCode::BAD_REQUEST, why + "\n").into_response();
    let wanted = match read::<BTreeMap<String, Value>>(&body, "{\"min-quorum\": 2}") {
        Ok(wanted) => wanted,
        Err(why) => return bad(why),
    };
    if let Some(admin_broadcast) = &app.admin_broadcast {
        return order(&app, admin_broadcast, &wanted).await;
    }
    // The owner may hang up. The change is completed nevertheless, so that file, run and shown settings agree.
    let changed = tokio::spawn(async move { change_all(&app, &wanted).await });
    changed.await.unwrap_or_else(|_| WorkError::Failed.into_response())
}

/// Applies the changes in `wanted` to a run that one process serves, and returns the response.
async fn change_all(app: &App, wanted: &BTreeMap<String, Value>) -> Response {
    // The lock is held to the end, so changes are made one at a time.
    let mut held = app.settings.0.lock().await;
    let Change { config, core, words, changes } = match validate(&held, wanted) {
        Ok(change) => change,
        Err(why) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
    };
    if changes.is_empty() {
        return (StatusCode::ACCEPTED, NOTHING).into_response();
    }
    if let Some(refused) = check_stop(app, &held, &config).await {
        return refused;
    }
    // A crash must not undo a confirmed order.
    let file = config.server.dir.join(SETTINGS_FILE);
    match app.orders.carry_out(move || keep(&file, &words)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(error) => return error.into_response(),
    }
    let outcome = app.context.actor.retune(core, changes).await;
    if outcome == Some(OrderOutcome::Taken) {
        *held = config;
    }
    order_response(outcome, None, "the settings now apply\n")
}

/// Publishes the changes in `wanted` to all processes that serve the run, and returns the response.
async fn order(app: &App, admin_broadcast: &AdminBroadcast, wanted: &BTreeMap<String, Value>) -> Response {
    let weighed = validate(&*app.settings.0.lock().await, wanted);
    match weighed {
        Err(why) => (StatusCode::BAD_REQUEST, why + "\n").into_response(),
        Ok(change) if change.changes.is_empty() => (StatusCode::ACCEPTED, NOTHING).into_response(),
        Ok(change) => {
            if let Some(refused) = check_stop(app, &*app.settings.0.lock().await, &change.config).await {
                return refused;
            }
            publish(
                app,
                admin_broadcast,
                None,
                AdminCommand::Settings(change.words),
                "the settings now apply\n",
            )
            .await
        }
    }
}

/// Returns a refusal if a change from `held` to `wanted` sets a token limit that the run has already passed. It would
/// end the run immediately, which cannot be undone; the order `finish` exists for this.
async fn check_stop(app: &App, held: &ServeConfig, wanted: &ServeConfig) -> Option<Response> {
    if held.live.stop_at_tokens == wanted.live.stop_at_tokens {
        return None;
    }
    let outcome = app.context.actor.may_stop_at(wanted.live.stop_at_tokens).await;
    (outcome != Some(OrderOutcome::Taken)).then(|| order_response(outcome, None, ""))
}

/// Response to an order that changes nothing.
const NOTHING: &str = "nothing changed: the settings already had these values\n";

/// A valid change of the settings.
struct Change {
    config: ServeConfig,
    core: SyncerConfig,
    /// Changed keys and their values, in the form that the owner would write.
    words: Vec<(String, String)>,
    /// Log events of the change.
    changes: Vec<LogEvent>,
}

/// Checks the changes in `wanted` against the settings in `held`, and returns the result.
///
/// # Errors
/// A sentence: a setting is unknown or fixed, or has an invalid value.
fn validate(held: &ServeConfig, wanted: &BTreeMap<String, Value>) -> Result<Change, String> {
    let Changed { config, words } = changed(held, wanted)?;
    let core = syncer_config(&config).map_err(|error| error.to_string())?;
    let (before, after) = (view(held), view(&config));
    let pairs = before.settings.into_iter().zip(after.settings).filter(|(before, after)| before != after);
    let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
    let changes = pairs.map(|(before, after)| LogEvent::Retuned {
        setting: after.key,
        from: text(before.value),
        to: text(after.value),
    });
    let changes = changes.collect();
    Ok(Change { config, core, words, changes })
}

impl Settings {
    /// Applies an order of the owner, which this process or another one received.
    ///
    /// # Errors
    /// A sentence: the process that received the order accepts settings or values that this program refuses.
    pub(crate) async fn apply(&self, actor: &ActorHandle, words: &[(String, String)]) -> Result<(), String> {
        let mut held = self.0.lock().await;
        let Change { config, core, changes, .. } = validate(&held, &given(words))?;
        actor.retune(core, changes).await;
        *held = config;
        Ok(())
    }
}

/// Stores the settings `words` in `file`, next to those already in it.
fn keep(file: &Path, words: &[(String, String)]) -> Result<(), ServerError> {
    let before = match is_there(file)? {
        true => std::fs::read_to_string(file).map_err(crate::store::disk("read", file))?,
        false => String::new(),
    };
    let text = words.iter().fold(before, |text, (key, value)| with_key(&text, key, value));
    write_private(file, &text)
}

/// Returns the settings in `config` that everyone may see.
fn view(config: &ServeConfig) -> SettingsView {
    let values = serde_json::to_value(config).expect("plain data");
    let changeable = keys::<LiveSettings>();
    let shown = stored_flags().filter(|flag| !is_path(flag)).filter_map(|flag| {
        let key = flag.get_long()?;
        // Secrets have no value here.
        let value = match values.get(key)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            // Only byte counts are easier to read with a unit.
            Value::Number(bytes) if is_size(&flag) => bytes.as_u64().map(|bytes| Size(bytes).to_string()),
            value => Some(value.to_string()),
        };
        Some(SettingView {
            key: key.to_owned(),
            value,
            about: flag.get_help().map(ToString::to_string).unwrap_or_default(),
            group: flag.get_help_heading().unwrap_or("Run").to_owned(),
            changeable: is_among(&flag, &changeable),
            choices: choices(&flag),
        })
    });
    SettingsView { settings: shown.collect() }
}

/// Returns true if `arg` is a number of bytes.
fn is_size(arg: &clap::Arg) -> bool {
    arg.get_value_names().into_iter().flatten().any(|name| ["BYTES", "SIZE"].contains(&name.as_str()))
}

/// Returns the possible values of `arg`, if they are listed. For a switch it returns none: on and off are obvious.
fn choices(arg: &clap::Arg) -> Vec<String> {
    let all = arg.get_possible_values();
    all.iter().filter(|_| arg.get_action().takes_values()).map(|one| one.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_run_has_is_shown_and_no_secret() {
        let config = ServeConfig::default().with(|it| {
            it.start.admin_token = Some("a secret of the owner".into());
            it.invite = Some("a-secret".into());
        });
        let view = view(&config);
        let text = serde_json::to_string(&view).unwrap();
        assert!(!text.contains("secret") && !text.contains("runs/default"), "{text}");
        let of = |key: &str| view.settings.iter().find(|one| one.key == key).unwrap();
        assert_eq!((of("preset").value.as_deref(), of("preset").changeable), (Some("small"), false));
        assert_eq!((of("min-quorum").value.as_deref(), of("min-quorum").changeable), (Some("1"), true));
        assert_eq!(of("merge").choices, ["radial", "radial-all", "flat", "mean"]);
        assert_eq!((of("lr").value.as_deref(), &*of("lr").group), (None, "Training"));
        assert_eq!(of("keep").value.as_deref(), Some("1.0GiB"));
        for key in keys::<LiveSettings>() {
            assert!(of(&key).changeable && !of(&key).about.is_empty(), "{key}");
        }
    }
}
