//! HTTP for the store by the client that this repository has already, on threads that may wait.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use hyper::body::Body;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use ureq::Agent;

/// A connection is made within that time.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A server that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer at most: a state of 400 million values.
const ANSWER_BYTES_MAX: u64 = 4 << 30;

/// Makes clients.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_recv_response(Some(SILENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Ok(HttpClient::new(Service(config.new_agent())))
    }
}

#[derive(Debug)]
struct Service(Agent);

impl HttpService for Service {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let agent = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = whole(body).await?;
            let done = tokio::task::spawn_blocking(move || {
                let answer = agent.run(ureq::http::Request::from_parts(head, &body[..]))?;
                let (head, mut body) = answer.into_parts();
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

/// All of a body.
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
