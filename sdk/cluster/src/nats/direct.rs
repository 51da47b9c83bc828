//! Several messages of a stream for one question, from whichever server is nearest: perhaps not the newest.

use async_nats::{Client, HeaderMap, StatusCode};
use bytes::Bytes;
use futures::StreamExt;

/// A message of a stream.
pub(super) struct Got {
    /// Its number in the stream.
    pub(super) seq: u64,
    /// Its subject.
    pub(super) subject: String,
    /// What it says.
    pub(super) payload: Bytes,
}

/// Asks `stream` for what `question` says, in the terms of NATS's direct access; what there is, and how much more.
///
/// # Errors
/// A word on why there is no answer.
pub(super) async fn get(client: &Client, stream: &str, question: String) -> Result<(Vec<Got>, u64), String> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    client.publish_with_reply(subject, inbox, question.into()).await.map_err(|error| error.to_string())?;
    let mut got = Vec::new();
    while let Some(answer) = answers.next().await {
        let headers = answer.headers.unwrap_or_default();
        match answer.status {
            None | Some(StatusCode::OK) => {
                let seq = number(&headers, "Nats-Sequence").ok_or("an answer without a number")?;
                let subject = headers.get("Nats-Subject").map(ToString::to_string).unwrap_or_default();
                got.push(Got { seq, subject, payload: answer.payload });
            }
            // The end of what there is.
            Some(status) if status.as_u16() == 204 => {
                return Ok((got, number(&headers, "Nats-Num-Pending").unwrap_or_default()));
            }
            Some(StatusCode::NOT_FOUND) => return Ok((got, 0)),
            Some(status) => {
                return Err(format!("{status} {}", answer.description.unwrap_or_default()));
            }
        }
    }
    Err("the connection ended".to_owned())
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.as_str().parse().ok()
}
