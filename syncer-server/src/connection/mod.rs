//! One WebSocket connection: limits, timeouts, order of messages, typed goodbyes.

mod peer;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use archipelago_core::diloco::Verifier;
use archipelago_core::diloco::syncer::Input;
use archipelago_core::wire::{
    Assembler, Bye, CHUNK_BYTES, CLOSE_REASON_BYTES_MAX, Challenge, CloseCode, ConnId, DecodeError,
    GREETING_BYTES_MAX, Hello, Message, SUBPROTOCOL, Update, clip, encode,
};
use axum::extract::ws::{self, CloseFrame, WebSocket, WebSocketUpgrade};
use futures::StreamExt;
use futures::stream::SplitStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use writer::Writer;

use crate::actor::{ActorHandle, Command};
use crate::admission::{Admission, AdmissionPermit};
use crate::meters::{Meters, Phase};
use crate::outbox::Outbox;

pub use peer::Peer;

/// Time limit for a peer's `Hello`.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Shortest time between two reports to the core that a peer is alive.
const HEARD_EVERY: Duration = Duration::from_secs(1);
/// Time limit for sending a goodbye, and then for the peer to close its side.
const BYE_WITHIN: Duration = Duration::from_secs(2);
/// Largest update body that is verified on a thread that serves sockets, in bytes; this takes a fraction of a
/// millisecond.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// Size of the read buffer of each socket; small, because thousands of sockets may be idle.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// State shared by all connections.
#[derive(Clone, Debug)]
pub struct Context {
    /// Handle to the actor.
    pub actor: ActorHandle,
    /// Traffic counters of the sockets.
    pub meters: Arc<Meters>,
    /// Verifies updates before the actor gets them.
    pub verifier: Verifier,
    /// Number of values in each fragment.
    pub fragment_lens: Arc<[u64]>,
    /// Admission of learners.
    pub admission: Admission,
    /// Size limit of an update's body in this run, in bytes.
    pub body_bytes_max: u32,
}

/// Sets the limits of a socket before it opens. Larger frames are refused before they are read.
pub fn limit(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_frame_size(CHUNK_BYTES as usize)
        .max_message_size(CHUNK_BYTES as usize)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * CHUNK_BYTES as usize)
}

/// Sends a goodbye to a peer that speaks another version of the protocol, and closes.
pub async fn reject_version(mut socket: WebSocket, asked: &str, peer: &Peer) {
    let reason = format!("this server speaks {SUBPROTOCOL}, not {asked}: update the older side");
    let code = CloseCode::Version;
    let bye = encode(&Message::Bye(Bye::new(code, reason.clone())));
    let reason = clip(&reason, CLOSE_REASON_BYTES_MAX).to_owned();
    let close = ws::Message::Close(Some(CloseFrame { code: code.into(), reason: reason.into() }));
    let sending = async {
        socket.send(ws::Message::Binary(bye.into())).await?;
        socket.send(close).await?;
        // Keep reading, because a socket that closes with unread bytes may lose the goodbye.
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<_, axum::Error>(())
    };
    tokio::select! {
        // A peer that reads nothing cannot get a goodbye.
        _ = timeout(BYE_WITHIN, sending) => {}
        () = peer.displaced() => {}
    }
}

