//! Browser platform: the interfaces that pages and workers share.

mod http;
mod socket;

use std::fs::File;
use std::io;
use std::path::Path;

use js_sys::{Function, Promise, Uint8Array};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Crypto, MessageChannel, Performance, Request};

pub use http::fetch;
pub use socket::Socket;

use archipelago_core::time::Millis;

use super::RandomError;

#[wasm_bindgen]
extern "C" {
    /// The global object of a page or of a worker.
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

/// Returns the message of a value thrown by the browser.
fn thrown(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => format!("{error:?}"),
    }
}

/// A monotonic clock that starts at [`Clock::start`].
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

/// Waits `ms` milliseconds; longer in a hidden page.
pub async fn sleep(ms: u64) {
    let wait = Promise::new(&mut |resolve, _| {
        scope().set_timeout(&resolve, ms as f64);
    });
    // A timer cannot fail.
    JsFuture::from(wait).await.ok();
}

/// Lets the browser process pending messages, timers and GPU callbacks. It uses no timer, so hidden pages are not
/// slowed down.
pub async fn yield_now() {
    let turn = Promise::new(&mut |resolve, _| {
        // Without channels it continues at once, which only delays other work.
        let Ok(channel) = MessageChannel::new() else { return drop(resolve.call0(&JsValue::NULL)) };
        channel.port1().set_onmessage(Some(&resolve));
        channel.port2().post_message(&JsValue::NULL).ok();
    });
    JsFuture::from(turn).await.ok();
}

/// Opens a file that only its owner may read. Always fails, because browsers have no files.
///
/// # Errors
/// Always.
pub fn open_private(path: &Path) -> io::Result<File> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!("a browser cannot read the file {}", path.display()),
    ))
}

/// Returns `N` unpredictable bytes, for identities and for jitter.
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
