//! HTTP client of a running syncer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::text::{link_of, plain};
use archipelago_core::wire::http as path;
use archipelago_runtime::platform::{Proxy, transfer_fault};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{Method, Request, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::errors::ServerError;

/// Time limits for a connection and for a whole answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for an admin command. Opening a run reads its text and its tape, which takes long.
const DONE_WITHIN: Duration = Duration::from_secs(600);

/// Maximum size of an answer, in bytes. Answers of syncers have a few hundred kilobytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Maximum length of a server's message that is shown, in bytes.
const SENTENCE_BYTES_MAX: usize = 1_000;

/// Address of a syncer, with the owner's token if requests need it.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// URL of the syncer.
    pub url: &'a str,
    /// File with trusted certificate authorities, which replace the public ones.
    pub ca: Option<&'a Path>,
    /// The owner's token, if the request needs it.
    pub token: Option<&'a str>,
}

impl Remote<'_> {
    /// Sends `GET path` and returns the answer's JSON.
    ///
    /// # Errors
    /// - `NoSyncer`: no server answers at the address, or it is not a syncer.
    /// - `Config`: the server at the address has several runs, and `path` is about one run.
    pub fn get<T: DeserializeOwned>(self, path: &str) -> Result<T, ServerError> {
        let (status, body) = self.send(Method::GET, path, String::new(), ANSWER_WITHIN)?;
        if !status.is_success() {
            if let Some(error) = self.wrong_kind(path, status) {
                return Err(error);
            }
            return Err(self.no_syncer(match sentence(&body) {
                Some(said) => format!("{path} answers {status}: {said}"),
                None => format!("{path} answers {status}"),
            }));
        }
        let wrong = |error| self.no_syncer(format!("{path} answers something else ({error})"));
        serde_json::from_slice(&body).map_err(wrong)
    }

    /// Sends an admin command with the JSON `body`, and returns the text of the answer.
    ///
    /// # Errors
    /// - `NoSyncer`: no server answers at the address.
    /// - `Config`: the server refuses the command, or the address is of the wrong kind.
    pub fn order(self, method: Method, path: &str, body: String) -> Result<String, ServerError> {
        let (status, said) = self.send(method, path, body, DONE_WITHIN)?;
        let said = sentence(&said);
        if status.is_success() {
            return Ok(said.unwrap_or_else(|| "done".to_owned()));
        }
        let refused = || ServerError::Config {
            why: said.unwrap_or_else(|| format!("{} answers {status}", base(self.url))),
        };
        Err(self.wrong_kind(path, status).unwrap_or_else(refused))
    }

    /// Returns the error if a syncer answered `status` because the address is of the wrong kind: the server has several
    /// runs and `path` is about one run, or the reverse. Returns `None` otherwise.
    fn wrong_kind(self, path: &str, status: StatusCode) -> Option<ServerError> {
        if ![StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status)
            || base(self.url).contains("/runs/")
        {
            return None;
        }
        let (_, body) = self.send(Method::GET, path::RUNS, String::new(), ANSWER_WITHIN).ok()?;
        let view: Value = serde_json::from_slice(&body).ok()?;
        let url = base(self.url);
        let names = |view: &Value| {
            let names = view["runs"].as_array().into_iter().flatten().filter_map(|run| run["name"].as_str());
            names.map(plain).collect::<Vec<_>>()
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

    /// Sends one request and returns the status and body of its answer.
    fn send(
        self,
        method: Method,
        path: &str,
        body: String,
        within: Duration,
    ) -> Result<(StatusCode, Vec<u8>), ServerError> {
        let base = base(self.url);
        let no_syncer = |why| self.no_syncer(why);
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Err(no_syncer("an address begins with http:// or https://".into()));
        }
        let trusted = authorities(self.ca).map_err(no_syncer)?;
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
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.body(body).map_err(ureq::Error::from).and_then(|request| agent.run(request));
        let mut answer = answer.map_err(|error| no_syncer(transfer_fault(&error, proxy.as_ref())))?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        Ok((answer.status(), body.map_err(|error| no_syncer(error.to_string()))?))
    }

    fn no_syncer(self, why: String) -> ServerError {
        ServerError::NoSyncer { url: base(self.url).to_owned(), why }
    }
}

/// Returns the body of an answer if it is a short text for people.
fn sentence(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let fits = (1..=SENTENCE_BYTES_MAX).contains(&text.len()) && !text.contains('<');
    fits.then(|| plain(text))
}

/// Returns the base URL of `url`, which may also be a link to a page. The invite after # is never sent.
fn base(url: &str) -> &str {
    link_of(url).split(['#', '?']).next().unwrap_or_default().trim_end_matches('/')
}

/// Reads the file with trusted certificate authorities, if one is given; otherwise returns the public ones.
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
