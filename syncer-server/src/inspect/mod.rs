//! The commands `status`, `history`, `learners` and `events`: the state of a run for a terminal, read from its syncer
//! or from its folder. Each function returns the text to print.
//!
//! | file | concept |
//! |---|---|
//! | `remote` | HTTP client of a running syncer, also for admin commands |
//! | `folder` | the same views from the folder of a run |
//! | `tables` | columns of the views |
//! | `text` | formats of numbers, aligned tables, comma-separated values |

mod folder;
mod remote;
mod tables;
mod text;

use archipelago_core::wire::http as path;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clock::unix_ms;
use crate::config::{EventsArgs, PlaceArgs, TableArgs};
use crate::errors::ServerError;
use crate::status::{LogQuery, PAGE_MAX, log_of};
use folder::Folder;

pub(crate) use remote::Remote;
pub(crate) use text::{Column, UNKNOWN, count, csv, duration, nats, number, participation, table, text};

/// Maximum number of pages of learners to request.
const PAGES_MAX: usize = 1_000;

/// Returns the status of a run.
///
/// # Errors
/// - `NoSyncer`: no syncer answers.
/// - `NoRun`, `NoSnapshot`, `Disk`, `DirCorrupt`, `Internal`: the folder has no run, or cannot be read.
pub fn status(args: &TableArgs) -> Result<String, ServerError> {
    let place = &args.place;
    let status = match &place.dir {
        Some(dir) => as_json(&Folder::open(dir)?.status()?),
        None => remote(place).get(path::STATUS)?,
    };
    match (args.json, args.csv) {
        (true, _) => Ok(status.to_string()),
        (_, true) => Ok(csv(&tables::STATUS_CSV, &[status])),
        _ => {
            let server = place.dir.is_none().then(|| typed(place, &status)).transpose()?;
            Ok(tables::status(&typed(place, &status)?, server.as_ref()))
        }
    }
}

/// Returns the history of a run.
///
/// # Errors
/// Those of [`status`].
pub fn history(args: &TableArgs) -> Result<String, ServerError> {
    let series: Value = match &args.place.dir {
        Some(dir) => as_json(&Folder::open(dir)?.series()?),
        None => remote(&args.place).get(path::SERIES)?,
    };
    if args.json {
        return Ok(series.to_string());
    }
    let series = typed(&args.place, &series)?;
    Ok(if args.csv { tables::history_csv(&series) } else { tables::history(&series) })
}

/// Returns all learners that ever took part in a run, with their contributions.
///
/// # Errors
/// Those of [`status`].
pub fn learners(args: &TableArgs) -> Result<String, ServerError> {
    let learners: Vec<Value> = match &args.place.dir {
        Some(dir) => Folder::open(dir)?.learners()?.iter().map(as_json).collect(),
        None => all_learners(remote(&args.place))?,
    };
    if args.json {
        return Ok(lines(&learners));
    }
    let learners =
        learners.iter().map(|learner| typed(&args.place, learner)).collect::<Result<Vec<_>, _>>()?;
    Ok(match (args.csv, &*learners) {
        (true, learners) => csv(&tables::LEARNERS_CSV, learners),
        (false, []) => "No learner has taken part yet.".into(),
        (false, learners) => table(&tables::LEARNERS, learners),
    })
}

/// Returns the log of a run, newest event first.
///
/// # Errors
/// Those of [`status`].
pub fn events(args: &EventsArgs) -> Result<String, ServerError> {
    let query = LogQuery { name: args.name.clone(), limit: args.limit.into() };
    let log: Value = match &args.place.dir {
        Some(dir) => {
            let entries = Folder::open(dir)?.log()?;
            as_json(&log_of(entries.iter().rev(), unix_ms(), &query, false))
        }
        None => {
            let name: String = query.name.bytes().map(|byte| format!("%{byte:02x}")).collect();
            remote(&args.place).get(&format!("{}?limit={}&name={name}", path::LOG, query.limit))?
        }
    };
    let entries = log["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    match (args.json, args.csv) {
        (true, _) => Ok(lines(entries)),
        (_, true) => Ok(csv(&tables::EVENTS_CSV, entries)),
        _ => Ok(tables::events(typed(&args.place, &log)?)),
    }
}

/// Returns the client for the syncer at `place`.
fn remote(place: &PlaceArgs) -> Remote<'_> {
    Remote { url: &place.url, ca: place.ca.as_deref(), token: None }
}

/// Requests all pages of learners.
fn all_learners(syncer: Remote<'_>) -> Result<Vec<Value>, ServerError> {
    let mut learners = Vec::new();
    for offset in (0..PAGES_MAX).map(|number| number * PAGE_MAX) {
        let page: Value = syncer.get(&format!("{}?offset={offset}&limit={PAGE_MAX}", path::LEARNERS))?;
        learners.extend(page["learners"].as_array().cloned().unwrap_or_default());
        if page["total"].as_u64().is_none_or(|total| total <= (offset + PAGE_MAX) as u64) {
            break;
        }
    }
    Ok(learners)
}

/// Returns `value` as JSON. The conversion goes through text, so that 32-bit floats keep their short decimal form.
pub(crate) fn as_json(value: &impl Serialize) -> Value {
    serde_json::from_str(&serde_json::to_string(value).expect("plain data")).expect("valid JSON")
}

fn lines(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
}

/// Converts an answer of a syncer to its type.
///
/// # Errors
/// `NoSyncer`: the answer lacks a field that syncers of this version send.
fn typed<T: DeserializeOwned>(place: &PlaceArgs, value: &Value) -> Result<T, ServerError> {
    T::deserialize(value).map_err(|error| ServerError::NoSyncer {
        url: place.url.clone(),
        why: format!("the answer is of another version ({error})"),
    })
}
