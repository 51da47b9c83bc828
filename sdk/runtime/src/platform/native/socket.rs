//! WebSocket on a separate thread, which answers pings and moves frames while a step computes.

use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;
use std::{future, thread};

use archipelago_core::text::{CLOSE_REASON_BYTES_MAX, clip};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{Sink, SinkExt, Stream, StreamExt};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::{Response, StatusCode, Uri};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

use crate::platform::proxy::tls_fault;
use crate::platform::{Proxy, SendError, SocketBytes, SocketEvent, SocketLimits};

/// Timeout for opening a connection, handshake included, in milliseconds. It is shorter than the driver's own limit of
/// 10 s, which knows nothing of a proxy on the way.
const CONNECT_MS: u64 = 9_000;
/// Time between two pings in milliseconds. Pings keep routers from dropping the connection.
const PING_MS: u64 = 15_000;
/// Time without any message from the peer after which the connection counts as lost, in milliseconds.
const SILENT_MS: u64 = 60_000;
/// Timeout for sending the close frame, and for the peer's last frames and close frame, in milliseconds.
const CLOSE_MS: u64 = 2_000;
/// Maximum number of events that wait for the caller. If the queue is full, the socket stops reading.
const EVENTS_MAX: usize = 1_024;

/// WebSocket connection. Dropping it ends the connection without a close frame.
#[derive(Debug)]
pub struct Socket {
    events: mpsc::Receiver<SocketEvent>,
    control: mpsc::UnboundedSender<Outgoing>,
    bulk: mpsc::UnboundedSender<Vec<u8>>,
    counters: Arc<Counters>,
    queue_bytes_max: usize,
}

#[derive(Debug)]
enum Outgoing {
    Frame(Vec<u8>),
    Close(u16, String),
}

#[derive(Debug, Default)]
struct Counters {
    queued_bytes: AtomicUsize,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Socket {
    /// Starts to connect to `url` (`ws` or `wss`) with the given subprotocol. The result arrives as an event.
    #[must_use]
    pub fn connect(url: &str, subprotocol: &str, limits: SocketLimits) -> Self {
        let (events_in, events) = mpsc::channel(EVENTS_MAX);
        let (control, control_out) = mpsc::unbounded_channel();
        let (bulk, bulk_out) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::default());
        let wire = Wire {
            events: events_in.clone(),
            control: control_out,
            bulk: bulk_out,
            counters: Arc::clone(&counters),
            frame_bytes_max: limits.frame_bytes_max,
        };
        let (url, subprotocol) = (url.to_owned(), subprotocol.to_owned());
        let spawned = thread::Builder::new().name("archipelago-socket".to_owned()).spawn(move || {
            let events = wire.events.clone();
            let closed = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(wire.live(&url, &subprotocol)),
                Err(error) => lost(format!("cannot start a runtime for the connection: {error}")),
            };
            // An error means that the socket was dropped.
            drop(events.blocking_send(closed));
        });
        if let Err(error) = spawned {
            // The channel is empty, so it can take the event.
            drop(events_in.try_send(lost(format!("cannot start a thread for the connection: {error}"))));
        }
        Self { events, control, bulk, counters, queue_bytes_max: limits.queue_bytes_max }
    }

    /// Returns the next event, if one is available.
    pub fn try_recv(&mut self) -> Option<SocketEvent> {
        self.events.try_recv().ok()
    }

    /// Waits for the next event. After the last event it waits forever. Dropping the future loses no event.
    pub async fn recv(&mut self) -> SocketEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => future::pending().await,
        }
    }

    /// Queues one frame. Control frames are sent before `bulk` frames that wait.
    ///
    /// # Errors
    /// - [`SendError::Closed`]: the connection is closed. An event gives the reason.
    /// - [`SendError::QueueFull`]: more than `queue_bytes_max` bytes would wait.
    pub fn send(&mut self, frame: Vec<u8>, bulk: bool) -> Result<(), SendError> {
        let frame_bytes = frame.len();
        let queued_bytes = self.counters.queued_bytes.load(Relaxed);
        let queue_bytes_max = self.queue_bytes_max;
        if queued_bytes + frame_bytes > queue_bytes_max {
            return Err(SendError::QueueFull { queued_bytes, frame_bytes, queue_bytes_max });
        }
        self.counters.queued_bytes.fetch_add(frame_bytes, Relaxed);
        if bulk {
            self.bulk.send(frame).map_err(|_| SendError::Closed)
        } else {
            self.control.send(Outgoing::Frame(frame)).map_err(|_| SendError::Closed)
        }
    }

    /// Sends a close frame after the control frames in the queue. Waiting bulk frames are dropped.
    /// [`SocketEvent::Closed`] follows within seconds.
    pub fn close(&mut self, code: u16, reason: &str) {
        let reason = clip(reason, CLOSE_REASON_BYTES_MAX).to_owned();
        // An error means that the connection is already closed.
        drop(self.control.send(Outgoing::Close(code, reason)));
    }

    /// Returns the number of bytes that wait to be sent.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.counters.queued_bytes.load(Relaxed)
    }

    /// Returns the bytes that the socket has sent and received.
    #[must_use]
    pub fn bytes(&self) -> SocketBytes {
        SocketBytes {
            sent: self.counters.sent_bytes.load(Relaxed),
            received: self.counters.received_bytes.load(Relaxed),
        }
    }
}

