//! The runs of a server from a terminal: listed, and ordered about.

use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use archipelago_core::wire::http as path;
use axum::http::Method;
use serde_json::json;

use super::view::{RunFigures, RunView, RunsView};
use crate::config::{OrderArgs, RunName, RunOrder, RunsArgs};
use crate::errors::ServerError;
use crate::glance::{Side, Site, UNKNOWN, count, csv, get, nats, order_to, percent, plain, table};
use crate::store::is_there;

/// The runs of a server, as `args` ask for them.
///
/// # Errors
/// `NoSyncer`: nobody answers there.
pub fn runs(args: &RunsArgs) -> Result<String, ServerError> {
    let view: RunsView = get(Site { url: &args.url, ca: args.ca.as_deref() }, path::RUNS)?;
    if args.json {
        return Ok(serde_json::to_string(&view).expect("plain data"));
    }
    if args.csv {
        let rows: Vec<Vec<String>> = view.runs.iter().map(cells).collect();
        return Ok(csv(&CSV_HEADS, &rows).trim_end().to_owned());
    }
    let rows: Vec<Vec<String>> = view.runs.iter().map(row).collect();
    let reasons = view.runs.iter().filter_map(|run| Some((&run.name, run.why.as_ref()?)));
    let reasons: String = reasons.map(|(name, why)| format!("\n{}: {}", plain(name), plain(why))).collect();
    Ok(table(&HEADS, &rows) + &reasons)
}

/// The columns of the list.
const HEADS: [(&str, Side); 7] = [
    ("name", Side::Left),
    ("state", Side::Left),
    ("model", Side::Left),
    ("learners", Side::Right),
    ("tokens merged", Side::Right),
    ("participation", Side::Right),
    ("held-out loss", Side::Right),
];

fn row(run: &RunView) -> Vec<String> {
    let name = if run.name.is_empty() { UNKNOWN.to_owned() } else { plain(&run.name) };
    let mut row = vec![name, run.state.words().to_owned()];
    match &run.figures {
        None => row.resize(HEADS.len(), UNKNOWN.to_owned()),
        Some(figures) => row.extend([
            plain(&figures.model),
            count(figures.live.into()),
            count(figures.tokens_merged),
            percent(figures.participation),
            nats(figures.val_loss_last.map(f64::from)),
        ]),
    }
    row
}

/// The heads of the list for programs.
const CSV_HEADS: [&str; 8] = [
    "name",
    "state",
    "model",
    "learners in rounds",
    "tokens merged",
    "participation (0 to 1)",
    "held-out loss (nats per token)",
    "why it failed",
];

/// A run for programs; what nobody knows is empty.
fn cells(run: &RunView) -> Vec<String> {
    let figures = run.figures.as_ref();
    let figure = |of: &dyn Fn(&RunFigures) -> String| figures.map(of).unwrap_or_default();
    vec![
        plain(&run.name),
        run.state.words().to_owned(),
        figure(&|figures| plain(&figures.model)),
        figure(&|figures| figures.live.to_string()),
        figure(&|figures| figures.tokens_merged.to_string()),
        figure(&|figures| figures.participation.to_string()),
        figure(&|figures| figures.val_loss_last.map(|loss| loss.to_string()).unwrap_or_default()),
        run.why.as_deref().map(plain).unwrap_or_default(),
    ]
}

/// Gives an order to the server at `args.url`; what it answers.
///
/// # Errors
/// - `Disk`: the token or the settings cannot be read.
/// - `Config`: the order makes no sense, was not meant, or the server refuses it.
/// - `NoSyncer`: nobody answers there.
pub fn order(args: &OrderArgs) -> Result<String, ServerError> {
    let OrderArgs { order, name, settings, url, ca, runs, token, yes, flags } = args;
    let given = settings.as_ref().map(|_| "settings").or(flags.first());
    if let Some(flag) = given.filter(|_| *order != RunOrder::Create) {
        let why = format!("--{flag} is for create alone: a run keeps its own settings");
        return Err(ServerError::Config { why });
    }
    if *order == RunOrder::Delete && !yes {
        ask(name)?;
    }
    let token = match token {
        Some(token) => token.clone(),
        None => kept_token(runs)?,
    };
    let (method, route, body) = match order {
        RunOrder::Create => {
            let settings = flags.over(&settings.as_deref().map_or(Ok(String::new()), read)?);
            (Method::POST, path::RUNS.to_owned(), json!({ "name": name, "settings": settings }).to_string())
        }
        RunOrder::Delete => (Method::DELETE, format!("{}/{name}", path::RUNS), String::new()),
        _ => (Method::POST, format!("{}/{name}/{}", path::RUNS, order.path()), String::new()),
    };
    let (is_done, words) = order_to(Site { url, ca: ca.as_deref() }, method, &route, &token, body)?;
    match is_done {
        true => Ok(words.trim_end().to_owned()),
        false => Err(ServerError::Config { why: words.trim_end().to_owned() }),
    }
}

/// The token that the server keeps in the folder of its runs.
fn kept_token(runs: &Path) -> Result<String, ServerError> {
    let path = runs.join("admin.token");
    if !is_there(&path)? {
        let why = format!(
            "there is no {}: give --runs the folder that the server was started with, or --token what is in its \
             admin.token",
            path.display()
        );
        return Err(ServerError::Config { why });
    }
    Ok(read(&path)?.trim().to_owned())
}

fn read(path: &Path) -> Result<String, ServerError> {
    fs::read_to_string(path).map_err(|source| ServerError::Disk {
        what: "read",
        path: path.to_owned(),
        source,
    })
}

/// Asks on the terminal whether the run is meant.
fn ask(name: &RunName) -> Result<(), ServerError> {
    let not_meant = |why: &str| Err(ServerError::Config { why: why.to_owned() });
    if !std::io::stdin().is_terminal() {
        return not_meant("nothing was deleted: give --yes, since nobody can be asked here");
    }
    let mut out = std::io::stderr().lock();
    let question = format!("delete the run {name}, its model and its history? Type its name to do so: ");
    let mut typed = String::new();
    let asked = out.write_all(question.as_bytes()).and_then(|()| out.flush());
    if asked.and_then(|()| std::io::stdin().lock().read_line(&mut typed)).is_ok()
        && typed.trim() == name.as_str()
    {
        return Ok(());
    }
    not_meant("nothing was deleted: that is not the run's name")
}
