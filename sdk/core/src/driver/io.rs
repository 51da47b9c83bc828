//! Inputs and outputs of a member.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::diloco::Fragments;
use crate::wire::{Bye, Challenge, DecodeError, FragmentId, Hello, Message, Serial, Version, Welcome};

/// An event for the member.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// The connection of [`Output::Connect`] is open.
    Opened,
    /// Part of a message or a sign of life came over the connection.
    Heard,
    /// A message arrived.
    Message(Message),
    /// Invalid bytes arrived.
    Garbled(DecodeError),
    /// The connection ended, or could not be opened.
    Closed { code: Option<u16>, reason: String },
    /// The engine of [`Output::Build`] is ready. It has these fragments and takes `batch` windows in one step, at most
    /// [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// The engine failed. If `device_lost`, it must be built again on another device, or on the same one later.
    Failed { device_lost: bool, reason: String },
    /// Θ̂ of one fragment arrived, `[fragment_len]`, at the version that the answer named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// The download of a fragment failed.
    FetchFailed { fragment: FragmentId, reason: String },
    /// A download made progress: all or some of its bytes arrived.
    Fed,
    /// A download failed before any of its bytes arrived. Some downloads report failures by an input of their own
    /// instead.
    Unfed { reason: String },
    /// The bytes of a shard arrived, not checked yet, or the download failed.
    Shard { shard: u32, bytes: Result<Vec<u8>, String> },
    /// The bytes of the held-out windows arrived, not checked yet, or the download failed.
    HeldOut { bytes: Result<Vec<u8>, String> },
    /// The held-out loss for [`Output::Measure`], in nats per token; `None` if the engine cannot measure it.
    Measured { number: u32, loss: Option<f32> },
    /// The body for [`Output::Encode`], and the digest of the Θ̂ that it is relative to.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// One inner step finished.
    Stepped(Step),
    /// Routed tokens for each expert of the layout, in its order, since the last report. It must precede the
    /// [`Input::Stepped`] of the step that they belong to. Engines without counts never send it.
    ExpertLoad { seen: Vec<u64> },
    /// Time that the device worked beyond the calls of the steps, in microseconds. Rest is owed for it.
    Worked { us: u64 },
    /// Time that the shell waited idly, in microseconds. It pays for owed rest.
    Waited { us: u64 },
    /// The owner paused or resumed training.
    Paused(bool),
    /// The page became hidden or visible.
    Hidden(bool),
    /// The owner set the duty cycle, in thousandths, 1 to 1000.
    Duty { permille: u16 },
    /// The owner expects that the syncer can be reached again.
    DrainNow,
    /// The owner ends the membership politely; [`Output::End`] follows.
    Leave,
    /// All output is sent and the engine has nothing left to deliver. Repeated after each input while the member
    /// leaves.
    Flushed,
    /// [`super::LearnerDriver::deadline`] may have passed. Also required after each step.
    Timeout,
}

/// One inner step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Tokens trained on.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// Duration of the step's call in microseconds. Rest is owed for it.
    pub busy_us: u64,
    /// Time of earlier steps beyond their calls that no step has reported yet, in microseconds. [`Input::Worked`]
    /// reported it before.
    pub earlier_us: u64,
}

/// An action, to be carried out in this order before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Open a connection; answer with [`Input::Opened`] or [`Input::Closed`].
    Connect,
    /// Sign the challenge's text, put the signature into `hello` and send it, unless the connection has been replaced
    /// by then.
    Greet { hello: Box<Hello>, challenge: Challenge },
    /// Send a message.
    Send(Message),
    /// Send the goodbye and close the connection. The member waits for [`Input::Closed`] for a while.
    Close(Bye),
    /// Drop the connection, after `farewell` if there is one, and all downloads of fragments. No further input may come
    /// from them. The next attempt is in `retry_ms`.
    Disconnect { farewell: Option<Bye>, reason: String, retry_ms: u64 },
    /// Build the engine of this run, or keep the previous one unless `anew` is true. Answer with [`Input::Built`] or
    /// [`Input::Failed`].
    Build { welcome: Box<Welcome>, anew: bool },
    /// Drop the engine and the download of a shard: the member joins from scratch.
    Afresh { reason: String },
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Fetch a shard, and cancel the download of any other.
    FetchShard { shard: u32, body_bytes: u64 },
    /// Encode the current progress on a fragment. Answer with [`Input::Encoded`], which may come later.
    Encode { serial: Serial, fragment: FragmentId },
    /// The last encoded update is part of Θ̂ or of its next version (`Replica::include`).
    Include { fragment: FragmentId },
    /// Apply a merged change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Load a whole Θ̂ (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Fetch the held-out windows, of at most `body_bytes_max` bytes. Answer with [`Input::HeldOut`].
    FetchHeldOut { body_bytes_max: u64 },
    /// Measure the loss of Θ̂ on these windows, `[n, context + 1]`. Answer with [`Input::Measured`].
    Measure { number: u32, windows: Arc<[u32]> },
    /// Report a fault that the member handles; for display.
    Trouble { reason: String },
    /// The membership is over: no output follows.
    End(End),
}

/// End of a membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The owner ended it.
    Left,
    /// The run is complete.
    Complete(Bye),
    /// The syncer permanently refuses this learner.
    Refused(Bye),
    /// The syncer did not admit the learner within the time limit.
    Unreachable {
        /// Waiting time in milliseconds.
        waited_ms: u64,
        /// Result of the last attempt.
        reason: String,
    },
    /// The device was lost too many times.
    DeviceLost,
}
