//! The log of a run as a table.

use serde::Deserialize;
use serde_json::Value;

use super::text::{Side, ago, plain, table};

/// The JSON of `/v1/log`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Log {
    now_ms: u64,
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    at_ms: u64,
    text: String,
}

/// Renders the log as a table, newest first.
pub fn table_of(json: &Value) -> Result<String, serde_json::Error> {
    let log = Log::deserialize(json)?;
    let age_s = |entry: &Entry| log.now_ms.saturating_sub(entry.at_ms) as f64 / 1e3;
    let rows = log.entries.iter().map(|entry| vec![ago(age_s(entry)), plain(&entry.text)]);
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return Ok("Nothing of that kind has happened.".into());
    }
    Ok(table(&[("when", Side::Right), ("what happened", Side::Left)], &rows))
}
