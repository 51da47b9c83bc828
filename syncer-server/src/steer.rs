//! Verbs that send the owner's orders to the server of one run.

use std::collections::BTreeMap;

use axum::http::Method;
use serde_json::json;

use crate::config::{DropArgs, PaceArgs, SetArgs, SteerArgs};
use crate::errors::ServerError;
use crate::inspect::Remote;
use crate::store::{Store, read_token};

/// Address of a server that was started without `--listen`.
const DEFAULT_URL: &str = "http://127.0.0.1:7700";

/// Pauses the run: no round starts and no learner takes a step. Returns the server's answer.
///
/// # Errors
/// - `Config`: there is no token, or the server refuses the order.
/// - `Disk`: a file of the folder cannot be read.
/// - `NoSyncer`: no server answers.
pub fn pause(run: &SteerArgs) -> Result<String, ServerError> {
    send_order(run, "pause", String::new())
}

/// Resumes a paused run.
///
/// # Errors
/// As [`pause`].
pub fn resume(run: &SteerArgs) -> Result<String, ServerError> {
    send_order(run, "resume", String::new())
}

/// Collects the last updates and ends the run.
///
/// # Errors
/// As [`pause`].
pub fn finish(run: &SteerArgs) -> Result<String, ServerError> {
    send_order(run, "finish", String::new())
}

/// Changes settings of the run while it goes on.
///
/// # Errors
/// As [`pause`].
pub fn set(args: &SetArgs) -> Result<String, ServerError> {
    let settings: BTreeMap<&str, &str> =
        args.settings.iter().map(|(key, value)| (&**key, &**value)).collect();
    send_order(&args.run, "settings", json!(settings).to_string())
}

/// Limits one learner to a share of its pace.
///
/// # Errors
/// As [`pause`].
pub fn pace(args: &PaceArgs) -> Result<String, ServerError> {
    let body = json!({ "share": args.share }).to_string();
    send_order(&args.run, &format!("learners/{}/pace", args.learner), body)
}

/// Drops one learner, and refuses its return for a while.
///
/// # Errors
/// As [`pause`].
pub fn drop_learner(args: &DropArgs) -> Result<String, ServerError> {
    let body = json!({ "seconds": args.time.0.as_secs_f64() }).to_string();
    send_order(&args.run, &format!("learners/{}/drop", args.learner), body)
}

/// Sends an order of the owner to the server of `run`, and returns the answer.
fn send_order(run: &SteerArgs, order: &str, body: String) -> Result<String, ServerError> {
    let store = Store::open_read_only(&run.dir);
    let url = match &run.url {
        Some(url) => url.clone(),
        None => store.address()?.unwrap_or_else(|| DEFAULT_URL.to_owned()),
    };
    let token = match &run.token {
        Some(token) => token.clone(),
        None => read_token(&store.admin_token_path())?.ok_or_else(|| no_token(run))?,
    };
    let server = Remote { url: &url, ca: run.ca.as_deref(), token: Some(&token) };
    server.order(Method::POST, &format!("/v1/admin/{order}"), body)
}

fn no_token(run: &SteerArgs) -> ServerError {
    let why = format!(
        "there is no admin.token in {}: give --dir the folder of the run, or --token the owner's token",
        run.dir.display()
    );
    ServerError::Config { why }
}
