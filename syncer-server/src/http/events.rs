//! `/v1/events`: live events of the run, for pages.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, watch};

use super::App;
use super::admin::check_owner;
use crate::actor::News;
use crate::listener::{ConnectionGuard, ConnectionPermit, WrongSecret};

/// Maximum number of open event streams.
pub const WATCHERS_MAX: u32 = 256;
/// Streams of [`WATCHERS_MAX`] that are reserved for the owner, identified by its token.
const OWNER_WATCHERS: u32 = 8;
/// Streams of [`WATCHERS_MAX`] that are reserved for the owner and for clients on the syncer's machine. A local proxy
/// that adds no forwarding header counts as such a client.
const NEAR_WATCHERS: u32 = 8;

/// Headers in which a proxy names its client.
const FORWARDED: [&str; 2] = ["x-forwarded-for", "forwarded"];

/// Maximum number of events queued for one reader.
const EVENTS_AHEAD: usize = 4;

/// Time limit for a reader to take one event.
const EVENT_WITHIN: Duration = Duration::from_secs(30);

/// Headers that make a proxy forward events immediately. Without them nginx buffers events, and other proxies compress
/// them.
const AT_ONCE: [(HeaderName, &str); 2] =
    [(header::CACHE_CONTROL, "no-cache, no-transform"), (HeaderName::from_static("x-accel-buffering"), "no")];

/// Query parameters of `/v1/events`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// 1 also sends every event of the core, under the name `run`.
    raw: Option<u8>,
}

/// `/v1/events`. The stream sends `status` each second, changed `rounds` at most four times a second, each new `point`,
/// `evaluation` and `sample`, and `log` with lines of the run's log. With `?raw=1` it also sends every event of the
/// core, as `run`. A slow reader gets `lagged` with the number of missed events, and then a status.
pub async fn events(
    State(app): State<Arc<App>>,
    guard: Option<Extension<Arc<ConnectionGuard>>>,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, "use raw=1 or no parameters\n").into_response();
    };
    // A proxy on this machine also forwards requests of strangers, and marks them with a header.
    let is_near = guard.is_some_and(|guard| guard.is_local())
        && !FORWARDED.iter().any(|name| headers.contains_key(*name));
    let is_owner = check_owner(&app, &headers).is_ok();
    let kept = match (is_owner, is_near) {
        (true, _) => 0,
        (false, true) => OWNER_WATCHERS,
        (false, false) => OWNER_WATCHERS + NEAR_WATCHERS,
    };
    // The response is the same as without a token, but the wrong token counts as a guess.
    let is_wrong = !is_owner && headers.contains_key(header::AUTHORIZATION);
    let wrong = is_wrong.then_some(Extension(WrongSecret));
    let Some(seat) = Seat::take(&app, WATCHERS_MAX - kept) else {
        let why = "too many pages watch this run: try again later\n";
        return (StatusCode::SERVICE_UNAVAILABLE, wrong, why).into_response();
    };
    let sources = Sources {
        status: app.context.actor.status_watch(),
        news: app.context.actor.news(),
        raw: (query.raw == Some(1)).then(|| app.context.actor.events()),
        stopping: app.stopping.clone(),
        first: true,
        _seat: seat,
    };
    let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
    tokio::spawn(pump(sources, sender));
    let stream = stream::unfold(receiver, |mut receiver| async move {
        Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
    });
    let stream = Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)));
    (wrong, AT_ONCE, stream).into_response()
}

/// Sends events until the sources end or the reader stalls. A stalled reader must not keep its seat.
async fn pump(mut sources: Sources, reader: mpsc::Sender<Event>) {
    loop {
        let event = tokio::select! {
            event = sources.next() => event,
            () = reader.closed() => return,
        };
        let Some(event) = event else { return };
        if reader.send_timeout(event, EVENT_WITHIN).await.is_err() {
            return;
        }
    }
}

struct Sources {
    status: watch::Receiver<Arc<str>>,
    news: broadcast::Receiver<News>,
    raw: Option<broadcast::Receiver<Arc<str>>>,
    stopping: watch::Receiver<bool>,
    first: bool,
    _seat: Seat,
}

impl Sources {
    /// Returns the next event. Nothing is prepared for a stalled reader, which loses events instead.
    async fn next(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.first) {
            let status = Arc::clone(&self.status.borrow_and_update());
            return Some(Event::default().event("status").data(status));
        }
        let raw = async {
            match &mut self.raw {
                Some(raw) => raw.recv().await.map(|json| ("run", json)),
                None => std::future::pending().await,
            }
        };
        let news = tokio::select! {
            // The last status is sent before the stream ends, because it shows whether the run is complete.
            biased;
            changed = self.status.changed() => {
                changed.ok()?;
                Ok(("status", Arc::clone(&self.status.borrow_and_update())))
            }
            news = self.news.recv() => news,
            event = raw => event,
            _ = self.stopping.wait_for(|stopping| *stopping) => return None,
        };
        match news {
            Ok((name, json)) => Some(Event::default().event(name).data(json)),
            Err(RecvError::Lagged(missed)) => Some(Event::default().event("lagged").data(missed.to_string())),
            Err(RecvError::Closed) => None,
        }
    }
}

/// One of the [`WATCHERS_MAX`] permitted event streams.
struct Seat {
    app: Arc<App>,
    _permit: Option<ConnectionPermit>,
}

impl Seat {
    /// Takes a seat if fewer than `most` are taken and the run's share of connections has a free one.
    fn take(app: &Arc<App>, most: u32) -> Option<Self> {
        let taken = app.take_share()?;
        let more = |watchers: u32| (watchers < most).then_some(watchers + 1);
        app.watchers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { app: Arc::clone(app), _permit: taken })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.app.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
