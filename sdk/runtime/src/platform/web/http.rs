//! HTTP GET by `fetch`.

use js_sys::{Reflect, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    AbortController, ReadableStreamDefaultReader, Request, RequestInit, RequestRedirect, Response,
};

use super::{scope, thrown};
use crate::platform::{FetchError, FetchReply, FetchRequest};

/// Maximum number of bytes read from the body of an error: enough for a message to people.
const ERROR_BODY_BYTES_MAX: u64 = 4 * 1024;

/// Ends the transfer when it is dropped.
struct Abort(Option<AbortController>);

impl Drop for Abort {
    fn drop(&mut self) {
        if let Some(controller) = &self.0 {
            controller.abort();
        }
    }
}

/// Sends `request`, in the background from this call on. Dropping the future ends the transfer.
///
/// # Errors
/// - [`FetchError::Network`]: there was no answer, or it was cut short.
/// - [`FetchError::TooLarge`]: the body exceeds `body_bytes_max`.
///
/// An answer with an error status is not an error here; its body is cut to 4 KiB.
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
    // Without a controller, an abandoned transfer runs to its end, which is only wasteful.
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

/// Reads the body piece by piece, so that it never holds more than the limit.
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
