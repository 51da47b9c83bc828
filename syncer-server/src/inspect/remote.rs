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
use ureq::http::{HeaderValue, Method, Request, StatusCode, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::errors::ServerError;

/// Time limits for a connection and for a whole answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for an order that opens or closes a run: opening reads its text and its tape, which takes long.
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
    /// - `NoSyncer`: no server answers at the address in time.
    /// - `Config`: the server refuses the command, the token is malformed, or the address is of the wrong kind.
    pub fn order(self, method: Method, path: &str, body: String) -> Result<String, ServerError> {
        self.order_within(method, path, body, ANSWER_WITHIN)
    }

    /// Sends an admin command as [`Self::order`] does, and allows ten minutes for its completion. A server that answers
    /// nothing at all is given up as soon as by the other commands.
    ///
    /// # Errors
    /// Those of [`Self::order`].
    pub fn long_order(self, method: Method, path: &str, body: String) -> Result<String, ServerError> {
        self.send(Method::GET, path::HEALTH, String::new(), ANSWER_WITHIN)?;
        self.order_within(method, path, body, DONE_WITHIN)
    }

    fn order_within(
        self,
        method: Method,
        path: &str,
        body: String,
        within: Duration,
    ) -> Result<String, ServerError> {
        let (status, said) = self.send(method, path, body, within)?;
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
        let url = base(self.url);
        if ![StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status)
            || url.contains("/runs/")
        {
            return None;
        }
        let (_, body) = self.send(Method::GET, path::RUNS, String::new(), ANSWER_WITHIN).ok()?;
        let view: Value = serde_json::from_slice(&body).ok()?;
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
        let address = format!("{base}{path}");
        let is_web = base.starts_with("http://") || base.starts_with("https://");
        if !is_web || address.parse::<Uri>().is_err() {
            let why = format!("--url {base} is not an address: give it the form http://HOST:PORT");
            return Err(ServerError::Config { why });
        }
        let trusted = authorities(self.ca).map_err(no_syncer)?;
        let proxy = Proxy::for_url(&base).map_err(|error| no_syncer(error.to_string()))?;
        let agent: Agent = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(trusted).build())
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy.as_ref().map(Proxy::for_transfers))
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_global(Some(within))
            .build()
            .into();
        let mut request = Request::builder().method(method).uri(address);
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(token) = self.token {
            // A key of another language, or a newline, cannot be part of a header. The message does not repeat it.
            let shown = HeaderValue::from_str(&format!("Bearer {token}"));
            let shown = shown.ok().filter(|shown| shown.to_str().is_ok());
            request = request.header("authorization", shown.ok_or_else(malformed_token)?);
        }
        let lost = |error: ureq::Error| {
            let is_late = matches!(error, ureq::Error::Timeout(_));
            let late = is_late.then(|| format!("it did not answer within {} s", within.as_secs()));
            no_syncer(match (late, proxy.as_ref()) {
                (None, proxy) => transfer_fault(&error, proxy),
                (Some(why), Some(proxy)) => proxy.explain(&why),
                (Some(why), None) => why,
            })
        };
        let answer = request.body(body).map_err(ureq::Error::from).and_then(|request| agent.run(request));
        let mut answer = answer.map_err(lost)?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        Ok((answer.status(), body.map_err(lost)?))
    }

    fn no_syncer(self, why: String) -> ServerError {
        ServerError::NoSyncer { url: base(self.url), why }
    }
}

fn malformed_token() -> ServerError {
    let why = "the owner's token is malformed: it has characters other than letters, digits and signs of ASCII; copy \
               it again from admin.token";
    ServerError::Config { why: why.to_owned() }
}

/// Returns the body of an answer if it is a short text for people, and not a page. Sentences may contain `<COUNT>`.
fn sentence(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let fits = (1..=SENTENCE_BYTES_MAX).contains(&text.len()) && !text.starts_with('<');
    fits.then(|| plain(text))
}

