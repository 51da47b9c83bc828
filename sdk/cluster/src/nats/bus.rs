//! Bus over core NATS messages. Large messages are split.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_core::cluster::{AsBytes, Notice, Reply};
use archipelago_core::wire::FragmentId;
use async_nats::Subscriber;
use futures::StreamExt;
use tokio::sync::mpsc;

use super::Nats;
use crate::chunking::{Chunks, MESSAGE_BYTES_MAX, split};
use crate::error::ServiceError;
use crate::service::{Answer, Bus, INBOX_MAX, Inbox};

/// Counter of a process's messages. Its random start makes the numbers unique across processes with high probability.
pub(super) struct Numbers(AtomicU64);

impl Numbers {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(crate::random()))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Nats {
    async fn say(&self, subject: String, bytes: Vec<u8>) -> Result<(), ServiceError> {
        let pieces = split(self.numbers.next(), &bytes).ok_or_else(|| ServiceError::Setting {
            place: format!("a message of {} bytes", bytes.len()),
            detail: format!("at most {MESSAGE_BYTES_MAX}: cut the model into more fragments"),
        })?;
        for piece in pieces {
            let sent = self.client.publish(subject.clone(), piece.into()).await;
            sent.map_err(|error| self.silent(&error.to_string()))?;
        }
        Ok(())
    }

    async fn listen<T: AsBytes + Send + 'static>(&self, subject: String) -> Result<Inbox<T>, ServiceError> {
        let subscriber = self.client.subscribe(subject.clone()).await;
        let subscriber = subscriber.map_err(|error| self.silent(&error.to_string()))?;
        let (sender, inbox) = mpsc::channel(INBOX_MAX);
        tokio::spawn(hear(subscriber, subject, sender));
        Ok(inbox)
    }
}

/// Reassembles incoming messages until the receiver is dropped.
async fn hear<T: AsBytes>(mut subscriber: Subscriber, subject: String, to: mpsc::Sender<T>) {
    let mut pieces = Chunks::default();
    let mut is_strange = false;
    loop {
        let message = tokio::select! {
            () = to.closed() => return,
            message = subscriber.next() => message,
        };
        let Some(message) = message else { return };
        let Some(bytes) = pieces.take(&message.payload) else { continue };
        match T::of_bytes(&bytes) {
            // A full inbox loses the message, as the network may.
            Ok(value) => drop(to.try_send(value)),
            Err(error) if !is_strange => {
                is_strange = true;
                tracing::warn!("ignored an invalid message on {subject}: {error}");
            }
            Err(_) => {}
        }
    }
}

impl Bus for Nats {
    fn tell<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> Answer<'a, ()> {
        let subject = format!("{}.notice.{fragment}", self.prefix);
        Box::pin(self.in_time(self.say(subject, notice.to_bytes())))
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> Answer<'a, ()> {
        let subject = format!("{}.reply.{fragment}", self.prefix);
        Box::pin(self.in_time(self.say(subject, reply.to_bytes())))
    }

    fn notices(&self, fragment: FragmentId) -> Answer<'_, Inbox<Notice>> {
        Box::pin(self.in_time(self.listen(format!("{}.notice.{fragment}", self.prefix))))
    }

    fn replies(&self, fragment: FragmentId) -> Answer<'_, Inbox<Reply>> {
        Box::pin(self.in_time(self.listen(format!("{}.reply.{fragment}", self.prefix))))
    }
}
