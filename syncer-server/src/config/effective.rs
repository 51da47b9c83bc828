//! Settings in the log of a start.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ServeConfig;

impl ServeConfig {
    /// Logs the checked settings of a start: those that differ from their defaults, and with `RUST_LOG=debug` all of
    /// them. Secrets are left out.
    pub(crate) fn log_effective(&self) {
        tracing::info!("settings other than the defaults: {}", self.differing());
        tracing::debug!(settings = %serde_json::to_string(self).expect("plain data"), "effective settings");
    }

    /// Returns the settings that differ from their defaults, as `key=value` words in alphabetical order.
    fn differing(&self) -> String {
        let (ours, defaults) = (values(self), values(&Self::default()));
        let differing = ours.iter().filter(|(key, value)| defaults.get(*key) != Some(*value));
        let words: Vec<String> = differing.map(|(key, value)| format!("{key}={}", word(value))).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(" ") }
    }
}

fn values(config: &ServeConfig) -> BTreeMap<String, Value> {
    let json = serde_json::to_value(config).expect("plain data");
    serde_json::from_value(json).expect("settings have names")
}

/// Returns a value as a user would type it; a text with spaces keeps its quotes.
fn word(value: &Value) -> String {
    match value {
        Value::String(text)
            if !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control()) =>
        {
            text.clone()
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_shown_and_no_secret() {
        assert_eq!(ServeConfig::default().differing(), "none");
        let config = ServeConfig {
            preset: "tiny".into(),
            licence: Some("two words".into()),
            stop_at_tokens: 9,
            no_eval: true,
            invite: Some("open-sesame".into()),
            admin_token: Some("a secret of the owner".into()),
            ..ServeConfig::default()
        };
        let expected = "licence=\"two words\" no-eval=true preset=tiny stop-at-tokens=9";
        assert_eq!(config.differing(), expected);
    }
}
