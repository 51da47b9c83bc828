//! The verbs `status`, `history`, `learners` and `events`: the state of a run for a terminal, from its syncer or from
//! its folder. Each returns the text to print.

mod events;
mod fetch;
mod folder;
mod model;
mod sheet;
mod show;
mod text;

use archipelago_core::wire::http as path;
use serde_json::Value;

use crate::clock::unix_ms;
use crate::config::{EventsArgs, PlaceArgs, TableArgs};
use crate::errors::ServerError;
use crate::status::{LogQuery, PAGE_MAX, log_of};
use folder::Folder;

pub(crate) use fetch::{Site, get, get_as, order_to};
pub(crate) use text::{Side, UNKNOWN, count, csv, nats, participation, plain, table};

/// Maximum number of pages of learners to request.
const PAGES_MAX: usize = 1_000;

/// Returns the status of a run.
///
/// # Errors
/// - `NoSyncer`: no syncer answers.
/// - `NoRun`, `NoSnapshot`, `Disk`, `DirCorrupt`, `Internal`: the folder has no run, or cannot be read.
pub fn status(args: &TableArgs) -> Result<String, ServerError> {
    let status = match &args.place.dir {
        Some(dir) => Folder::open(dir)?.status()?,
        None => get(site(&args.place), path::STATUS)?,
    };
    match (args.json, args.csv) {
        (true, _) => Ok(status.to_string()),
        (_, true) => Ok(sheet::status(&status)),
        _ => shown(&args.place, show::status(&status)),
    }
}

/// Returns the history of a run.
///
/// # Errors
/// As [`status`].
pub fn history(args: &TableArgs) -> Result<String, ServerError> {
    let series: Value = match &args.place.dir {
        Some(dir) => as_json(&Folder::open(dir)?.series()?),
        None => get(site(&args.place), path::SERIES)?,
    };
    match (args.json, args.csv) {
        (true, _) => Ok(series.to_string()),
        (_, true) => shown(&args.place, show::history_csv(&series)),
        _ => shown(&args.place, show::history(&series)),
    }
}

/// Returns all learners that ever took part in a run, with their contributions.
///
/// # Errors
/// As [`status`].
pub fn learners(args: &TableArgs) -> Result<String, ServerError> {
    let pages: Vec<Value> = match &args.place.dir {
        Some(dir) => Folder::open(dir)?.learners()?.iter().map(as_json).collect(),
        None => asked(site(&args.place))?,
    };
    let mut learners = Vec::new();
    for page in pages {
        learners.extend(page["learners"].as_array().cloned().unwrap_or_default());
    }
    match (args.json, args.csv) {
        (true, _) => Ok(lines(&learners)),
        (_, true) => shown(&args.place, show::learners_csv(&learners)),
        _ => shown(&args.place, show::learners(&learners)),
    }
}

/// Returns the log of a run, newest first.
///
/// # Errors
/// As [`status`].
pub fn events(args: &EventsArgs) -> Result<String, ServerError> {
    let query = LogQuery { name: args.name.clone(), limit: args.limit.into() };
    let log: Value = match &args.place.dir {
        Some(dir) => {
            let entries = Folder::open(dir)?.log()?;
            as_json(&log_of(entries.iter().rev(), unix_ms(), &query, false))
        }
        None => {
            let name: String = query.name.bytes().map(|byte| format!("%{byte:02x}")).collect();
            get(site(&args.place), &format!("{}?limit={}&name={name}", path::LOG, query.limit))?
        }
    };
    let entries = || log["entries"].as_array().cloned().unwrap_or_default();
    match (args.json, args.csv) {
        (true, _) => Ok(lines(&entries())),
        (_, true) => Ok(sheet::events(&entries())),
        _ => shown(&args.place, events::table_of(&log)),
    }
}

/// Returns the address of the syncer to ask.
fn site(place: &PlaceArgs) -> Site<'_> {
    Site { url: &place.url, ca: place.ca.as_deref() }
}

/// Requests all pages of learners.
fn asked(at: Site<'_>) -> Result<Vec<Value>, ServerError> {
    let mut pages = Vec::new();
    for number in 0..PAGES_MAX {
        let offset = number * PAGE_MAX;
        let page: Value = get(at, &format!("{}?offset={offset}&limit={PAGE_MAX}", path::LEARNERS))?;
        let is_last = page["total"].as_u64().is_none_or(|total| total <= (offset + PAGE_MAX) as u64);
        pages.push(page);
        if is_last {
            break;
        }
    }
    Ok(pages)
}

fn as_json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("plain data")
}

fn lines(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns the text to print, or an error if the answer lacks a field that a syncer of this version sends.
fn shown(place: &PlaceArgs, text: Result<String, serde_json::Error>) -> Result<String, ServerError> {
    text.map_err(|error| ServerError::NoSyncer {
        url: place.url.clone(),
        why: format!("the answer is of another version ({error})"),
    })
}
