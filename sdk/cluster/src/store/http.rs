//! HTTP connector of the store with this repository's existing client, on blocking threads.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Body;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use ureq::Agent;

use crate::timestamp;

/// Time limit for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Time without data after which a request fails.
const SILENCE: Duration = Duration::from_secs(5);
/// Maximum length of an answer in bytes: a state of 400 million values.
const ANSWER_BYTES_MAX: u64 = 4 << 30;

/// Offset of a server's clock from ours by its last answer, in milliseconds with a precision of a second; positive if
/// ahead.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead(Arc<Mutex<Option<i64>>>);

impl Ahead {
    /// Returns the offset, if the server gave a date.
    pub(super) fn ms(&self) -> Option<i64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the `date` in the answer to a request that was sent at `asked_ms`.
    fn note(&self, asked_ms: i64, date: &str) {
        if let Some(date_ms) = timestamp::of_header(date) {
            // The date has whole seconds; half a second is the best estimate.
            let ahead_ms = date_ms + 500 - asked_ms.midpoint(timestamp::now_ms());
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead_ms);
        }
    }
}

/// Factory of clients that record the server's clock.
#[derive(Debug)]
pub(super) struct Connector(pub(super) Ahead);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_recv_response(Some(SILENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Ok(HttpClient::new(Service(config.new_agent(), self.0.clone())))
    }
}

#[derive(Debug)]
struct Service(Agent, Ahead);

impl HttpService for Service {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (agent, ahead) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = whole(body).await?;
            let done = tokio::task::spawn_blocking(move || {
                let asked_ms = timestamp::now_ms();
                let answer = agent.run(ureq::http::Request::from_parts(head, &body[..]))?;
                let (head, mut body) = answer.into_parts();
                if let Some(date) = head.headers.get("date").and_then(|date| date.to_str().ok()) {
                    ahead.note(asked_ms, date);
                }
                let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
                Ok(HttpResponse::from_parts(head, HttpResponseBody::from(body)))
            });
            match done.await {
                Ok(done) => done.map_err(trouble),
                Err(error) => Err(HttpError::new(HttpErrorKind::Unknown, error)),
            }
        })
    }
}

/// Reads a whole body.
async fn whole(mut body: HttpRequestBody) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::with_capacity(body.content_length());
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Some(part) = frame?.data_ref() {
            bytes.extend_from_slice(part);
        }
    }
    Ok(bytes)
}

fn trouble(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => HttpErrorKind::Connect,
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