/// State of the socket's thread.
struct Wire {
    events: mpsc::Sender<SocketEvent>,
    control: mpsc::UnboundedReceiver<Outgoing>,
    bulk: mpsc::UnboundedReceiver<Vec<u8>>,
    counters: Arc<Counters>,
    frame_bytes_max: usize,
}

impl Wire {
    /// Connects and moves frames until the connection ends. Returns the last event.
    async fn live(self, url: &str, subprotocol: &str) -> SocketEvent {
        let proxy = match Proxy::for_url(url) {
            Ok(proxy) => proxy,
            Err(error) => return lost(error.to_string()),
        };
        let connecting = self.connect(url, subprotocol, proxy.as_ref());
        let gone = self.events.clone();
        let connected = tokio::select! {
            connected = timeout(Duration::from_millis(CONNECT_MS), connecting) => connected,
            () = gone.closed() => return lost("cancelled".to_owned()),
        };
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(event)) => return event,
            Err(_elapsed) => {
                let why = format!("no connection within {} s", CONNECT_MS / 1_000);
                return lost(proxy.map_or(why.clone(), |proxy| proxy.explain(&why)));
            }
        };
        if self.events.send(SocketEvent::Opened).await.is_err() {
            return lost("cancelled".to_owned());
        }
        let (sink, stream) = stream.split();
        self.converse(sink, stream).await
    }

    /// Connects to `url`, through `proxy` if there is one.
    async fn connect(
        &self,
        url: &str,
        subprotocol: &str,
        proxy: Option<&Proxy>,
    ) -> Result<WebSocketStream<MaybeTlsStream<MaybeTlsStream<TcpStream>>>, SocketEvent> {
        let uri: Uri = url.parse().map_err(|error| lost(format!("{url} is not an address: {error}")))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(self.frame_bytes_max))
            .max_frame_size(Some(self.frame_bytes_max))
            .write_buffer_size(0);
        let stream = connect(&uri, proxy).await.map_err(lost)?;
        let request = ClientRequestBuilder::new(uri).with_sub_protocol(subprotocol);
        let opened = client_async_tls_with_config(request, stream, Some(config), super::connector()).await;
        opened.map(|(stream, _response)| stream).map_err(|error| match &error {
            tungstenite::Error::Http(answer) if is_absent(answer) => {
                SocketEvent::Absent { reason: explain(&error) }
            }
            _ => lost(explain(&error)),
        })
    }

    /// Moves frames in both directions independently, because a peer that does not read must not stop our reading.
    /// Returns the last event.
    async fn converse<I, O>(self, sink: O, stream: I) -> SocketEvent
    where
        I: Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
        O: Sink<Message, Error = tungstenite::Error> + Unpin,
    {
        let Self { events, control, bulk, counters, .. } = self;
        let gone = events.clone();
        let mut reading = pin!(read(stream, events, &counters));
        let closed = tokio::select! {
            closed = &mut reading => return closed,
            closed = write(sink, control, bulk, &counters) => closed,
        };
        // The peer's last frames, in particular its close frame, may still be in transit.
        tokio::select! {
            closed = reading => closed,
            () = tokio::time::sleep(Duration::from_millis(CLOSE_MS)) => closed,
            () = gone.closed() => closed,
        }
    }
}