/// Returns the base URL of `url`, which may also be a link to a page, the address that learners join, or `HOST:PORT`.
/// The invite after # is never sent.
fn base(url: &str) -> String {
    let link = link_of(url).split(['#', '?']).next().unwrap_or_default().trim_end_matches('/');
    let (scheme, rest) = match link.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => ("http".to_owned(), link),
    };
    let scheme = match &*scheme {
        "ws" => "http",
        "wss" => "https",
        other => other,
    };
    let page = path::PAGES.iter().chain([&path::SOCKET]).find_map(|page| rest.strip_suffix(page));
    format!("{scheme}://{}", page.unwrap_or(rest))
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn every_form_of_a_link_leads_to_the_server() {
        for (url, expected) in [
            ("http://a:1", "http://a:1"),
            ("a:1", "http://a:1"),
            ("ws://a:1", "http://a:1"),
            ("WSS://a:1/v1/ws", "https://a:1"),
            ("https://a/dashboard?x#invite=secret", "https://a"),
            ("http://a:1/runs/poems/dashboard/", "http://a:1/runs/poems"),
            ("http://dashboard/", "http://dashboard"),
            ("ftp://a", "ftp://a"),
        ] {
            assert_eq!(base(url), expected, "{url}");
        }
    }

    /// Goal: the reason of a refusal reaches the owner, although it names a flag's value in angle brackets.
    #[test]
    fn sentences_are_shown_and_pages_are_not() {
        let why = "invalid value 'x' for '--merge <RULE>'";
        assert_eq!(sentence(format!("{why}\n").as_bytes()).as_deref(), Some(why));
        assert_eq!(sentence(b"\n<!doctype html><p>no"), None);
        assert_eq!(sentence(b" \n"), None);
    }

    /// Serves `count` requests with an empty answer, and returns their first lines without the version.
    fn requests(count: usize, ask: impl FnOnce(Remote<'_>)) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = thread::spawn(move || {
            let serve = |_| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                let first = lines.next().unwrap();
                lines.find(String::is_empty);
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .unwrap();
                first.trim_end_matches(" HTTP/1.1").to_owned()
            };
            (0..count).map(serve).collect()
        });
        ask(Remote { url: &url, ca: None, token: Some("secret-of-the-owner") });
        served.join().unwrap()
    }

    /// Goal: no command waits for minutes for a server that answers nothing.
    #[test]
    fn only_a_server_that_answers_gets_an_order_that_takes_long() {
        let pause = |server: Remote<'_>| {
            assert_eq!(server.order(Method::POST, "/v1/admin/pause", String::new()).unwrap(), "done");
        };
        assert_eq!(requests(1, pause), ["POST /v1/admin/pause"]);
        let delete = |server: Remote<'_>| {
            server.long_order(Method::DELETE, "/v1/runs/a", String::new()).unwrap();
        };
        assert_eq!(requests(2, delete), ["GET /healthz", "DELETE /v1/runs/a"]);
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let server = Remote { url: &url, ca: None, token: None };
        let within = Duration::from_millis(50);
        let found = server.order_within(Method::POST, "/v1/admin/pause", String::new(), within);
        assert!(found.is_err_and(|error| error.to_string().contains("did not answer within")));
    }

    #[test]
    fn what_cannot_be_sent_is_not_a_missing_syncer() {
        let why = |url: &str, token: &str| {
            let server = Remote { url, ca: None, token: Some(token) };
            let found = server.order(Method::POST, "/v1/admin/pause", String::new());
            let Err(ServerError::Config { why }) = found else { panic!("{url} {token:?}: {found:?}") };
            why
        };
        // Port 9 has no server; the request is refused before it is sent.
        for token in ["a\nb", "ключключключключ"] {
            let why = why("http://127.0.0.1:9", token);
            assert!(why.contains("token is malformed") && !why.contains(token), "{why}");
        }
        assert!(why("ftp://a", "t").contains("is not an address"));
        assert!(why("http://a b", "t").contains("is not an address"));
    }
}
