//! One WebSocket ⇄ messages: caps, timeouts, order of sending, typed goodbyes.

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
use crate::admission::{Admission, Pass};
use crate::meters::{Meters, Phase};
use crate::outbox::Outbox;

pub use peer::Peer;

/// Time for a peer to introduce itself.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Time between two reports to the core that a peer is alive, at least.
const HEARD_EVERY: Duration = Duration::from_secs(1);
/// Time for a goodbye to get through, and then for the peer to close its side.
const BYE_WITHIN: Duration = Duration::from_secs(2);
/// Largest body of an update that is looked into on a thread that serves sockets, in bytes: a fraction of a
/// millisecond.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// Buffer that each socket reads into; thousands of idle ones must not cost much.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// What every connection needs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The way to the actor.
    pub actor: ActorHandle,
    /// What crosses the sockets.
    pub meters: Arc<Meters>,
    /// Looks into updates before the actor hears of them.
    pub verifier: Verifier,
    /// Values in each fragment.
    pub fragment_lens: Arc<[u64]>,
    /// Who is taken in.
    pub admission: Admission,
    /// Largest body that a learner of this run has reason to send.
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

/// Tells a peer of another version so in a message that it can read as far as the version, and closes.
pub async fn turn_away(mut socket: WebSocket, asked: &str, peer: &Peer) {
    let reason = format!("this server speaks {SUBPROTOCOL}, not {asked}: update the older side");
    let code = CloseCode::Version;
    let bye = encode(&Message::Bye(Bye::new(code, reason.clone())));
    let reason = clip(&reason, CLOSE_REASON_BYTES_MAX).to_owned();
    let close = ws::Message::Close(Some(CloseFrame { code: code.into(), reason: reason.into() }));
    let telling = async {
        socket.send(ws::Message::Binary(bye.into())).await?;
        socket.send(close).await?;
        // Read on, so that the goodbye is not lost with what the peer has sent meanwhile.
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<_, axum::Error>(())
    };
    tokio::select! {
        // A peer that reads nothing cannot get a goodbye.
        _ = timeout(BYE_WITHIN, telling) => {}
        () = peer.displaced() => {}
    }
}

/// Serves one open socket until either side ends it. While it belongs to no learner, a newer socket may displace it.
pub async fn serve(socket: WebSocket, conn: ConnId, context: Context, peer: Peer) {
    let peer = Arc::new(peer);
    let (sink, mut stream) = socket.split();
    let challenge = match context.admission.challenge() {
        Ok(challenge) => challenge,
        Err(error) => return tracing::error!(%error, "no random numbers to ask a learner with"),
    };
    let fragments = u16::try_from(context.fragment_lens.len()).unwrap_or(u16::MAX);
    let (outbox, queues, bye) = Outbox::new(fragments, context.body_bytes_max);
    if !context.actor.tell(Command::Open(conn, outbox)).await {
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
        // The actor, or the socket, ended it.
        _ = &mut writing => Ended::Elsewhere,
        () = peer.displaced() => Ended::Displaced,
    };
    // The pass becomes invalid as soon as the learner leaves, even if the goodbye is still being sent.
    drop(reader);
    let is_displaced = matches!(ended, Ended::Displaced);
    let readable = !matches!(ended, Ended::Broken(_));
    if let Ended::Refused(fault) | Ended::Broken(fault) = ended {
        tracing::debug!(%conn, code = u16::from(fault.code), reason = fault.reason, "refused");
        // Before the actor hears of it: it drops its end of the queues then, and a writer whose queues have
        // ended leaves without a word. Full means that the actor said goodbye first.
        let _ = bye.try_send(fault.clone());
        context.actor.tell(Command::TurnedAway(fault)).await;
    }
    context.actor.tell(Command::Input(Input::Disconnected(conn))).await;
    if is_displaced {
        return writing.abort();
    }
    // From here on the socket belongs to no learner.
    peer.dismiss();
    let parting = async {
        if !writing.is_finished() {
            // Ends soon: it has a goodbye to send, or its queue's other end is gone.
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

/// How reading ended.
enum Ended {
    /// The peer is gone, or somebody else ended it.
    Elsewhere,
    /// A newer socket needs its place.
    Displaced,
    /// The peer must be told and go; what it still sends can be read.
    Refused(Bye),
    /// The peer must be told and go; nothing can be read any more.
    Broken(Bye),
}

/// The half that reads.
struct Reader {
    conn: ConnId,
    context: Context,
    peer: Arc<Peer>,
    /// What the learner is asked and has not answered yet.
    challenge: Option<Challenge>,
    /// Numbers that it was sent and has not sent back.
    probes: Arc<AtomicU32>,
    /// That it was taken in, while the connection stands.
    pass: Option<Pass>,
    /// Whether the learner trains: its bytes then belong to the run.
    ready: bool,
}

impl Reader {
    /// Reads until the peer is gone or must be refused.
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
                    return refuse(CloseCode::Malformed, "text frames mean nothing here: send binary ones");
                }
                Some(Ok(ws::Message::Ping(payload))) => {
                    self.count(payload.len());
                    None
                }
                Some(Ok(ws::Message::Pong(payload))) => {
                    self.count(payload.len());
                    number = self.came_back(&payload);
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
            if !self.context.actor.tell(Command::Input(input)).await {
                return Ended::Elsewhere;
            }
        }
    }

    /// Says goodbye for a learner whose page was closed: browsers close its socket so, and leave it no time for more.
    async fn goodbye(&self) {
        let bye = Message::Bye(Bye::new(CloseCode::Done, "its page was closed"));
        self.context.actor.tell(Command::Input(Input::Message(self.conn, bye))).await;
    }

    /// The number that a pong brings back, if one is awaited: whoever sends what it was not asked for moves nobody.
    fn came_back(&self, payload: &[u8]) -> Option<u64> {
        let number = u64::from_be_bytes(payload.try_into().ok()?);
        let less = |awaited: u32| awaited.checked_sub(1);
        self.probes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok().map(|_| number)
    }

    /// Whether who says `hello` is taken in, before the core hears of it. A challenge is answered once.
    async fn admit(&mut self, hello: &Hello) -> Result<Pass, Bye> {
        let challenge = self.challenge.take();
        let challenge =
            challenge.ok_or_else(|| Bye::new(CloseCode::Protocol, "Hello came before: say it once"))?;
        let pass = self.context.admission.judge(&challenge, hello, self.peer.place()).await?;
        self.peer.take_share()?;
        Ok(pass)
    }

    /// An update, looked into here: while a large one is hashed, the actor serves others.
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

    /// Counts a frame and gives the message that it completes, if any.
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

/// What to tell a peer whose bytes are no WebSocket of ours; nothing if it is simply gone.
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
