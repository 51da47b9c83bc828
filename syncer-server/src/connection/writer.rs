//! The writing half of a connection: short messages before parameters, and a goodbye before both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use archipelago_core::wire::{Bye, CLOSE_REASON_BYTES_MAX, Challenge, Message, clip, encode};
use axum::body::Bytes;
use axum::extract::ws::{self, CloseFrame, WebSocket};
use futures::SinkExt;
use futures::stream::SplitSink;
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use super::{BYE_WITHIN, Peer};
use crate::meters::{Meters, Phase};
use crate::outbox::{Bulk, Outgoing, Queues};

/// Interval between the server's pings.
const PING_EVERY: Duration = Duration::from_secs(10);

/// The writing half of a connection.
pub(super) struct Writer {
    sink: SplitSink<WebSocket, ws::Message>,
    meters: Arc<Meters>,
    /// Number of probes that were sent and not answered.
    probes: Arc<AtomicU32>,
    peer: Arc<Peer>,
}

/// Reasons to stop sending.
enum Stop {
    /// A goodbye, to be sent first.
    Bye(Bye),
    /// The socket is broken.
    Broken,
}

impl Writer {
    /// Creates a writer to `sink` that counts unanswered probes in `probes`.
    pub(super) fn new(
        sink: SplitSink<WebSocket, ws::Message>,
        meters: Arc<Meters>,
        probes: Arc<AtomicU32>,
        peer: Arc<Peer>,
    ) -> Self {
        Self { sink, meters, probes, peer }
    }

    /// Sends the challenge, then the queued messages.
    pub(super) async fn open(mut self, challenge: Challenge, queues: Queues) {
        let bytes = encode(&Message::Challenge(challenge));
        self.meters.down(Phase::Join, bytes.len());
        if self.sink.send(ws::Message::Binary(bytes.into())).await.is_ok() {
            self.run(queues).await;
        }
    }

    async fn run(mut self, mut queues: Queues) {
        if let Stop::Bye(bye) = self.pump(&mut queues).await {
            // A peer that does not read cannot get the goodbye; the time limit ends the attempt.
            let _ = timeout(BYE_WITHIN, self.finish(bye, queues.control)).await;
        }
    }

    /// Sends queued messages frame by frame until there is a goodbye: short messages first, then parameters.
    async fn pump(&mut self, queues: &mut Queues) -> Stop {
        let mut ping = interval(PING_EVERY);
        ping.reset();
        let mut bulk: Option<(Bulk, usize)> = None;
        loop {
            let sent = tokio::select! {
                biased;
                Some(bye) = queues.bye.recv() => return Stop::Bye(bye),
                control = queues.control.recv() => match control {
                    Some(outgoing) => {
                        if outgoing.is_welcome {
                            self.peer.admit();
                        }
                        self.send_all(&outgoing, queues).await
                    }
                    // The actor dropped its end.
                    None => return goodbye_or(queues),
                },
                Some(number) = queues.probes.recv() => {
                    self.probes.fetch_add(1, Ordering::Relaxed);
                    let payload = Bytes::copy_from_slice(&number.to_be_bytes());
                    self.send(ws::Message::Ping(payload), queues).await.map(|()| {
                        self.meters.down(Phase::Run, size_of::<u64>());
                    })
                }
                _ = ping.tick() => self.send(ws::Message::Ping(Bytes::new()), queues).await.map(|()| {
                    self.meters.down(Phase::Run, 0);
                }),
                Some(message) = queues.bulk.recv(), if bulk.is_none() => {
                    bulk = Some((message, 0));
                    Ok(())
                }
                () = std::future::ready(()), if bulk.is_some() => {
                    let (message, index) = bulk.take().expect("checked by the branch");
                    let sent = self.send_frame(&message.outgoing, index, queues).await;
                    bulk = (index + 1 < message.outgoing.frames.len()).then_some((message, index + 1));
                    sent
                }
            };
            if let Err(stop) = sent {
                return stop;
            }
        }
    }

    async fn send_all(&mut self, outgoing: &Outgoing, queues: &mut Queues) -> Result<(), Stop> {
        for index in 0..outgoing.frames.len() {
            self.send_frame(outgoing, index, queues).await?;
        }
        Ok(())
    }

    async fn send_frame(
        &mut self,
        outgoing: &Outgoing,
        index: usize,
        queues: &mut Queues,
    ) -> Result<(), Stop> {
        let frame = outgoing.frames[index].clone();
        let bytes = frame.len();
        self.send(ws::Message::Binary(frame), queues).await?;
        self.meters.down(outgoing.phase, bytes);
        if index + 1 == outgoing.frames.len() {
            self.meters.values_down(outgoing.values);
        }
        Ok(())
    }

    /// Sends one frame, unless a goodbye comes first.
    async fn send(&mut self, frame: ws::Message, queues: &mut Queues) -> Result<(), Stop> {
        tokio::select! {
            biased;
            sent = self.sink.send(frame) => sent.map_err(|_| Stop::Broken),
            Some(bye) = queues.bye.recv() => Err(Stop::Bye(bye)),
        }
    }

    /// Sends the short messages queued before the goodbye, such as the receipts of the last round, and then the
    /// goodbye.
    async fn finish(&mut self, bye: Bye, mut control: mpsc::Receiver<Outgoing>) -> Result<(), axum::Error> {
        while let Ok(outgoing) = control.try_recv() {
            for frame in outgoing.frames.iter() {
                self.sink.feed(ws::Message::Binary(frame.clone())).await?;
                self.meters.down(outgoing.phase, frame.len());
            }
        }
        self.send_bye(bye).await
    }

    async fn send_bye(&mut self, bye: Bye) -> Result<(), axum::Error> {
        let reason = clip(&bye.reason, CLOSE_REASON_BYTES_MAX).to_owned();
        let code = u16::from(bye.code);
        let reason_clipped = clip(&bye.reason, archipelago_core::wire::REASON_BYTES_MAX).to_owned();
        let encoded = encode(&Message::Bye(Bye { reason: reason_clipped, ..bye }));
        self.sink.feed(ws::Message::Binary(encoded.into())).await?;
        self.sink.feed(ws::Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await?;
        self.sink.flush().await
    }
}

/// Returns the goodbye that is already queued, or [`Stop::Broken`] without a queued goodbye.
fn goodbye_or(queues: &mut Queues) -> Stop {
    match queues.bye.try_recv() {
        Ok(bye) => Stop::Bye(bye),
        Err(_) => Stop::Broken,
    }
}
