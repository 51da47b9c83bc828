//! Browser platform, with interfaces that exist in pages and in workers.

mod socket;

use std::fs::File;
use std::io;
use std::path::Path;

use archipelago_core::time::Millis;
use js_sys::{Function, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    AbortController, Crypto, MessageChannel, Performance, ReadableStreamDefaultReader, Request, RequestInit,
    RequestRedirect, Response,
};

use super::{FetchError, FetchReply, FetchRequest, RandomError};

pub use socket::Socket;

#[wasm_bindgen]
extern "C" {
    /// Global object of a page or a worker.
    type Scope;
    #[wasm_bindgen(method, getter)]
    fn performance(this: &Scope) -> Performance;
    #[wasm_bindgen(method, getter)]
    fn crypto(this: &Scope) -> Crypto;
    #[wasm_bindgen(method, js_name = setTimeout)]
    fn set_timeout(this: &Scope, then: &Function, ms: f64) -> JsValue;
    #[wasm_bindgen(method)]
    fn fetch(this: &Scope, request: &Request) -> Promise;
}

fn scope() -> Scope {
    js_sys::global().unchecked_into()
}

/// Returns the message of a value that JavaScript code threw.
fn thrown(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => format!("{error:?}"),
    }
}

/// Monotonic clock that starts at [`Clock::start`].
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start_ms: f64,
}

impl Clock {
    /// Starts a clock at 0.
    #[must_use]
    pub fn start() -> Self {
        Self { start_ms: scope().performance().now() }
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(self.now_us() / 1_000)
    }

    /// Returns the time since the start in microseconds, for short intervals. Browsers round it.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        ((scope().performance().now() - self.start_ms) * 1e3) as u64
    }
}

/// Returns `why`, a description of the silence at `url`. Pages do not know the proxies of their browser.
#[must_use]
pub fn silence(_url: &str, why: &str) -> String {
    why.to_owned()
}

/// Waits `ms` milliseconds. In a hidden page, the wait may be longer.
pub async fn sleep(ms: u64) {
    let wait = Promise::new(&mut |resolve, _| {
        scope().set_timeout(&resolve, ms as f64);
    });
    // A timer cannot fail.
    JsFuture::from(wait).await.ok();
}

/// Returns to the browser once, so that it processes pending messages, timers and GPU callbacks. It uses a message
/// instead of a timer, because timers are slow in hidden pages.
pub async fn yield_now() {
    let turn = Promise::new(&mut |resolve, _| {
        // Without a channel, it resolves at once, which only delays other work.
        let Ok(channel) = MessageChannel::new() else { return drop(resolve.call0(&JsValue::NULL)) };
        channel.port1().set_onmessage(Some(&resolve));
        channel.port2().post_message(&JsValue::NULL).ok();
    });
    JsFuture::from(turn).await.ok();
}

/// Fails, because browsers have no files.
///
/// # Errors
/// Always.
pub fn open_private(path: &Path) -> io::Result<File> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!("a browser cannot read the file {}", path.display()),
    ))
}

/// Returns `N` random bytes that are suitable for keys.
///
/// # Errors
/// [`RandomError`]: the browser provided no random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], RandomError> {
    let bytes = Uint8Array::new_with_length(N as u32);
    let filled = scope().crypto().get_random_values_with_array_buffer_view(&bytes);
    filled.map_err(|error| RandomError { reason: thrown(&error) })?;
    let mut random = [0; N];
    bytes.copy_to(&mut random);
    Ok(random)
}

/// Maximum number of bytes read from the body of an error response, enough for a message.
const ERROR_BODY_BYTES_MAX: u64 = 4 * 1024;

/// Guard that cancels the request when it is dropped.
struct Abort(Option<AbortController>);

impl Drop for Abort {
    fn drop(&mut self) {
        if let Some(controller) = &self.0 {
            controller.abort();
        }
    }
}

/// Starts `request` in the background at once. Dropping the future cancels it.
///
/// # Errors
/// - [`FetchError::Network`]: there was no response, or it ended early.
/// - [`FetchError::TooLarge`]: the body exceeds `body_bytes_max`.
///
/// A response with an error status is not an error. Its body is cut to 4 KiB.
pub fn fetch(request: FetchRequest) -> impl Future<Output = Result<FetchReply, FetchError>> {
    let begun = begin(&request);
    async move {
        let failed = |reason: String| FetchError::Network {
            url: request.url.clone(),
            reason,
            status: None,
            header: None,
            partial: Vec::new(),
        };
        let (answer, _abort) = begun.map_err(|error| failed(thrown(&error)))?;
        let answer = answer.await.map_err(|error| failed(thrown(&error)))?;
        read(&request, &answer.unchecked_into()).await
    }
}

fn begin(request: &FetchRequest) -> Result<(JsFuture, Abort), JsValue> {
    // Without a controller, a cancelled request runs to its end, which only costs bandwidth.
    let controller = AbortController::new().ok();
    let init = RequestInit::new();
    init.set_redirect(RequestRedirect::Error);
    init.set_signal(controller.as_ref().map(AbortController::signal).as_ref());
    let asked = Request::new_with_str_and_init(&request.url, &init)?;
    if request.start_byte > 0 {
        asked.headers().set("range", &format!("bytes={}-", request.start_byte))?;
    }
    for header in &request.headers {
        asked.headers().set(header.name, &header.value)?;
    }
    Ok((JsFuture::from(scope().fetch(&asked)), Abort(controller)))
}

/// Reads the body piece by piece, so that at most `body_bytes_max` bytes are kept.
async fn read(request: &FetchRequest, response: &Response) -> Result<FetchReply, FetchError> {
    let (status, success) = (response.status(), response.ok());
    let text = |name: &str| response.headers().get(name).ok().flatten();
    let header = text(request.header);
    let retry_after_s = text("retry-after").and_then(|text| text.trim().parse().ok());
    let bytes_max = if success { request.body_bytes_max } else { ERROR_BODY_BYTES_MAX };
    let mut body = Vec::new();
    let Some(stream) = response.body() else { return Ok(FetchReply { status, header, retry_after_s, body }) };
    let reader: ReadableStreamDefaultReader = stream.get_reader().unchecked_into();
    loop {
        let piece = match JsFuture::from(reader.read()).await {
            Ok(piece) => piece,
            Err(error) => {
                let (url, reason) = (request.url.clone(), thrown(&error));
                let status = Some(status);
                return Err(FetchError::Network { url, reason, status, header, partial: body });
            }
        };
        let field = |name: &str| Reflect::get(&piece, &name.into()).unwrap_or(JsValue::UNDEFINED);
        if field("done").is_truthy() {
            return Ok(FetchReply { status, header, retry_after_s, body });
        }
        let bytes: Uint8Array = field("value").unchecked_into();
        if success {
            request.count.add(bytes.length().into());
        }
        if body.len() as u64 + u64::from(bytes.length()) > bytes_max {
            if success {
                let url = request.url.clone();
                return Err(FetchError::TooLarge { url, body_bytes_max: bytes_max });
            }
            return Ok(FetchReply { status, header, retry_after_s, body });
        }
        body.extend_from_slice(&bytes.to_vec());
    }
}
