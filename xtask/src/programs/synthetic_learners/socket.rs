//! WebSocket with low memory use, and an HTTP request.

use std::net::SocketAddr;

use archipelago_core::driver::Input;
use archipelago_core::wire::http::{SOCKET, VERSION_HEADER};
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, CHUNK_BYTES, Message, SUBPROTOCOL, encode, frames,
};
use futures::{FutureExt, SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message as Frame};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Size of each socket's read buffer; there are thousands of sockets.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// WebSocket connection.
pub struct LearnerSocket {
    stream: WebSocketStream<TcpStream>,
    assembler: Assembler,
    number: u32,
    is_dirty: bool,
}

impl LearnerSocket {
    /// Connects to the syncer at `address`.
    ///
    /// # Errors
    /// A message if the connection failed.
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let uri = format!("ws://{address}{SOCKET}").parse().map_err(|_| "no address".to_owned())?;
        let request = ClientRequestBuilder::new(uri).with_sub_protocol(SUBPROTOCOL);
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_frame_size(Some(CHUNK_BYTES as usize))
            .max_message_size(Some(CHUNK_BYTES as usize));
        let opened = client_async_with_config(request, stream, Some(config)).await;
        let (stream, _) = opened.map_err(|error| error.to_string())?;
        Ok(Self { stream, assembler: Assembler::new(BODY_BYTES_MAX), number: 0, is_dirty: false })
    }

    /// Queues `message` for the next [`Self::flush`].
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn send(&mut self, message: &Message) -> Result<(), tungstenite::Error> {
        self.number = self.number.wrapping_add(1);
        for frame in frames(encode(message), self.number) {
            self.stream.feed(Frame::binary(frame)).await?;
        }
        self.is_dirty = true;
        Ok(())
    }

    /// Sends the queued messages.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn flush(&mut self) -> Result<(), tungstenite::Error> {
        if std::mem::take(&mut self.is_dirty) {
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Returns the next input.
    pub async fn next(&mut self) -> Input {
        match self.stream.next().await {
            Some(Ok(Frame::Binary(frame))) => match self.assembler.push(&frame) {
                Ok(Some(message)) => Input::Message(message),
                Ok(None) => Input::Heard,
                Err(error) => Input::Garbled(error),
            },
            Some(Ok(Frame::Close(close))) => {
                let (code, reason) = close.map_or((None, String::new()), |close| {
                    (Some(u16::from(close.code)), close.reason.to_string())
                });
                Input::Closed { code, reason }
            }
            Some(Ok(_)) => {
                // The pong goes out with the next message.
                self.is_dirty = true;
                Input::Heard
            }
            Some(Err(error)) => Input::Closed { code: None, reason: error.to_string() },
            None => Input::Closed { code: None, reason: "the connection ended".into() },
        }
    }

    /// Returns the next input if one is waiting.
    pub fn try_next(&mut self) -> Option<Input> {
        self.next().now_or_never()
    }

    /// Closes the connection with a goodbye.
    pub async fn close(&mut self, bye: &Bye) {
        // The peer may be gone already.
        drop(self.send(&Message::Bye(bye.clone())).await);
        drop(self.stream.close(None).await);
    }
}

/// Sends `GET path` to `address`. Returns the body, and its fragment's version if it is a fragment.
///
/// # Errors
/// A message if the request failed.
pub async fn get(address: SocketAddr, path: &str) -> Result<(Vec<u8>, Option<u64>), String> {
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    // HTTP/1.0, so that the answer is never cut into chunks and ends with the connection.
    let head = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(failed)?;
    let end = b"\r\n\r\n";
    let at = answer.windows(end.len()).position(|bytes| bytes == end).ok_or(format!("{path}: no answer"))?;
    let body = answer.split_off(at + end.len());
    let head = String::from_utf8_lossy(&answer).to_lowercase();
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    if !status.contains(" 200") {
        return Err(format!("{path}: {status}"));
    }
    let version =
        lines.find_map(|line| line.strip_prefix(VERSION_HEADER)?.strip_prefix(':')?.trim().parse().ok());
    Ok((body, version))
}
