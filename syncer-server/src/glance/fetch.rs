//! Asking a running syncer.

use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::Agent;

use crate::errors::ServerError;

/// Longest wait for a connection, and for a whole answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Largest answer that is read, in bytes; a syncer's are a few hundred kilobytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// `GET path` of the syncer at `url`, as JSON.
///
/// # Errors
/// `NoSyncer`: nobody answers there, or something that is no syncer of ours.
pub fn get<T: DeserializeOwned>(url: &str, path: &str) -> Result<T, ServerError> {
    // A link to a page is good enough: what follows # is the invite, and no request carries it.
    let base = url.split(['#', '?']).next().unwrap_or_default().trim_end_matches('/');
    let no_syncer = |why: String| ServerError::NoSyncer { url: base.to_owned(), why };
    if !base.starts_with("http://") && !base.starts_with("https://") {
        return Err(no_syncer("an address begins with http:// or https://".into()));
    }
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(Some(CONNECT_WITHIN))
        .timeout_global(Some(ANSWER_WITHIN))
        .build()
        .into();
    let mut answer =
        agent.get(format!("{base}{path}")).call().map_err(|error| no_syncer(error.to_string()))?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.map_err(|error| no_syncer(error.to_string()))?;
    if !status.is_success() {
        return Err(no_syncer(format!("{path} answers {status}")));
    }
    serde_json::from_slice(&body)
        .map_err(|error| no_syncer(format!("{path} answers something else ({error})")))
}
