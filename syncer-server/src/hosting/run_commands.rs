//! Listing and control of a server's runs from a terminal.

use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use archipelago_cli::plain;
use archipelago_core::wire::http as path;
use axum::http::Method;
use serde_json::json;

use super::settings;
use super::view::{RunFigures, RunView, RunsView};
use crate::config::{OrderArgs, RunName, RunOrder, RunsArgs};
use crate::errors::ServerError;
use crate::inspect::{Column, Remote, UNKNOWN, count, csv, nats, number, participation, table, text};
use crate::links::socket;
use crate::store::{is_there, read_token};

/// Returns the list of a server's runs as `args` ask: a table, CSV or JSON.
///
/// # Errors
/// `NoSyncer`: no server answers at `args.url`.
pub fn runs(args: &RunsArgs) -> Result<String, ServerError> {
    let server = Remote { url: &args.url, ca: args.ca.as_deref(), token: None };
    let view: RunsView = server.get(path::RUNS)?;
    if args.json {
        return Ok(serde_json::to_string(&view).expect("plain data"));
    }
    if args.csv {
        return Ok(csv(&CSV, &view.runs));
    }
    let reasons = view.runs.iter().filter_map(|run| Some((&run.name, run.why.as_ref()?)));
    let reasons: String = reasons.map(|(name, why)| format!("\n{}: {}", plain(name), plain(why))).collect();
    Ok(table(&TABLE, &view.runs) + &reasons)
}

/// Columns of the list.
const TABLE: [Column<RunView>; 7] = [
    text("name", |run| if run.name.is_empty() { UNKNOWN.into() } else { plain(&run.name) }),
    text("state", |run| run.state.words().into()),
    text("model", |run| figure(run, UNKNOWN, |figures| plain(&figures.model))),
    number("learners", |run| figure(run, UNKNOWN, |figures| count(figures.live.into()))),
    number("tokens merged", |run| figure(run, UNKNOWN, |figures| count(figures.tokens_merged))),
    number("participation", |run| {
        figure(run, UNKNOWN, |figures| participation(figures.participation, figures.tokens_merged))
    }),
    number("held-out loss", |run| figure(run, UNKNOWN, |figures| nats(figures.val_loss_last))),
];

/// Columns of the list as CSV; unknown values are empty.
const CSV: [Column<RunView>; 8] = [
    text("name", |run| plain(&run.name)),
    text("state", |run| run.state.words().into()),
    text("model", |run| figure(run, "", |figures| plain(&figures.model))),
    number("learners in rounds", |run| figure(run, "", |figures| figures.live.to_string())),
    number("tokens merged", |run| figure(run, "", |figures| figures.tokens_merged.to_string())),
    number("participation (0 to 1)", |run| figure(run, "", |figures| figures.participation.to_string())),
    number("held-out loss (nats per token)", |run| {
        figure(run, "", |figures| figures.val_loss_last.map(|loss| loss.to_string()).unwrap_or_default())
    }),
    text("why it failed", |run| run.why.as_deref().map(plain).unwrap_or_default()),
];

/// Formats a figure of a run, or returns `unknown` if the run is not served.
fn figure(run: &RunView, unknown: &str, of: fn(&RunFigures) -> String) -> String {
    run.figures.as_ref().map_or_else(|| unknown.to_owned(), of)
}

/// Gives an order to the server at `args.url`, and returns its answer. If the order starts a run, the links to it
/// follow.
///
/// # Errors
/// - `Disk`: the token or the settings cannot be read, or the run's folder cannot be created.
/// - `Config`: the order makes no sense, was not confirmed, or the server refuses it.
/// - `NoSyncer`: no server answers at `args.url`.
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
    let token = token.clone().map_or_else(|| kept_token(runs, args), Ok)?;
    let server = Server(Remote { url, ca: ca.as_deref(), token: Some(&token) });
    match order {
        RunOrder::Create => {
            let settings = flags.over(&settings.as_deref().map_or(Ok(String::new()), read)?);
            let words = server.create(name, &settings, runs)?;
            Ok(words + &server.links(name))
        }
        RunOrder::Start => Ok(server.order(Method::POST, name, *order)? + &server.links(name)),
        RunOrder::Delete => server.order(Method::DELETE, name, *order),
        _ => server.order(Method::POST, name, *order),
    }
}

/// A server of several runs.
struct Server<'a>(Remote<'a>);

