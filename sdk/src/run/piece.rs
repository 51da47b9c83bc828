//! A body fetched as a whole, one of its kind at a time, and resumed after an interruption.

use std::future::pending;

use futures::future::{FutureExt, LocalBoxFuture};

use archipelago_runtime::platform::{FetchError, FetchReply, FetchRequest};

use super::transfer::{Reply, patient, refusal};

/// A shard or a part of the frozen weights: one of each kind is fetched at a time.
pub(super) struct Piece {
    /// Its kind, for display.
    kind: &'static str,
    index: u32,
    body_bytes: u64,
    /// `None` after an interruption, until the next request.
    transfer: Option<LocalBoxFuture<'static, Reply>>,
    /// Data received before an interruption.
    partial: Vec<u8>,
}

impl Piece {
    /// Returns a piece without data.
    pub(super) fn new(kind: &'static str, index: u32, body_bytes: u64) -> Self {
        Self { kind, index, body_bytes, transfer: None, partial: Vec::new() }
    }

    /// Takes over the data of the same piece; any other piece is cancelled.
    pub(super) fn after(self, held: Option<Self>) -> Self {
        let partial = held.filter(|held| held.index == self.index).map(|held| held.partial);
        Self { partial: partial.unwrap_or_default(), ..self }
    }

    /// Returns the offset to resume from.
    pub(super) fn start_byte(&self) -> u64 {
        self.partial.len() as u64
    }

    /// Starts the transfer by `request`.
    pub(super) fn begun(self, request: FetchRequest) -> Self {
        Self { transfer: Some(patient(request).boxed_local()), ..self }
    }

    /// Returns the whole piece if it is complete. Otherwise keeps its data for the next attempt.
    fn take(&mut self, reply: Reply) -> Result<Vec<u8>, String> {
        let failed = match reply {
            Ok(FetchReply { status: 206, body, .. }) => {
                self.partial.extend(body);
                None
            }
            Ok(FetchReply { status: 200, body, .. }) => {
                self.partial = body;
                None
            }
            Ok(reply) => {
                // Earlier data remains useful if the syncer is merely busy.
                if reply.status != 503 {
                    self.partial.clear();
                }
                Some(refusal(&reply))
            }
            Err(error) => {
                let text = error.to_string();
                match error {
                    FetchError::Network { status: Some(206), partial, .. } => self.partial.extend(partial),
                    FetchError::Network { status: Some(200), partial, .. } => self.partial = partial,
                    FetchError::Network { .. } => {}
                    FetchError::TooLarge { .. } => self.partial.clear(),
                }
                Some(text)
            }
        };
        match failed {
            Some(reason) => Err(format!("{} {}: {reason}", self.kind, self.index)),
            None if self.partial.len() as u64 == self.body_bytes => Ok(std::mem::take(&mut self.partial)),
            None => {
                let found = std::mem::take(&mut self.partial).len();
                let Self { kind, index, body_bytes, .. } = self;
                Err(format!("{kind} {index} came with {found} bytes instead of {body_bytes}"))
            }
        }
    }
}

/// Waits for the end of a piece's transfer; without one it waits for ever.
pub(super) async fn ends(piece: &mut Option<Piece>) -> Reply {
    match piece.as_mut().and_then(|piece| piece.transfer.as_mut()) {
        Some(transfer) => transfer.await,
        None => pending().await,
    }
}

/// Returns the index and the result of the piece in `slot`. An incomplete piece stays there to be resumed.
pub(super) fn came(slot: &mut Option<Piece>, reply: Reply) -> Option<(u32, Result<Vec<u8>, String>)> {
    let mut held = slot.take()?;
    held.transfer = None;
    let (index, bytes) = (held.index, held.take(reply));
    *slot = Some(held).filter(|_| bytes.is_err());
    Some((index, bytes))
}