/// Serves one open socket until either side ends it. While the socket has no learner, a newer socket may displace it.
pub async fn serve(socket: WebSocket, conn: ConnId, context: Context, peer: Peer) {
    let peer = Arc::new(peer);
    let (sink, mut stream) = socket.split();
    let challenge = match context.admission.challenge() {
        Ok(challenge) => challenge,
        Err(error) => {
            return tracing::error!(%error, "no random numbers are available for the learner's challenge");
        }
    };
    let fragments = u16::try_from(context.fragment_lens.len()).unwrap_or(u16::MAX);
    let (outbox, queues, bye) = Outbox::new(fragments, context.body_bytes_max);
    if !context.actor.send(Command::Open(conn, outbox)).await {
        return;
    }
    let probes = Arc::new(AtomicU32::new(0));
    let writer = Writer::new(sink, Arc::clone(&context.meters), Arc::clone(&probes), Arc::clone(&peer));
    let mut writing = tokio::spawn(writer.open(challenge, queues));
    let (challenge, pass, ready) = (Some(challenge), None, false);
    let mut reader =
        Reader { conn, context: context.clone(), peer: Arc::clone(&peer), challenge, probes, pass, ready };
    let ended = tokio::select! {
        ended = reader.run(&mut stream) => ended,
        // The actor or the socket ended the connection.
        _ = &mut writing => Ended::Elsewhere,
        () = peer.displaced() => Ended::Displaced,
    };
    // The pass becomes invalid as soon as the learner leaves, even if the goodbye is still being sent.
    drop(reader);
    let is_displaced = matches!(ended, Ended::Displaced);
    let readable = !matches!(ended, Ended::Broken(_));
    if let Ended::Refused(fault) | Ended::Broken(fault) = ended {
        tracing::debug!(%conn, code = u16::from(fault.code), reason = fault.reason, "refused");
        // The goodbye is queued before the actor is informed. The actor then drops its end of the queues, and a writer
        // whose queues have ended leaves without a goodbye. A full queue means that the actor's goodbye came first.
        let _ = bye.try_send(fault.clone());
        context.actor.send(Command::TurnedAway(fault)).await;
    }
    context.actor.send(Command::Input(Input::Disconnected(conn))).await;
    if is_displaced {
        return writing.abort();
    }
    // From here on the socket belongs to no learner.
    peer.mark_pending();
    let parting = async {
        if !writing.is_finished() {
            // The writer ends soon: it has a goodbye to send, or the other end of its queues is gone.
            let _ = timeout(2 * BYE_WITHIN, &mut writing).await;
        }
        // If the socket closed with unread bytes from the peer, the system would reset the connection, and the goodbye
        // could be lost. So read on until the peer closes, or leave the peer time to read the goodbye.
        if readable {
            let _ = timeout(BYE_WITHIN, async { while let Some(Ok(_)) = stream.next().await {} }).await;
        } else {
            sleep(BYE_WITHIN / 2).await;
        }
    };
    tokio::select! {
        () = parting => {}
        () = peer.displaced() => {}
    }
    writing.abort();
}

/// Reasons why reading ended.
enum Ended {
    /// The peer has left, or another task ended the connection.
    Elsewhere,
    /// A newer socket displaces this one.
    Displaced,
    /// The peer is refused; further input can still be read.
    Refused(Bye),
    /// The peer is refused; no further input can be read.
    Broken(Bye),
}

/// The reading half of a connection.
struct Reader {
    conn: ConnId,
    context: Context,
    peer: Arc<Peer>,
    /// The challenge that the learner has not answered yet.
    challenge: Option<Challenge>,
    /// Number of probes that were sent and not answered.
    probes: Arc<AtomicU32>,
    /// The pass of the admitted learner, while the connection is open.
    pass: Option<AdmissionPermit>,
    /// True if the learner trains. Its bytes then belong to training, not to joining.
    ready: bool,
}

impl Reader {
    /// Reads until the peer leaves or must be refused.
    async fn run(&mut self, stream: &mut SplitStream<WebSocket>) -> Ended {
        let mut assembler = Assembler::new(GREETING_BYTES_MAX);
        let hello_until = Instant::now() + HELLO_WITHIN;
        let mut heard: Option<Instant> = None;
        loop {
            let frame = match heard {
                Some(_) => stream.next().await,
                None => match timeout_at(hello_until, stream.next()).await {
                    Ok(frame) => frame,
                    Err(_) => return refuse(CloseCode::Silent, "no Hello came in time: connect again"),
                },
            };
            let mut number = None;
            let message = match frame {
                Some(Ok(ws::Message::Close(Some(close)))) if close.code == ws::close_code::AWAY => {
                    self.goodbye().await;
                    return Ended::Elsewhere;
                }
                None | Some(Ok(ws::Message::Close(_))) => return Ended::Elsewhere,
                Some(Err(error)) => return broken(error),
                Some(Ok(ws::Message::Text(_))) => {
                    return refuse(
                        CloseCode::Malformed,
                        "text frames are not part of this protocol: send binary ones",
                    );
                }
                Some(Ok(ws::Message::Ping(payload))) => {
                    self.count(payload.len());
                    None
                }
                Some(Ok(ws::Message::Pong(payload))) => {
                    self.count(payload.len());
                    number = self.answered_probe(&payload);
                    None
                }
                Some(Ok(ws::Message::Binary(payload))) => match self.take(&mut assembler, &payload) {
                    Ok(message) => message,
                    Err(error) => return refuse(error.close_code(), &error.to_string()),
                },
            };
            let input = match (message, heard) {
                (Some(Message::Update(update)), _) => self.verified(update).await,
                (Some(message), _) => Input::Message(self.conn, message),
                (None, Some(_)) if let Some(number) = number => Input::Probed(self.conn, number),
                (None, Some(at)) if at.elapsed() >= HEARD_EVERY => Input::Heard(self.conn),
                (None, _) => continue,
            };
            if let Input::Message(_, Message::Hello(hello)) = &input {
                match self.admit(hello).await {
                    Ok(pass) => self.pass = Some(pass),
                    Err(bye) => return Ended::Refused(bye),
                }
            }
            // The first message is Hello, or the core refuses it.
            assembler.set_body_bytes_max(self.context.body_bytes_max);
            heard = Some(Instant::now());
            if !self.context.actor.send(Command::Input(input)).await {
                return Ended::Elsewhere;
            }
        }
    }

