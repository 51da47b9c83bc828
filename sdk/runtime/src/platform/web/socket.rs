//! WebSocket of a browser. The browser itself answers pings, even while a step computes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use archipelago_core::text::{CLOSE_REASON_BYTES_MAX, clip};
use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::Closure;
use web_sys::{BinaryType, CloseEvent, MessageEvent, WebSocket};

use super::thrown;
use crate::platform::{SendError, SocketBytes, SocketEvent, SocketLimits};

/// Maximum number of bytes in the browser's send buffer above which no bulk frame is handed over, so that control
/// frames need not wait behind many bulk frames.
const BUFFERED_BYTES_MAX: usize = 256 << 10;
/// Close codes that a page may send.
const CODES: std::ops::RangeInclusive<u16> = 3000..=4999;
/// Close code for a normal closure.
const CODE_NORMAL: u16 = 1000;
/// Close code that the browser reports for a broken connection. No peer sends it.
const CODE_BROKEN: u16 = 1006;
/// Close code that the browser reports if the peer sent none.
const CODE_NONE: u16 = 1005;

/// WebSocket connection. Dropping it ends the connection without a close frame.
#[derive(Debug)]
pub struct Socket {
    socket: Option<WebSocket>,
    shared: Rc<RefCell<SocketState>>,
    bulk: VecDeque<Vec<u8>>,
    bulk_bytes: usize,
    handed_bytes: u64,
    queue_bytes_max: usize,
    handlers: Option<Handlers>,
}

#[derive(Debug, Default)]
struct SocketState {
    events: VecDeque<SocketEvent>,
    waker: Option<Waker>,
    received_bytes: u64,
    closed: bool,
}

/// Callbacks of the browser, kept as long as it may call them.
#[derive(Debug)]
struct Handlers {
    _open: Closure<dyn FnMut()>,
    _message: Closure<dyn FnMut(MessageEvent)>,
    _close: Closure<dyn FnMut(CloseEvent)>,
}

impl SocketState {
    fn push(&mut self, event: SocketEvent) {
        if self.closed {
            return;
        }
        self.closed = matches!(event, SocketEvent::Closed { .. });
        self.events.push_back(event);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn lost(&mut self, reason: &str) {
        self.push(SocketEvent::Closed { code: None, reason: reason.to_owned() });
    }
}

impl Socket {
    /// Starts to connect to `url` (`ws` or `wss`) with the given subprotocol. The result arrives as an event.
    #[must_use]
    pub fn connect(url: &str, subprotocol: &str, limits: SocketLimits) -> Self {
        let shared = Rc::new(RefCell::new(SocketState::default()));
        let socket = WebSocket::new_with_str(url, subprotocol)
            .map_err(|error| shared.borrow_mut().lost(&format!("{url}: {}", thrown(&error))))
            .ok();
        let handlers = socket.as_ref().map(|socket| handlers(socket, &shared, limits.frame_bytes_max));
        Self {
            socket,
            shared,
            bulk: VecDeque::new(),
            bulk_bytes: 0,
            handed_bytes: 0,
            queue_bytes_max: limits.queue_bytes_max,
            handlers,
        }
    }

    /// Returns the next event, if one is available.
    pub fn try_recv(&mut self) -> Option<SocketEvent> {
        self.pump();
        self.shared.borrow_mut().events.pop_front()
    }

