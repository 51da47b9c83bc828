//! Routes for parameters and training data: immutable, cacheable files with range requests.

use std::sync::Arc;

use archipelago_core::bytes::hex;
use archipelago_core::diloco::{FragmentId, Version, binary16};
use archipelago_core::model::FrozenWeights;
use archipelago_core::wire::http::{self, INVITE_HEADER, PASS_HEADER};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::transfer_slots::Peer;
use super::{App, hats};
use crate::listener::ConnectionGuard;

/// Response header with the version in the body.
const VERSION_HEADER: HeaderName = HeaderName::from_static(http::VERSION_HEADER);

/// Retry delay for a peer that gets no slot, in seconds.
const RETRY_S: u16 = 2;

/// Cache policy: the content of a version or shard never changes.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// Cache policy of a run that requires invites. A shared cache would serve peers without one.
const IMMUTABLE_PRIVATE: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");

/// Content type that browsers do not display.
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Answers with the current Θ̂ of one fragment, two bytes per value, regardless of the requested version. Redirects to
/// the current version would never end for a peer whose latency exceeds the time between two merges. A range request
/// gets the requested version if the server still has it.
pub async fn fragment(
    State(app): State<Arc<App>>,
    guard: Option<Extension<Arc<ConnectionGuard>>>,
    Path((run, fragment, version)): Path<(String, u16, u64)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let (fragment, version) = (FragmentId(fragment), Version(version));
    let Some(&len) = app.context.fragment_lens.get(usize::from(fragment.0)) else {
        return (StatusCode::NOT_FOUND, "there is no such fragment\n").into_response();
    };
    let Some(slot) = app.slots.slot(&peer(&app, guard, &headers)).await else { return busy() };
    let resumed = headers.get(header::RANGE).and_then(|_| app.hats.kept(fragment, version));
    let (current, bytes) = match resumed {
        Some(bytes) => (version, bytes),
        None => match app.context.actor.hat(fragment).await {
            Some((current, hat)) => app.hats.newest(fragment, current, &hat),
            None => return (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
        },
    };
    debug_assert_eq!(bytes.len() as u64, binary16::BYTES as u64 * len);
    let bytes = hats::sent(bytes);
    let send = |bytes| app.slots.send(bytes, slot);
    let version_header = [(VERSION_HEADER, HeaderValue::from(current.0))];
    let (response, sent) = if current == version {
        file(bytes, send, &http::fragment_tag(&run, fragment, version), lasting(&app), &headers)
    } else {
        // The version differs from the requested one. It is sent whole, because all ranges must be of one version, and
        // is not cacheable.
        let len = bytes.len() as u64;
        let common = [
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (header::CONTENT_TYPE, BINARY),
            (header::CONTENT_LENGTH, len.into()),
        ];
        ((common, send(bytes)).into_response(), len)
    };
    app.context.meters.fetched(sent);
    (version_header, response).into_response()
}

/// Answers with one shard of training tokens.
pub async fn shard(
    State(app): State<Arc<App>>,
    Path((run, index)): Path<(String, usize)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let (Some(bytes), Some(spec)) = (app.corpus.shards.get(index), app.corpus.spec.shards.get(index)) else {
        return (StatusCode::NOT_FOUND, "there is no such shard\n").into_response();
    };
    let (response, sent) =
        file(bytes.clone(), Body::from, &format!("\"{}\"", hex(&spec.sha256)), lasting(&app), &headers);
    app.context.meters.data(sent);
    response
}

/// Returns the bytes of `weights` without a copy. All answers share them.
pub fn frozen_bytes(weights: Arc<FrozenWeights>) -> Bytes {
    struct Shared(Arc<FrozenWeights>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }
    Bytes::from_owner(Shared(weights))
}

/// Answers with a part of the frozen weights.
pub async fn frozen(
    State(app): State<Arc<App>>,
    guard: Option<Extension<Arc<ConnectionGuard>>>,
    Path((run, part)): Path<(String, u32)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let found =
        app.exports.spec().frozen.as_ref().zip(app.frozen.as_ref()).and_then(|(order_response, bytes)| {
            let (start, end) = order_response.range(part)?;
            Some((
                format!("\"{}\"", hex(order_response.checksum(part)?)),
                bytes.slice(start as usize..end as usize),
            ))
        });
    let Some((tag, bytes)) = found else {
        return (StatusCode::NOT_FOUND, "there is no such part of frozen weights\n").into_response();
    };
    let Some(slot) = app.slots.slot(&peer(&app, guard, &headers)).await else { return busy() };
    let send = |bytes| app.slots.send(bytes, slot);
    let (response, sent) = file(bytes, send, &tag, lasting(&app), &headers);
    app.context.meters.fetched(sent);
    response
}

/// Returns the response for a peer that gets no transfer slot.
fn busy() -> Response {
    let retry = [(header::RETRY_AFTER, HeaderValue::from(RETRY_S))];
    (StatusCode::SERVICE_UNAVAILABLE, retry, "many others are fetching parameters: try again later\n")
        .into_response()
}

/// Answers with the held-out windows.
pub async fn held_out(State(app): State<Arc<App>>, Path(run): Path<String>, headers: HeaderMap) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let Some(bytes) = &app.held_out else {
        return (StatusCode::NOT_FOUND, "this run has no held-out text\n").into_response();
    };
    let (response, sent) =
        file(bytes.clone(), Body::from, &format!("\"{run}-held-out\""), lasting(&app), &headers);
    app.context.meters.data(sent);
    response
}

