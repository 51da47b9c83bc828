//! Accepting connections, and answering them.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tower_service::Service;

use super::crowd::{Crowd, Full, Place};
use super::host::{Names, check};
use super::patience::{Coming, Going, STALL_MAX};
use super::shares::Shares;
use super::slow::slow;

/// Longest time from the beginning of a request's header to its end, and that a connection waits for its next request.
/// A browser sends a header in one packet.
const HEADER_WAIT: Duration = Duration::from_secs(10);
/// Largest header of a request, in bytes.
const HEADER_BYTES_MAX: usize = 32 << 10;
/// Wait after the system had no connection to give: files that others close are what it then lacks.
const ACCEPT_WAIT: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// What is checked of everybody.
#[derive(Clone)]
pub struct Door {
    crowd: Crowd,
    names: Names,
}

impl Door {
    /// A door for `connections_max` in all, `address_max` from one address, that answers to `names`.
    pub fn new(connections_max: u32, address_max: u32, names: Names) -> Self {
        Self { crowd: Crowd::new(connections_max, address_max), names }
    }

    /// What several runs behind it may hold for long.
    pub fn shares(&self) -> Shares {
        Shares::new(self.crowd.most())
    }
}

/// Answers requests until told to stop.
pub async fn answer(listener: TcpListener, door: Door, router: Router, mut stopping: watch::Receiver<bool>) {
    let router = router.layer(middleware::from_fn(slow));
    let router = router.layer(middleware::from_fn_with_state(door.names, check));
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
                admit(stream, address.ip(), &door.crowd, &router, &ended);
            }
            // Somebody who went away again is nothing to wait for.
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                if wait == ACCEPT_WAIT[0] {
                    tracing::error!(%error, open = door.crowd.count(), "no connection can be taken for a while");
                }
                sleep(wait).await;
                wait = (2 * wait).min(ACCEPT_WAIT[1]);
            }
        }
    }
}

/// Answers `stream` in a task of its own, if there is room.
fn admit(stream: TcpStream, address: IpAddr, crowd: &Crowd, router: &Router, ended: &watch::Receiver<bool>) {
    match crowd.enter(address) {
        Ok(place) => {
            // Short messages must not wait for the acknowledgement of those before (Nagle, delayed ACK).
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection stays slow");
            }
            tokio::spawn(serve(stream, place, router.clone(), ended.clone()));
        }
        Err(full) => {
            tracing::debug!(%address, ?full, "a connection too many");
            refuse(&stream, full);
        }
    }
}

async fn serve(stream: TcpStream, place: Place, router: Router, mut ended: watch::Receiver<bool>) {
    // Whoever takes the connection over, as a learner's socket does, takes its place along.
    let place = Arc::new(place);
    let answered = service_fn(move |mut request: Request<Incoming>| {
        let mut router = router.clone();
        request.extensions_mut().insert(Arc::clone(&place));
        let request = request.map(|body| Body::new(Coming::new(body, STALL_MAX)));
        async move { Ok::<Response<Body>, Infallible>(into_ok(router.call(request).await)) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(HEADER_BYTES_MAX);
    let mut connection =
        pin!(http.serve_connection(TokioIo::new(Going::new(stream, STALL_MAX)), answered).with_upgrades());
    let stopped = async move { drop(ended.wait_for(|stopped| *stopped).await) };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// A router has an answer to everything.
fn into_ok<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

/// Says why, as far as that costs nothing, and hangs up.
fn refuse(stream: &TcpStream, full: Full) {
    let why = match full {
        Full::All => "too many are connected: come back later\n",
        Full::Address => "too many connections come from your address: close some of them\n",
    };
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\nconnection: close\r\n\
         content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\r\n{why}",
        why.len()
    );
    // Nothing has been sent on this connection, so it has room for a few bytes.
    let _ = stream.try_write(answer.as_bytes());
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