    /// Waits for the next event. After the last event it waits forever. Dropping the future loses no event.
    pub async fn recv(&mut self) -> SocketEvent {
        self.pump();
        poll_fn(|context| {
            let mut shared = self.shared.borrow_mut();
            if let Some(event) = shared.events.pop_front() {
                return Poll::Ready(event);
            }
            shared.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Queues one frame. Control frames are sent before `bulk` frames that wait.
    ///
    /// # Errors
    /// - [`SendError::Closed`]: the connection is closed. An event gives the reason.
    /// - [`SendError::QueueFull`]: more than `queue_bytes_max` bytes would wait.
    pub fn send(&mut self, frame: Vec<u8>, bulk: bool) -> Result<(), SendError> {
        let (queued_bytes, frame_bytes) = (self.queued_bytes(), frame.len());
        let queue_bytes_max = self.queue_bytes_max;
        if queued_bytes + frame_bytes > queue_bytes_max {
            return Err(SendError::QueueFull { queued_bytes, frame_bytes, queue_bytes_max });
        }
        if bulk {
            self.bulk_bytes += frame_bytes;
            self.bulk.push_back(frame);
            self.pump();
            Ok(())
        } else {
            self.hand_over(&frame)
        }
    }

    /// Sends a close frame after the control frames in the queue. Waiting bulk frames are dropped.
    /// [`SocketEvent::Closed`] follows within seconds.
    pub fn close(&mut self, code: u16, reason: &str) {
        self.bulk.clear();
        self.bulk_bytes = 0;
        let Some(socket) = &self.socket else { return };
        let code = if CODES.contains(&code) { code } else { CODE_NORMAL };
        // An error means that the socket is already closed.
        socket.close_with_code_and_reason(code, clip(reason, CLOSE_REASON_BYTES_MAX)).ok();
    }

    /// Returns the number of bytes that wait to be sent.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.bulk_bytes + self.buffered_bytes()
    }

    /// Returns the bytes that the socket has sent and received.
    #[must_use]
    pub fn bytes(&self) -> SocketBytes {
        SocketBytes {
            sent: self.handed_bytes.saturating_sub(self.buffered_bytes() as u64),
            received: self.shared.borrow().received_bytes,
        }
    }

    fn buffered_bytes(&self) -> usize {
        self.socket.as_ref().map_or(0, |socket| socket.buffered_amount() as usize)
    }

    /// Hands waiting bulk frames to the browser until its send buffer is full.
    fn pump(&mut self) {
        while self.buffered_bytes() < BUFFERED_BYTES_MAX {
            let Some(frame) = self.bulk.pop_front() else { return };
            self.bulk_bytes -= frame.len();
            if self.hand_over(&frame).is_err() {
                return;
            }
        }
    }

    fn hand_over(&mut self, frame: &[u8]) -> Result<(), SendError> {
        let socket = self.socket.as_ref().ok_or(SendError::Closed)?;
        if socket.ready_state() != WebSocket::OPEN {
            return Err(SendError::Closed);
        }
        socket.send_with_u8_array(frame).map_err(|_| SendError::Closed)?;
        self.handed_bytes += frame.len() as u64;
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            socket.set_onopen(None);
            socket.set_onmessage(None);
            socket.set_onclose(None);
            // An error means that the socket is already closed.
            socket.close().ok();
        }
        self.handlers = None;
    }
}

fn handlers(socket: &WebSocket, shared: &Rc<RefCell<SocketState>>, frame_bytes_max: usize) -> Handlers {
    socket.set_binary_type(BinaryType::Arraybuffer);
    let to = Rc::clone(shared);
    let open = Closure::<dyn FnMut()>::new(move || to.borrow_mut().push(SocketEvent::Opened));
    let (to, own) = (Rc::clone(shared), socket.clone());
    let message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        let mut shared = to.borrow_mut();
        let reason = match event.data().dyn_into::<ArrayBuffer>() {
            Ok(buffer) if buffer.byte_length() as usize <= frame_bytes_max => {
                shared.received_bytes += u64::from(buffer.byte_length());
                return shared.push(SocketEvent::Frame(Uint8Array::new(&buffer).to_vec()));
            }
            Ok(buffer) => format!("a frame of {} bytes, at most {frame_bytes_max}", buffer.byte_length()),
            Err(_) => "the peer sent text instead of bytes".to_owned(),
        };
        shared.lost(&reason);
        own.close().ok();
    });
    let to = Rc::clone(shared);
    let close = Closure::<dyn FnMut(CloseEvent)>::new(move |event: CloseEvent| {
        let (code, reason) = (event.code(), event.reason());
        let event = match code {
            CODE_BROKEN => SocketEvent::Closed {
                code: None,
                reason: "the connection was lost, or could not be made".to_owned(),
            },
            CODE_NONE => SocketEvent::Closed { code: None, reason: "closed without a reason".to_owned() },
            code => SocketEvent::Closed { code: Some(code), reason },
        };
        to.borrow_mut().push(event);
    });
    socket.set_onopen(Some(open.as_ref().unchecked_ref()));
    socket.set_onmessage(Some(message.as_ref().unchecked_ref()));
    socket.set_onclose(Some(close.as_ref().unchecked_ref()));
    Handlers { _open: open, _message: message, _close: close }
}
