//! HTTP requests to a running syncer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::text::link_of;
use archipelago_core::wire::http as path;
use archipelago_runtime::platform::{Proxy, transfer_fault};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{Method, Request, StatusCode, request};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::errors::ServerError;

/// Longest wait for a connection, and for a whole answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for an order to be carried out; opening a run reads its text and its tape.
const DONE_WITHIN: Duration = Duration::from_secs(600);

/// Largest answer that is read, in bytes; a syncer's answers have a few hundred kilobytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Longest message of a server that is shown, in bytes.
const SENTENCE_BYTES_MAX: usize = 1_000;

/// The address of a syncer.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Its URL.
    pub url: &'a str,
    /// File with trusted certificate authorities, if not the public ones.
    pub ca: Option<&'a Path>,
}

/// Sends `GET path` to the syncer at `site`, and returns the answer as JSON.
///
/// # Errors
/// - `NoSyncer`: no server answers at the address, or it is not a syncer.
/// - `Config`: the address serves several runs, and the question is about one.
pub fn get<T: DeserializeOwned>(site: Site<'_>, path: &str) -> Result<T, ServerError> {
    get_as(site, path, None)
}

/// Like [`get`], with the owner's `token` if there is one.
///
/// # Errors
/// Those of [`get`].
pub fn get_as<T: DeserializeOwned>(
    site: Site<'_>,
    path: &str,
    token: Option<&str>,
) -> Result<T, ServerError> {
    let (status, body) = ask(site, path, ANSWER_WITHIN, |request| {
        let request = request.method("GET");
        let request = match token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        Ok(request.body(String::new())?)
    })?;
    let no_syncer = |why| ServerError::NoSyncer { url: base(site.url).to_owned(), why };
    if !status.is_success() {
        if let Some(elsewhere) = elsewhere(site, path, status) {
            return Err(elsewhere);
        }
        return Err(no_syncer(match sentence(&body) {
            Some(said) => format!("{path} answers {status}: {said}"),
            None => format!("{path} answers {status}"),
        }));
    }
    serde_json::from_slice(&body)
        .map_err(|error| no_syncer(format!("{path} answers something else ({error})")))
}

/// Sends an order with the owner's `token` to the server at `site`, and returns the answer.
///
/// # Errors
/// - `NoSyncer`: no server answers at the address.
/// - `Config`: the server refuses the order.
pub fn order_to(
    site: Site<'_>,
    method: Method,
    path: &str,
    token: &str,
    body: String,
) -> Result<String, ServerError> {
    let (status, said) = ask(site, path, DONE_WITHIN, |request| {
        let request = request.method(method).header("content-type", "application/json");
        Ok(request.header("authorization", format!("Bearer {token}")).body(body)?)
    })?;
    let said = sentence(&said);
    if status.is_success() {
        return Ok(said.unwrap_or_else(|| "done".to_owned()));
    }
    let refused = || ServerError::Config {
        why: said.unwrap_or_else(|| format!("{} answers {status}", base(site.url))),
    };
    Err(elsewhere(site, path, status).unwrap_or_else(refused))
}

/// Returns the error for an address of the wrong kind, where a syncer answered with `status`. The server has several
/// runs and `path` is about one, or the other way round. `None` if the address is of the right kind.
fn elsewhere(site: Site<'_>, path: &str, status: StatusCode) -> Option<ServerError> {
    if ![StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status)
        || base(site.url).contains("/runs/")
    {
        return None;
    }
    let get = |request: request::Builder| Ok(request.method("GET").body(String::new())?);
    let (_, body) = ask(site, path::RUNS, ANSWER_WITHIN, get).ok()?;
    let view: Value = serde_json::from_slice(&body).ok()?;
    let url = base(site.url);
    let names = |view: &Value| {
        let names = view["runs"].as_array().into_iter().flatten().filter_map(|run| run["name"].as_str());
        names.map(super::plain).collect::<Vec<_>>()
    };
    let why = match (view["several"].as_bool()?, path.starts_with(path::RUNS)) {
        (true, false) => match &*names(&view) {
            [] => format!(
                "{url} serves several runs, and has none yet: `syncer-server run create NAME` makes one"
            ),
            names => format!(
                "{url} serves several runs ({}): name one of them, as --url {url}/runs/{}/",
                names.join(", "),
                names[0]
            ),
        },
        (false, true) => format!(
            "{url} serves one run, which has no name there: `syncer-server pause --url {url}` pauses it, and so do \
             resume and finish; `syncer-server serve --runs FOLDER` serves several"
        ),
        _ => return None,
    };
    Some(ServerError::Config { why })
}

/// Returns the text of an answer if it is a sentence for people.
fn sentence(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let fits = (1..=SENTENCE_BYTES_MAX).contains(&text.len()) && !text.contains('<');
    fits.then(|| super::plain(text))
}

/// Returns the base URL. Links to pages are accepted too; the invite after # is never part of a request.
fn base(url: &str) -> &str {
    link_of(url).split(['#', '?']).next().unwrap_or_default().trim_end_matches('/')
}

/// Reads the certificates in the file of authorities, if one is given.
fn authorities(ca: Option<&Path>) -> Result<RootCerts, String> {
    let Some(file) = ca else { return Ok(RootCerts::WebPki) };
    let wrong = |why: String| format!("--ca {}: {why}", file.display());
    let pem = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(wrong("it holds no certificate in PEM form".into()));
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

/// Performs one exchange with the syncer at `site`, with the request that `make` returns.
fn ask(
    site: Site<'_>,
    path: &str,
    within: Duration,
    make: impl FnOnce(request::Builder) -> Result<Request<String>, ureq::Error>,
) -> Result<(StatusCode, Vec<u8>), ServerError> {
    let base = base(site.url);
    let no_syncer = |why: String| ServerError::NoSyncer { url: base.to_owned(), why };
    if !base.starts_with("http://") && !base.starts_with("https://") {
        return Err(no_syncer("an address begins with http:// or https://".into()));
    }
    let trusted = authorities(site.ca).map_err(no_syncer)?;
    let proxy = Proxy::for_url(base).map_err(|error| no_syncer(error.to_string()))?;
    let agent: Agent = Agent::config_builder()
        .tls_config(TlsConfig::builder().root_certs(trusted).build())
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(proxy.as_ref().map(Proxy::for_transfers))
        .timeout_connect(Some(CONNECT_WITHIN))
        .timeout_global(Some(within))
        .build()
        .into();
    let request = make(Request::builder().uri(format!("{base}{path}")));
    let answer = request.and_then(|request| agent.run(request));
    let mut answer = answer.map_err(|error| no_syncer(transfer_fault(&error, proxy.as_ref())))?;
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    Ok((answer.status(), body.map_err(|error| no_syncer(error.to_string()))?))
}
