//! Direct reads of a stream from the nearest server, which may lag behind.

use async_nats::{Client, HeaderMap, Message, StatusCode};
use bytes::Bytes;
use futures::StreamExt;

/// Message of a stream.
pub(super) struct Got {
    /// Sequence number in the stream.
    pub(super) seq: u64,
    /// Subject of the message.
    pub(super) subject: String,
    /// Content of the message.
    pub(super) payload: Bytes,
}

/// Sends a request of NATS's direct access to `stream`. Returns the messages and the number of further ones.
///
/// # Errors
/// A description of the missing or failed answer.
pub(super) async fn get(client: &Client, stream: &str, question: String) -> Result<(Vec<Got>, u64), String> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    client.publish_with_reply(subject, inbox, question.into()).await.map_err(|error| error.to_string())?;
    let mut got = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.status {
            None | Some(StatusCode::OK) => got.push(read(answer)?),
            // End of the batch.
            Some(status) if status.as_u16() == 204 => {
                let headers = answer.headers.unwrap_or_default();
                return Ok((got, number(&headers, "Nats-Num-Pending").unwrap_or_default()));
            }
            Some(StatusCode::NOT_FOUND) => return Ok((got, 0)),
            Some(status) => return Err(refused(status, &answer)),
        }
    }
    Err("the connection ended".to_owned())
}

/// Reads a single message of `stream`, or `None` if it does not exist.
///
/// # Errors
/// A description of the missing or failed answer.
pub(super) async fn one(client: &Client, stream: &str, question: String) -> Result<Option<Got>, String> {
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    let answer = client.request(subject, question.into()).await.map_err(|error| error.to_string())?;
    match answer.status {
        None | Some(StatusCode::OK) => read(answer).map(Some),
        Some(StatusCode::NOT_FOUND) => Ok(None),
        Some(status) => Err(refused(status, &answer)),
    }
}

fn read(answer: Message) -> Result<Got, String> {
    let headers = answer.headers.unwrap_or_default();
    let seq = number(&headers, "Nats-Sequence").ok_or("an answer without a number")?;
    let subject = headers.get("Nats-Subject").map(ToString::to_string).unwrap_or_default();
    Ok(Got { seq, subject, payload: answer.payload })
}

fn refused(status: StatusCode, answer: &Message) -> String {
    format!("{status} {}", answer.description.as_deref().unwrap_or_default())
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.as_str().parse().ok()
}