/// Forwards incoming frames as events until the connection ends. Returns the last event.
async fn read<S>(mut stream: S, events: mpsc::Sender<SocketEvent>, counters: &Counters) -> SocketEvent
where
    S: Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
{
    loop {
        let message = match timeout(Duration::from_millis(SILENT_MS), stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => return lost(explain(&error)),
            Ok(None) => return lost("the connection ended".to_owned()),
            Err(_elapsed) => return lost(format!("no data for {} s", SILENT_MS / 1_000)),
        };
        match message {
            Message::Binary(frame) => {
                counters.received_bytes.fetch_add(frame.len() as u64, Relaxed);
                if events.send(SocketEvent::Frame(frame.into())).await.is_err() {
                    return lost("cancelled".to_owned());
                }
            }
            Message::Close(farewell) => {
                // The library answers the close frame at the next poll.
                drop(timeout(Duration::from_millis(CLOSE_MS), stream.next()).await);
                return match farewell {
                    Some(CloseFrame { code, reason }) => {
                        SocketEvent::Closed { code: Some(code.into()), reason: reason.to_string() }
                    }
                    None => lost("closed without a reason".to_owned()),
                };
            }
            // The library itself answers pings.
            Message::Ping(_) | Message::Pong(_) => {
                if events.send(SocketEvent::Alive).await.is_err() {
                    return lost("cancelled".to_owned());
                }
            }
            Message::Text(_) | Message::Frame(_) => {
                return lost("the peer sent text instead of bytes".to_owned());
            }
        }
    }
}

/// Sends queued frames, control frames first, until a close is requested or the socket is dropped. Returns the last
/// event.
async fn write<S>(
    mut sink: S,
    mut control: mpsc::UnboundedReceiver<Outgoing>,
    mut bulk: mpsc::UnboundedReceiver<Vec<u8>>,
    counters: &Counters,
) -> SocketEvent
where
    S: Sink<Message, Error = tungstenite::Error> + Unpin,
{
    let period = Duration::from_millis(PING_MS);
    let mut pings = interval(period);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset_at(Instant::now() + period);
    loop {
        let frame = tokio::select! {
            biased;
            outgoing = control.recv() => match outgoing {
                Some(Outgoing::Frame(frame)) => frame,
                Some(Outgoing::Close(code, reason)) => {
                    let farewell = CloseFrame { code: code.into(), reason: reason.into() };
                    drop(timeout(Duration::from_millis(CLOSE_MS), sink.send(Message::Close(Some(farewell)))).await);
                    return lost("the peer did not answer the close message".to_owned());
                }
                None => return lost("cancelled".to_owned()),
            },
            Some(frame) = bulk.recv() => frame,
            _ = pings.tick() => {
                if let Err(error) = sink.send(Message::Ping(Vec::new().into())).await {
                    return lost(explain(&error));
                }
                continue;
            }
        };
        let frame_bytes = frame.len();
        let sent = sink.send(Message::Binary(frame.into())).await;
        counters.queued_bytes.fetch_sub(frame_bytes, Relaxed);
        counters.sent_bytes.fetch_add(frame_bytes as u64, Relaxed);
        if let Err(error) = sent {
            return lost(explain(&error));
        }
    }
}

fn lost(reason: String) -> SocketEvent {
    SocketEvent::Closed { code: None, reason }
}

/// Maximum size of a server message that is shown to the user, in bytes.
const REASON_BYTES_MAX: u32 = 1_000;

/// Returns true if the response means that there is no socket at the address and never will be.
fn is_absent(answer: &Response<Option<Vec<u8>>>) -> bool {
    let gone = [StatusCode::NOT_FOUND, StatusCode::MOVED_PERMANENTLY, StatusCode::PERMANENT_REDIRECT];
    gone.contains(&answer.status())
}

/// Returns true if the response is a web page that is no error message.
fn is_page(answer: &Response<Option<Vec<u8>>>) -> bool {
    let body = answer.body().as_deref().unwrap_or_default();
    answer.status().is_success() && body.trim_ascii_start().starts_with(b"<")
}

/// Returns the target of a redirect.
fn location(answer: &Response<Option<Vec<u8>>>) -> Option<String> {
    let location = answer.headers().get("location").filter(|_| answer.status().is_redirection())?;
    let location = String::from_utf8_lossy(location.as_bytes());
    Some(clip(&location, REASON_BYTES_MAX).replace(char::is_control, " "))
}

