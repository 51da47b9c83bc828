//! HTTP GET requests, each on a separate thread.

use std::future::Future;
use std::io::Read;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use futures::channel::oneshot;
use ureq::Agent;

use crate::platform::{FetchError, FetchReply, FetchRequest, Proxy, transfer_fault};

/// Timeout for opening a connection, in seconds.
const CONNECT_S: u64 = 10;
/// Timeout for the head of a response, in seconds. It is long because the syncer may first have to prepare the
/// fragment.
const RESPONSE_S: u64 = 30;
/// Timeout for each read of the body, in seconds.
const READ_S: u64 = 30;
/// Maximum number of redirects to follow. A syncer never redirects, and a socket would not follow either.
const REDIRECTS_MAX: u32 = 0;
/// Number of bytes read between two checks whether the request was cancelled.
const READ_BYTES: usize = 64 * 1024;
/// Maximum number of bytes read from the body of an error response, enough for a message.
const ERROR_BODY_BYTES_MAX: u64 = 4 * 1024;

/// Starts `request` in the background at once. Dropping the future cancels it.
///
/// # Errors
/// - [`FetchError::Network`]: there was no response, or it ended early.
/// - [`FetchError::TooLarge`]: the body exceeds `body_bytes_max`.
///
/// A response with an error status is not an error. Its body is cut to 4 KiB.
pub fn fetch(request: FetchRequest) -> impl Future<Output = Result<FetchReply, FetchError>> {
    let (answer, answered) = oneshot::channel();
    let url = request.url.clone();
    let spawned = thread::Builder::new().name("archipelago-fetch".to_owned()).spawn(move || {
        let result = get(&request, &|| answer.is_canceled());
        // An error means that the request was cancelled.
        drop(answer.send(result));
    });
    async move {
        let failed = |reason: String| FetchError::Network {
            url,
            reason,
            status: None,
            header: None,
            partial: Vec::new(),
        };
        match spawned {
            Err(error) => Err(failed(format!("cannot start a thread for the transfer: {error}"))),
            Ok(_detached) => answered
                .await
                .unwrap_or_else(|_| Err(failed("the transfer ended without an answer".to_owned()))),
        }
    }
}

/// Returns the HTTP agent that all requests share, so that they reuse connections.
fn agent() -> &'static Agent {
    static AGENT: OnceLock<Agent> = OnceLock::new();
    AGENT.get_or_init(|| {
        let config = Agent::config_builder();
        let config = match super::authorities() {
            Some(authorities) => config.tls_config(authorities),
            None => config,
        };
        config
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(REDIRECTS_MAX)
            .timeout_connect(Some(Duration::from_secs(CONNECT_S)))
            .timeout_recv_response(Some(Duration::from_secs(RESPONSE_S)))
            .timeout_per_read(Some(Duration::from_secs(READ_S)))
            .user_agent(concat!("archipelago/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent()
    })
}

fn get(request: &FetchRequest, unwanted: &dyn Fn() -> bool) -> Result<FetchReply, FetchError> {
    let url = || request.url.clone();
    let no_answer = |reason: String| FetchError::Network {
        url: url(),
        reason,
        status: None,
        header: None,
        partial: Vec::new(),
    };
    let proxy = Proxy::for_url(&request.url).map_err(|error| no_answer(error.to_string()))?;
    let mut call = agent().get(&request.url);
    if let Some(proxy) = &proxy {
        call = call.config().proxy(Some(proxy.for_transfers())).build();
    }
    if request.start_byte > 0 {
        call = call.header("range", format!("bytes={}-", request.start_byte));
    }
    for header in &request.headers {
        call = call.header(header.name, &header.value);
    }
    let called = call.call();
    let mut response = called.map_err(|error| no_answer(transfer_fault(&error, proxy.as_ref())))?;
    let status = response.status();
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let header = text(request.header).map(str::to_owned);
    let retry_after_s = text("retry-after").and_then(|text| text.trim().parse().ok());
    let broke = |reason: String, partial: Vec<u8>| FetchError::Network {
        url: url(),
        reason,
        status: Some(status.as_u16()),
        header: header.clone(),
        partial,
    };
    let success = status.is_success();
    let bytes_max = if success { request.body_bytes_max } else { ERROR_BODY_BYTES_MAX };
    let announced = response.body().content_length().unwrap_or(0);
    if success && announced > bytes_max {
        return Err(FetchError::TooLarge { url: url(), body_bytes_max: bytes_max });
    }

    let mut reader = response.body_mut().as_reader();
    let mut body = Vec::with_capacity(usize::try_from(announced.min(bytes_max)).unwrap_or(0));
    let mut chunk = vec![0; READ_BYTES];
    loop {
        if unwanted() {
            return Err(broke("the transfer was abandoned".to_owned(), Vec::new()));
        }
        let count = match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => return Err(broke(error.to_string(), body)),
        };
        if success {
            request.count.add(count as u64);
        }
        if (body.len() + count) as u64 > bytes_max {
            if success {
                return Err(FetchError::TooLarge { url: url(), body_bytes_max: bytes_max });
            }
            break;
        }
        body.extend_from_slice(&chunk[..count]);
    }
    Ok(FetchReply { status: status.as_u16(), header, retry_after_s, body })
}
