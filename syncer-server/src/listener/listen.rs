//! Accepts and serves connections.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tower_service::Service;

use super::connection_limits::{ConnectionGuard, ConnectionLimits, Full};
use super::connection_shares::Shares;
use super::host::{Names, check};
use super::proxy::{ConnectionBody, Contradiction, Proxies};
use super::slow::slow;
use super::stall_timeout::{STALL_MAX, TimeoutBody, WriteTimeoutStream};
use super::tls::Tls;

/// Time limit for a request's header, and for an idle connection until its next request. A browser sends a header in
/// one packet.
const HEADER_WAIT: Duration = Duration::from_secs(10);
/// Maximum size of a request's header, in bytes.
const HEADER_BYTES_MAX: usize = 32 << 10;
/// Retry delay for a refused peer, in seconds.
const RETRY_S: &str = "10";
/// Response to a request whose two forwarding headers name different clients.
const CONTRADICTION: &str =
    "Forwarded and X-Forwarded-For name different addresses: make the proxy pass on one of them\n";
/// Minimum and maximum delay after the system could not accept a connection. The usual cause is a lack of file
/// descriptors, which other connections release.
const ACCEPT_WAIT: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Limits, host names, proxies and certificate of a listener, which are checked for each connection.
#[derive(Clone)]
pub struct AcceptPolicy {
    pub(super) limits: ConnectionLimits,
    pub(super) names: Names,
    pub(super) proxies: Proxies,
    /// TLS acceptor. If present, connections without TLS are refused.
    pub(super) tls: Option<Tls>,
}

impl AcceptPolicy {
    /// Reloads changed certificates until `stopping` is true. Calls `on_result` with true if a new one is in use, false
    /// if it is unusable.
    pub async fn renew<F: Future<Output = ()>>(
        self,
        stopping: watch::Receiver<bool>,
        on_result: impl Fn(bool) -> F,
    ) {
        if let Some(tls) = self.tls {
            tls.renew(stopping, on_result).await;
        }
    }

    /// Returns the shares of long-lived connections for a server with several runs.
    pub fn shares(&self) -> Shares {
        Shares::new(self.limits.most())
    }
}

/// Serves requests until `stopping` is true.
pub async fn answer(
    listener: TcpListener,
    policy: AcceptPolicy,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let router = router.layer(middleware::from_fn(slow));
    let router = router.layer(middleware::from_fn_with_state(policy.names.clone(), check));
    let (mut wait, ended) = (ACCEPT_WAIT[0], stopping.clone());
    let mut stopped = pin!(async move { drop(stopping.wait_for(|stopped| *stopped).await) });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => return,
        };
        match accepted {
            Ok((stream, address)) => {
                wait = ACCEPT_WAIT[0];
                admit(stream, address.ip(), &policy, &router, &ended);
            }
            // The peer has already left; accept the next connection immediately.
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                if wait == ACCEPT_WAIT[0] {
                    tracing::error!(%error, open = policy.limits.count(), "cannot accept connections for a while");
                }
                sleep(wait).await;
                wait = (2 * wait).min(ACCEPT_WAIT[1]);
            }
        }
    }
}

/// Serves `stream` in a separate task if the limits allow another connection.
fn admit(
    stream: TcpStream,
    address: IpAddr,
    policy: &AcceptPolicy,
    router: &Router,
    ended: &watch::Receiver<bool>,
) {
    let is_trusted_proxy = policy.proxies.has(address);
    let guard = match policy.limits.acquire(address, is_trusted_proxy) {
        Ok(guard) => guard,
        Err(full) => {
            tracing::debug!(%address, ?full, "connection refused: too many connections");
            // A TLS client would not understand the refusal.
            if policy.tls.is_none() {
                refuse(&stream, full);
            }
            return;
        }
    };
    // Short messages must not wait for acknowledgements of earlier ones (Nagle, delayed ACK).
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let (policy, ended) = (policy.clone(), ended.clone());
    let caller = Caller { guard: Arc::new(guard), is_trusted_proxy, policy, router: router.clone() };
    tokio::spawn(async move {
        match caller.policy.tls.clone() {
            None => serve(WriteTimeoutStream::new(stream, STALL_MAX), caller, ended).await,
            Some(tls) => match tls.handshake(stream).await {
                Ok(stream) => serve(stream, caller, ended).await,
                Err(error) => tracing::debug!(%error, "TLS handshake failed"),
            },
        }
    });
}

/// A connection, with the state that its requests need.
struct Caller {
    /// The counted connection. The WebSocket of a learner keeps it when it takes over the connection.
    guard: Arc<ConnectionGuard>,
    /// True if the peer is a trusted proxy, which names its clients.
    is_trusted_proxy: bool,
    policy: AcceptPolicy,
    router: Router,
}

impl Caller {
    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        let forwarded = match self.is_trusted_proxy {
            true => self.policy.proxies.client(request.headers()),
            false => Ok(None),
        };
        let forwarded = match forwarded
            .map(|forwarded| forwarded.map(|address| self.policy.limits.acquire_forwarded(address)))
        {
            Ok(None) => None,
            Ok(Some(Ok(guard))) => Some(Arc::new(guard)),
            Ok(Some(Err(full))) => {
                let retry = [(header::RETRY_AFTER, RETRY_S)];
                return (StatusCode::SERVICE_UNAVAILABLE, retry, reason(full)).into_response();
            }
            Err(Contradiction) => return (StatusCode::BAD_REQUEST, CONTRADICTION).into_response(),
        };
        request.extensions_mut().insert(Arc::clone(forwarded.as_ref().unwrap_or(&self.guard)));
        let request = request.map(|body| Body::new(TimeoutBody::new(body, STALL_MAX)));
        let response = into_ok(self.router.clone().call(request).await);
        match forwarded {
            Some(guard) => response.map(|body| Body::new(ConnectionBody { body, _guard: guard })),
            None => response,
        }
    }
}

/// Serves requests on `stream`.
async fn serve<S>(stream: S, caller: Caller, mut ended: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let caller = Arc::new(caller);
    let answered = service_fn(move |request: Request<Incoming>| {
        let answered = Arc::clone(&caller).answer(request);
        async move { Ok::<Response<Body>, Infallible>(answered.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(HEADER_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answered).with_upgrades());
    let stopped = async move { drop(ended.wait_for(|stopped| *stopped).await) };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Unwraps the result of an infallible router.
fn into_ok<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

/// Returns the reason for a refusal as a sentence.
fn reason(full: Full) -> &'static str {
    match full {
        Full::All => "too many are connected: come back later\n",
        Full::Address => "too many connections come from your address: close some of them\n",
    }
}

/// Sends the reason of a refusal without waiting. The connection is closed when `stream` is dropped.
fn refuse(stream: &TcpStream, full: Full) {
    let why = reason(full);
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_S}\r\nconnection: close\r\n\
         content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\r\n{why}",
        why.len()
    );
    // Nothing has been sent on this connection yet, so its buffer has room for a few bytes.
    let _ = stream.try_write(answer.as_bytes());
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