/// Returns an error message for the user.
fn explain(error: &tungstenite::Error) -> String {
    match error {
        tungstenite::Error::Http(response) if let Some(location) = location(response) => {
            let status = response.status().as_u16();
            format!("leads to {location} (HTTP status {status}): give that address if it is the syncer's")
        }
        tungstenite::Error::Http(response) if is_page(response) => {
            "answered with a web page instead of opening a WebSocket: something in between answers, such as the \
             sign-in page of a network; open the address in a browser"
                .to_owned()
        }
        tungstenite::Error::Http(response) => {
            let status = response.status().as_u16();
            let text =
                response.body().as_deref().and_then(|body| std::str::from_utf8(body).ok()).map(str::trim);
            let text =
                text.filter(|text| (1..=REASON_BYTES_MAX as usize).contains(&text.len()) && !text.starts_with('<'));
            let text =
                text.map(|text| format!(": {}", text.replace(char::is_control, " "))).unwrap_or_default();
            format!("answered HTTP status {status} instead of opening a WebSocket{text}")
        }
        tungstenite::Error::Io(error) => match error.get_ref().and_then(|error| tls_fault(error)) {
            Some(why) => why,
            None if error.kind() == ErrorKind::InvalidData => {
                format!("TLS handshake failed ({error}): try ws:// or http://")
            }
            None => error.to_string(),
        },
        tungstenite::Error::Protocol(ProtocolError::HttparseError(_)) | tungstenite::Error::AttackAttempt => {
            "something other than a syncer listens there: it does not answer in HTTP/1.1".to_owned()
        }
        other => other.to_string(),
    }
}

/// First bytes of any response in HTTP/1.
const HTTP_1: &[u8] = b"HTTP/1.";

/// Maximum size of the head of a proxy's response, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Opens a connection to the server of `uri`, through `proxy` if there is one. The caller adds TLS to the server.
///
/// # Errors
/// Message for the user.
pub(super) async fn connect(uri: &Uri, proxy: Option<&Proxy>) -> Result<MaybeTlsStream<TcpStream>, String> {
    let Some(proxy) = proxy else {
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("wss") { 443 } else { 80 });
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        return dial(host, port).await.map(MaybeTlsStream::Plain).map_err(|error| error.to_string());
    };
    connect_through(proxy).await.map_err(|why| proxy.explain(&why))
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Opens a connection to the proxy and has it connect to the server.
async fn connect_through(proxy: &Proxy) -> Result<MaybeTlsStream<TcpStream>, String> {
    let (host, port) = proxy.host_and_port();
    let unreachable = |error: io::Error| {
        let fault = error.get_ref().and_then(|error| tls_fault(error));
        format!("the proxy cannot be reached: {}", fault.unwrap_or_else(|| error.to_string()))
    };
    let stream = dial(host, port).await.map_err(unreachable)?;
    let mut stream = if proxy.is_secure() {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(super::sockets());
        MaybeTlsStream::Rustls(connector.connect(name, stream).await.map_err(unreachable)?)
    } else {
        MaybeTlsStream::Plain(stream)
    };
    request_tunnel(&mut stream, &proxy.target(), proxy.credentials()).await?;
    Ok(stream)
}

/// Requests from the proxy on `stream` a connection to `target`.
async fn request_tunnel<S>(stream: &mut S, target: &str, credentials: Option<String>) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let authorization = credentials
        .map(|credentials| format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode(credentials)))
        .unwrap_or_default();
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
    let broke = |error: io::Error| format!("the proxy closed the connection: {error}");
    stream.write_all(request.as_bytes()).await.map_err(broke)?;
    stream.flush().await.map_err(broke)?;
    let mut head = Vec::new();
    // The head is read byte by byte, because the bytes after it come from the server.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Err("the proxy does not answer in HTTP".to_owned());
        }
        head.push(stream.read_u8().await.map_err(broke)?);
        // Servers of other protocols, such as SSH, send a line and wait.
        if !head.iter().zip(HTTP_1).all(|(found, expected)| found == expected) {
            return Err("the proxy does not answer in HTTP".to_owned());
        }
    }
    match status(&head) {
        Some(200..300) => Ok(()),
        Some(407) => {
            Err("it requires a name and a password (HTTP status 407): put them into the variable, as \
                 http://NAME:PASSWORD@HOST:PORT"
                .to_owned())
        }
        Some(status) => Err(format!("it answered CONNECT with HTTP status {status}")),
        None => Err("the proxy does not answer in HTTP".to_owned()),
    }
}

