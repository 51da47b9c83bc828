//! `/v1/ws`: checks a request before its WebSocket opens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_core::wire::{ConnId, SUBPROTOCOL};
use axum::Extension;
use axum::extract::{State, WebSocketUpgrade};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::connection::{self, Peer};
use crate::listener::ConnectionGuard;

/// Opens the WebSocket of a learner.
pub async fn upgrade(
    State(app): State<Arc<App>>,
    place: Option<Extension<Arc<ConnectionGuard>>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    if !is_allowed(&app, &headers) {
        let why = "this origin may not join: start the server with --allow-origin and its address\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let asked = upgrade.requested_protocols().any(|protocol| protocol == SUBPROTOCOL);
    let other = upgrade.requested_protocols().find_map(|protocol| {
        let text = protocol.to_str().ok()?;
        let version = text.strip_prefix(SUBPROTOCOL.trim_end_matches(|c: char| c.is_ascii_digit()))?;
        version.parse::<u16>().ok().map(|_| text.to_owned())
    });
    if !asked && other.is_none() && upgrade.requested_protocols().next().is_some() {
        let why = format!("this server speaks {SUBPROTOCOL} only: use a learner of the same version\n");
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    if *app.stopping.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the server stops: come back later\n").into_response();
    }
    let peer = Peer::new(place.map(|Extension(place)| place), app.share.clone());
    let open = app.open.clone();
    if let Some(other) = other.filter(|_| !asked) {
        // Learners of other versions understand a goodbye message. They would take a refused request for an absent
        // syncer.
        return connection::limit(upgrade).protocols([other.clone()]).on_upgrade(move |socket| async move {
            connection::reject_version(socket, &other, &peer).await;
            drop(open);
        });
    }
    let conn = ConnId(app.next_conn.fetch_add(1, Ordering::Relaxed));
    let context = app.context.clone();
    connection::limit(upgrade).protocols([SUBPROTOCOL]).on_upgrade(move |socket| async move {
        // `open` keeps the connection counted until its socket is closed.
        connection::serve(socket, conn, context, peer).await;
        drop(open);
    })
}

/// Maximum number of log lines about pages from other origins.
const FOREIGN_TOLD_MAX: u32 = 10;

/// Returns true if the request's origin is allowed. Programs send no origin. Browsers do, and only our own pages or
/// pages of a listed origin may join.
fn is_allowed(app: &App, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let allowed = is_listed(app, origin) || is_own(origin, headers.get(header::HOST));
    // The browser hides the reason from the page, so the log reports it, a limited number of times.
    if !allowed && app.foreign.fetch_add(1, Ordering::Relaxed) < FOREIGN_TOLD_MAX {
        tracing::warn!(?origin, "refused a page of another origin: give --allow-origin to admit it");
    }
    allowed
}

/// Returns true if `origin` was given with `--allow-origin`.
pub(super) fn is_listed(app: &App, origin: &HeaderValue) -> bool {
    app.allow_origin.iter().any(|listed| listed.trim_end_matches('/').as_bytes() == origin.as_bytes())
}

fn is_own(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let origin = origin.to_str().ok();
    let place = origin.and_then(|text| text.strip_prefix("http://").or(text.strip_prefix("https://")));
    place.is_some_and(|place| host.is_some_and(|host| host.as_bytes() == place.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_origin_is_scheme_and_host() {
        let check = |origin: &'static str, host: &'static str, expected| {
            let (origin, host) = (HeaderValue::from_static(origin), HeaderValue::from_static(host));
            assert_eq!(is_own(&origin, Some(&host)), expected, "{origin:?} {host:?}");
        };
        check("http://a.example:7700", "a.example:7700", true);
        check("https://a.example", "a.example", true);
        check("http://b.example:7700", "a.example:7700", false);
        check("http://a.example:7700.evil", "a.example:7700", false);
        check("null", "null", false);
        assert!(!is_own(&HeaderValue::from_static("http://a"), None));
    }
}
