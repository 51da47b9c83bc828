//! HTTP request of a run, and the interpretation of its answer.

use archipelago_core::text::plain;
use archipelago_core::wire::http::{INVITE_HEADER, PASS_HEADER, VERSION_HEADER};
use archipelago_core::wire::{Invite, clip};
use archipelago_runtime::platform::{
    ByteCount, FetchError, FetchReply, FetchRequest, RequestHeader, fetch, sleep,
};

use super::Address;

/// Maximum wait for a busy syncer, in seconds.
const RETRY_S_MAX: u32 = 30;

pub(super) type Reply = Result<FetchReply, FetchError>;

/// Fetches, and delays the answer of a busy syncer by the time that it asks for.
pub(super) async fn patient(request: FetchRequest) -> Reply {
    let reply = fetch(request).await;
    if let Ok(FetchReply { status: 503, retry_after_s: Some(seconds), .. }) = &reply {
        sleep(1_000 * u64::from(RETRY_S_MAX.min(*seconds))).await;
    }
    reply
}

/// Returns the request for `path` from `start_byte` on, if the server still has the `tag`. Invite and pass are sent in
/// headers, since addresses end up in logs.
pub(super) fn request(
    (address, pass, count): (&Address, Option<&str>, &ByteCount),
    path: &str,
    start_byte: u64,
    body_bytes_max: u64,
    tag: Option<String>,
) -> FetchRequest {
    let pass = pass.map(|pass| RequestHeader { name: PASS_HEADER, value: pass.to_owned() });
    let if_range = tag.map(|value| RequestHeader { name: "if-range", value });
    FetchRequest {
        url: address.http_url(path),
        start_byte,
        body_bytes_max,
        headers: [address.invite().map(invite_header), pass, if_range].into_iter().flatten().collect(),
        header: VERSION_HEADER,
        count: count.clone(),
    }
}

fn invite_header(invite: &Invite) -> RequestHeader {
    RequestHeader { name: INVITE_HEADER, value: invite.expose().to_owned() }
}

/// Returns the syncer's message in place of a successful answer.
pub(super) fn refusal(reply: &FetchReply) -> String {
    let text = String::from_utf8_lossy(&reply.body);
    format!("HTTP status {}: {}", reply.status, plain(clip(text.trim(), 200)))
}
