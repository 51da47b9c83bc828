//! The answers of the routes as comma-separated values for programs: heads, and one row per item.

use serde_json::Value;

use super::text::{csv, plain};

/// A column: its head, and the JSON pointer of its value.
type Column = (&'static str, &'static str);

/// Columns of a status. It takes one row, so that statuses of different times form a table.
const STATUS: [Column; 19] = [
    ("run", "/run"),
    ("time (s)", "/runS"),
    ("learners in rounds", "/live"),
    ("learners connected", "/connected"),
    ("learners ever seen", "/learnersTotal"),
    ("tokens trained", "/tokensTrained"),
    ("tokens merged", "/tokensMerged"),
    ("participation (0 to 1)", "/participation"),
    ("rounds merged", "/rounds"),
    ("speed (tokens per s)", "/tokensPerS"),
    ("training loss (nats per token)", "/trainLoss"),
    ("first held-out loss (nats per token)", "/valLossFirst"),
    ("held-out loss (nats per token)", "/valLossLast"),
    ("last merge (s ago)", "/lastMergeAgeS"),
    ("paused", "/paused"),
    ("finished", "/finished"),
    ("fault of the disk", "/disk/tapeFault"),
    ("fault of the snapshot", "/disk/snapshotFault"),
    ("fault of the services", "/disk/servicesFault"),
];

const EVENTS: [Column; 5] = [
    ("time (ms since 1970)", "/atMs"),
    ("kind", "/kind"),
    ("learner", "/learner"),
    ("name", "/name"),
    ("what happened", "/text"),
];

/// Renders the status of a run.
pub fn status(json: &Value) -> String {
    rows(&STATUS, std::slice::from_ref(json))
}

/// Renders log lines, newest first.
pub fn events(entries: &[Value]) -> String {
    rows(&EVENTS, entries)
}

fn rows(columns: &[Column], things: &[Value]) -> String {
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let row = |thing: &Value| columns.iter().map(|(_, place)| cell(thing.pointer(place))).collect();
    csv(&heads, &things.iter().map(row).collect::<Vec<_>>()).trim_end().to_owned()
}

/// Formats a value as a cell, which is empty if the value is unknown.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => plain(text),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nobody_knows_is_empty() {
        let text =
            status(&json!({"run": "ab", "live": 2, "paused": false, "disk": {"tapeFault": "full, alas"}}));
        let (heads, row) = text.split_once("\r\n").unwrap();
        assert_eq!(heads.split(',').count(), STATUS.len());
        assert_eq!(row, "ab,,2,,,,,,,,,,,,false,,\"full, alas\",,");
        assert_eq!(events(&[]).lines().count(), 1);
    }
}
