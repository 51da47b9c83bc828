//! Target-specific parts: clock, socket, HTTP, timer, random bytes, and vectors of floats. No other code of this
//! workspace depends on the target.
//!
//! This module knows nothing of training, messages or invites. Frames are opaque bytes, and headers are plain text.

#[cfg(all(feature = "client", not(target_family = "wasm")))]
mod hangup;
#[cfg(feature = "platform")]
mod io;
#[cfg(feature = "cpu-portable")]
pub(crate) mod lanes;
#[cfg(all(feature = "client", not(target_family = "wasm")))]
mod proxy;

#[cfg(all(feature = "platform", target_family = "wasm"))]
mod web;

#[cfg(all(feature = "platform", not(target_family = "wasm")))]
mod native;

#[cfg(all(feature = "platform", not(target_family = "wasm")))]
use native as sys;
#[cfg(all(feature = "platform", target_family = "wasm"))]
use web as sys;

#[cfg(all(feature = "client", not(target_family = "wasm")))]
pub use hangup::handles_sighup;
#[cfg(feature = "platform")]
pub use io::{
    ByteCount, FetchError, FetchReply, FetchRequest, RandomError, RequestHeader, SendError, SocketBytes,
    SocketEvent, SocketLimits,
};
/// Functions that exist only in native programs.
#[cfg(all(feature = "platform", not(target_family = "wasm")))]
pub use native::{TrustError, interrupted, silence_display, trust_only};
#[cfg(all(feature = "client", not(target_family = "wasm")))]
pub use proxy::{Proxy, ProxyError, transfer_fault};
#[cfg(feature = "platform")]
pub use sys::{Clock, Socket, fetch, open_private, random_bytes, silence, sleep, yield_now};