/// Returns the peer of a request: a member if `headers` have a valid pass, otherwise the address of its connection.
fn peer(app: &App, guard: Option<Extension<Arc<ConnectionGuard>>>, headers: &HeaderMap) -> Peer {
    let pass = headers.get(PASS_HEADER).map(HeaderValue::as_bytes);
    match pass.filter(|pass| app.context.admission.holds_pass(pass)) {
        Some(pass) => Peer::Member(pass.into()),
        None => guard.and_then(|guard| guard.address()).map_or(Peer::Unknown, Peer::Address),
    }
}

/// Returns the refusal of a request that has no valid invite or pass, or that is for another run.
pub(super) fn refused(app: &App, run: &str, headers: &HeaderMap) -> Option<Response> {
    let shown = |name| headers.get(name).map(HeaderValue::as_bytes);
    if !app.context.admission.may_fetch(shown(INVITE_HEADER), shown(PASS_HEADER)) {
        let why = format!("this run is for the invited: send the invite in {INVITE_HEADER}, or join it\n");
        return Some((StatusCode::FORBIDDEN, why).into_response());
    }
    if run != app.run {
        let why = format!("this is run {}: join it again\n", app.run);
        return Some((StatusCode::NOT_FOUND, why).into_response());
    }
    None
}

/// Returns the cache policy for files whose content never changes.
fn lasting(app: &App) -> HeaderValue {
    if app.context.admission.is_by_invite() { IMMUTABLE_PRIVATE } else { IMMUTABLE }
}

/// Returns the response with `bytes`, or with the range that `request` asks for (RFC 9110), and the number of bytes
/// sent. If `request` shows that the peer already has the content, the response has no body.
fn file(
    bytes: Bytes,
    send: impl FnOnce(Bytes) -> Body,
    etag: &str,
    lasting: HeaderValue,
    request: &HeaderMap,
) -> (Response, u64) {
    let etag_header = HeaderValue::from_str(etag).expect("tags are hexadecimal and digits");
    let common = [
        (header::ETAG, etag_header),
        (header::CACHE_CONTROL, lasting),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::CONTENT_TYPE, BINARY),
    ];
    let text = |name| request.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(header::IF_NONE_MATCH).is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag)) {
        return ((StatusCode::NOT_MODIFIED, common).into_response(), 0);
    }
    // A range of changed content is useless to the peer, which then gets everything.
    let range = text(header::RANGE).filter(|_| text(header::IF_RANGE).is_none_or(|tag| tag == etag));
    let len = bytes.len() as u64;
    match range.map_or(Range::Whole, |range| parse_range(range, len)) {
        Range::Whole => {
            let length = [(header::CONTENT_LENGTH, len)];
            ((StatusCode::OK, common, length, send(bytes)).into_response(), len)
        }
        Range::Part(start, end) => {
            let length = [(header::CONTENT_LENGTH, end - start)];
            let content_range = [(header::CONTENT_RANGE, format!("bytes {start}-{}/{len}", end - 1))];
            let part = send(bytes.slice(start as usize..end as usize));
            ((StatusCode::PARTIAL_CONTENT, common, length, content_range, part).into_response(), end - start)
        }
        Range::Outside => {
            let content_range = [(header::CONTENT_RANGE, format!("bytes */{len}"))];
            ((StatusCode::RANGE_NOT_SATISFIABLE, content_range).into_response(), 0)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// The whole content: there is no range, or it may be ignored.
    Whole,
    /// A half-open range of bytes, from the first value to the second.
    Part(u64, u64),
    /// A range entirely outside the content.
    Outside,
}

/// Parses a single range in `text`, for content of `len` bytes. Several ranges and other units are ignored.
fn parse_range(text: &str, len: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (number(first), number(last)) {
        (Some(start), _) if start >= len => Range::Outside,
        (Some(start), Some(last)) if last >= start => Range::Part(start, len.min(last.saturating_add(1))),
        (Some(start), None) if last.trim().is_empty() => Range::Part(start, len),
        (None, Some(0)) if first.trim().is_empty() => Range::Outside,
        (None, Some(suffix)) if first.trim().is_empty() && len > 0 => {
            Range::Part(len.saturating_sub(suffix), len)
        }
        _ => Range::Whole,
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::{Preset, layout};
    use archipelago_core::wire::FrozenForm;

    use super::*;

    #[test]
    fn reads_ranges() {
        let check = |text, expected| assert_eq!(parse_range(text, 10), expected, "{text}");
        check("bytes=0-3", Range::Part(0, 4));
        check("bytes=4-", Range::Part(4, 10));
        check("bytes=4-100", Range::Part(4, 10));
        check("bytes=-3", Range::Part(7, 10));
        check("bytes=-30", Range::Part(0, 10));
        check("bytes=10-", Range::Outside);
        check("bytes=-0", Range::Outside);
        check("bytes=5-4", Range::Whole);
        check("bytes=0-1,3-4", Range::Whole);
        check("lines=0-1", Range::Whole);
        check("bytes=a-b", Range::Whole);
        assert_eq!(parse_range("bytes=0-", 0), Range::Outside);
    }

    /// Goal: slow readers do not multiply the frozen weights in memory.
    #[test]
    fn all_answers_share_the_frozen_weights() {
        let spec = Preset::Tiny.model(256);
        let params = vec![0.5; layout(&spec.base()).unwrap().len()];
        let weights = Arc::new(FrozenWeights::quantised(&spec, &params, FrozenForm::F16).unwrap());
        let (first, second) = (frozen_bytes(Arc::clone(&weights)), frozen_bytes(Arc::clone(&weights)));
        let part = first.slice(10..20);
        assert_eq!(part.as_ptr(), weights.bytes()[10..].as_ptr());
        assert_eq!(part.as_ptr(), second.slice(10..20).as_ptr());
    }
}