impl Server<'_> {
    /// Gives an order about the run `name`, and returns the server's answer.
    fn order(&self, method: Method, name: &RunName, order: RunOrder) -> Result<String, ServerError> {
        let route = format!("{}/{name}/{}", path::RUNS, order.path());
        let route = route.trim_end_matches('/');
        match order {
            RunOrder::Pause | RunOrder::Resume | RunOrder::Finish => {
                self.0.order(method, route, String::new())
            }
            // These read or write the whole run.
            RunOrder::Create | RunOrder::Start | RunOrder::Archive | RunOrder::Delete => {
                self.0.long_order(method, route, String::new())
            }
        }
    }

    /// Creates a run with the settings in the TOML `text`. Settings that name files are never sent to a server, but
    /// written into `folder`, the folder of the server's runs: users with write access to it may also name files
    /// there.
    fn create(&self, name: &RunName, text: &str, folder: &Path) -> Result<String, ServerError> {
        match settings::names_file(text).filter(|_| folder.is_dir()) {
            Some(key) => self.create_in(folder, name, text, &key),
            None => {
                let body = json!({ "name": name, "settings": text }).to_string();
                self.0.long_order(Method::POST, path::RUNS, body)
            }
        }
    }

    /// Creates the folder of a new run in `folder`, because its setting `key` names a file, and makes the server start
    /// the run. If that fails, no folder is left.
    fn create_in(&self, folder: &Path, name: &RunName, text: &str, key: &str) -> Result<String, ServerError> {
        let wrong = |why| ServerError::Config { why };
        let text = settings::with_absolute_paths(text).map_err(wrong)?;
        let dir = folder.join(name.as_str());
        if is_there(&dir)? || self.run(name)?.is_some() {
            return Err(wrong(format!("there is a run {name} already")));
        }
        settings::write(&dir, &text)?;
        self.order(Method::POST, name, RunOrder::Start).map_err(|error| {
            // A server with these runs deletes the folder together with the run. Another server has never seen the
            // folder.
            if self.order(Method::DELETE, name, RunOrder::Delete).is_ok() {
                return error;
            }
            drop(fs::remove_dir_all(&dir));
            match error {
                ServerError::Config { .. } => wrong(format!(
                    "`{key}` names a file, but the server at {} does not have its runs in {}: give --runs its folder \
                     of runs, on its machine",
                    self.0.url,
                    folder.display()
                )),
                error => error,
            }
        })
    }

    /// Returns the run `name`, with its link, if the server has it.
    fn run(&self, name: &RunName) -> Result<Option<RunView>, ServerError> {
        let view: RunsView = self.0.get(path::RUNS)?;
        Ok(view.runs.into_iter().find(|run| run.name == name.as_str()))
    }

    /// Returns the links to the run `name`, as words that follow the answer; empty if the server does not give them.
    fn links(&self, name: &RunName) -> String {
        let link = self.run(name).ok().flatten().and_then(|run| run.link);
        link.map_or_else(String::new, |link| {
            format!(": {} (learners join {})", plain(&link), plain(&socket(&link)))
        })
    }
}

/// Reads the token that the server keeps in the folder of its runs.
fn kept_token(runs: &Path, args: &OrderArgs) -> Result<String, ServerError> {
    if let Some(token) = read_token(&runs.join("admin.token"))? {
        return Ok(token);
    }
    let alone = runs.join(args.name.as_str());
    let why = match is_there(&alone.join("run.json"))? {
        true => format!(
            "{} is a run with a server of its own: `syncer-server pause --dir {}` pauses it, and so do resume and \
             finish; `syncer-server serve --runs {}` serves it with others",
            alone.display(),
            alone.display(),
            runs.display()
        ),
        false => format!(
            "there is no admin.token in {}: give --runs the folder that the server was started with, or --token the \
             owner's token",
            runs.display()
        ),
    };
    Err(ServerError::Config { why })
}

fn read(path: &Path) -> Result<String, ServerError> {
    fs::read_to_string(path).map_err(|source| ServerError::Disk {
        what: "read",
        path: path.to_owned(),
        source,
    })
}

/// Asks on the terminal for the run's name as a confirmation.
fn ask(name: &RunName) -> Result<(), ServerError> {
    let not_meant = |why: &str| Err(ServerError::Config { why: why.to_owned() });
    if !std::io::stdin().is_terminal() {
        return not_meant("nothing was deleted: give --yes, since there is no terminal to confirm on");
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