    /// Sends the core a goodbye for a learner whose page was closed. Browsers close the socket without leaving the
    /// learner time to send one.
    async fn goodbye(&self) {
        let bye = Message::Bye(Bye::new(CloseCode::Done, "its page was closed"));
        self.context.actor.send(Command::Input(Input::Message(self.conn, bye))).await;
    }

    /// Returns the number in a pong if a probe is unanswered. Unsolicited pongs are ignored.
    fn answered_probe(&self, payload: &[u8]) -> Option<u64> {
        let number = u64::from_be_bytes(payload.try_into().ok()?);
        let less = |awaited: u32| awaited.checked_sub(1);
        self.probes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok().map(|_| number)
    }

    /// Decides on the admission of the sender of `hello`, before the core sees it. A challenge can be answered once.
    async fn admit(&mut self, hello: &Hello) -> Result<AdmissionPermit, Bye> {
        let challenge = self.challenge.take();
        let challenge =
            challenge.ok_or_else(|| Bye::new(CloseCode::Protocol, "Hello came before: send it once"))?;
        let pass = self.context.admission.judge(&challenge, hello, self.peer.guard()).await?;
        self.peer.take_share()?;
        Ok(pass)
    }

    /// Verifies an update. Large ones are hashed on another thread while the actor serves other peers.
    async fn verified(&self, update: Update) -> Input {
        let verifier = self.context.verifier.clone();
        let verified = if update.body.len() <= INLINE_BYTES_MAX {
            verifier.verify(update)
        } else {
            let verifying = tokio::task::spawn_blocking(move || verifier.verify(update));
            match verifying.await {
                Ok(verified) => verified,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            }
        };
        Input::Update(self.conn, Box::new(verified))
    }

    /// Counts a frame and returns the message that it completes, if any.
    fn take(&mut self, assembler: &mut Assembler, payload: &[u8]) -> Result<Option<Message>, DecodeError> {
        self.count(payload.len());
        let message = assembler.push(payload)?;
        match &message {
            Some(Message::Ready { .. }) => self.ready = true,
            Some(Message::Update(update)) => {
                let lens = &self.context.fragment_lens;
                let values = lens.get(usize::from(update.fragment.0)).copied().unwrap_or(0);
                self.context.meters.values_up(values);
            }
            _ => {}
        }
        Ok(message)
    }

    fn count(&self, payload_bytes: usize) {
        let phase = if self.ready { Phase::Run } else { Phase::Join };
        self.context.meters.up(phase, payload_bytes);
    }
}

/// Returns the reason why reading ended with `error`: a refusal for invalid WebSocket bytes, else
/// [`Ended::Elsewhere`].
fn broken(error: axum::Error) -> Ended {
    use tungstenite::error::{Error, ProtocolError};

    let (code, reason) = match error.into_inner().downcast_ref::<Error>() {
        Some(Error::Capacity(_)) => (
            CloseCode::TooLarge,
            format!("a frame has more than {CHUNK_BYTES} bytes: send larger messages in chunks"),
        ),
        Some(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => return Ended::Elsewhere,
        Some(Error::Protocol(_) | Error::Utf8(_)) => {
            (CloseCode::Malformed, "the frames break the WebSocket protocol".into())
        }
        _ => return Ended::Elsewhere,
    };
    Ended::Broken(Bye::new(code, reason))
}

fn refuse(code: CloseCode, reason: &str) -> Ended {
    Ended::Refused(Bye::new(code, reason))
}