/// Returns the status code in the head of a response.
fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use futures::{sink, stream};

    use super::*;

    /// Returns the events of a socket whose peer reads nothing and sends the messages in `message`.
    fn report(message: impl Stream<Item = Message> + Unpin) -> Vec<SocketEvent> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (events, mut reported) = mpsc::channel(EVENTS_MAX);
            let (send, control) = mpsc::unbounded_channel();
            let (_bulk, bulk) = mpsc::unbounded_channel();
            let counters = Arc::new(Counters::default());
            send.send(Outgoing::Frame(vec![1])).unwrap();
            let wire = Wire { events, control, bulk, counters, frame_bytes_max: 9 };
            let broken = Box::pin(sink::unfold((), async |(), _: Message| {
                Err(tungstenite::Error::Io(ErrorKind::BrokenPipe.into()))
            }));
            let last = wire.converse(broken, message.map(Ok)).await;
            let mut found = Vec::new();
            while let Ok(event) = reported.try_recv() {
                found.push(event);
            }
            found.push(last);
            found
        })
    }

    #[test]
    fn last_frames_of_a_closing_peer_are_delivered() {
        let farewell = Message::Close(Some(CloseFrame { code: 4000.into(), reason: "done".into() }));
        let late = async |message| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            message
        };
        let message = stream::iter([Message::Binary(vec![7].into()), farewell]).then(late);
        let closed = SocketEvent::Closed { code: Some(4000), reason: "done".to_owned() };
        assert_eq!(report(Box::pin(message)), [SocketEvent::Frame(vec![7]), closed]);
    }

    #[test]
    fn silent_peer_that_reads_nothing_is_lost() {
        let events = report(stream::pending());
        assert!(
            matches!(&events[..], [SocketEvent::Closed { code: None, reason }] if reason.contains("pipe"))
        );
    }

    /// Runs [`request_tunnel`] against a proxy that sends `answer`. Returns the result, the request, and the bytes
    /// that were not read.
    fn run_request(
        answer: &'static [u8],
        credentials: Option<&str>,
    ) -> (Result<(), String>, String, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
            theirs.write_all(answer).await.unwrap();
            let credentials = credentials.map(str::to_owned);
            let (mut request, mut rest) = (vec![0; 1_024], Vec::new());
            let done = request_tunnel(&mut ours, "a.lab:443", credentials).await;
            let len = theirs.read(&mut request).await.unwrap();
            drop(theirs);
            ours.read_to_end(&mut rest).await.unwrap();
            request.truncate(len);
            (done, String::from_utf8(request).unwrap(), rest)
        })
    }

    #[test]
    fn tunnel_request_leaves_the_servers_bytes_unread() {
        let (done, request, rest) =
            run_request(b"HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\nhello", None);
        assert_eq!((done, &rest[..]), (Ok(()), &b"hello"[..]));
        assert_eq!(request, "CONNECT a.lab:443 HTTP/1.1\r\nHost: a.lab:443\r\n\r\n");
        let (done, request, _) = run_request(b"HTTP/1.0 200\r\n\r\n", Some("Aladdin:open sesame"));
        assert_eq!(done, Ok(()));
        assert!(
            request.contains("\r\nProxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n"),
            "{request}"
        );
    }

    #[test]
    fn refused_tunnel_has_a_reason() {
        let why = |answer| run_request(answer, None).0.unwrap_err();
        assert_eq!(why(b"HTTP/1.1 403 Forbidden\r\n\r\n"), "it answered CONNECT with HTTP status 403");
        assert!(why(b"HTTP/1.1 407 No\r\n\r\n").contains("http://NAME:PASSWORD@HOST:PORT"));
        assert!(why(b"SSH-2.0-x\r\n").contains("not answer in HTTP"), "it does not wait for more");
        let endless = [b"HTTP/1.1 200 OK".as_slice(), &[b'x'; HEAD_BYTES_MAX]].concat();
        assert!(why(Box::leak(endless.into())).contains("not answer in HTTP"));
    }
}
