//! What goes into a member and what comes out.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::diloco::Fragments;
use crate::wire::{Bye, Challenge, DecodeError, FragmentId, Hello, Message, Serial, Version, Welcome};

/// Something that happened.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// The connection of [`Output::Connect`] stands.
    Opened,
    /// Something came over the connection that is no whole message: a part of one, or a sign of life.
    Heard,
    /// A message came in.
    Message(Message),
    /// What came in is no message.
    Garbled(DecodeError),
    /// The connection is gone, or never came about.
    Closed { code: Option<u16>, reason: String },
    /// The engine of [`Output::Build`] stands; these are its fragments, and it takes `batch` windows in one step, at
    /// most [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// The engine failed; with `device_lost` it has to be made anew on another device, or on this one later.
    Failed { device_lost: bool, reason: String },
    /// Θ̂ of one fragment came, `[fragment_len]`, at the version that the answer named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// It did not.
    FetchFailed { fragment: FragmentId, reason: String },
    /// A download made progress: all or some of its bytes arrived.
    Fed,
    /// A download failed before any of its bytes arrived. Downloads with an input of their own are reported there.
    Unfed { reason: String },
    /// The bytes of a shard came, not yet checked, or why they did not.
    Shard { shard: u32, bytes: Result<Vec<u8>, String> },
    /// The bytes of the held-out windows came, not yet checked, or why they did not.
    HeldOut { bytes: Result<Vec<u8>, String> },
    /// The held-out loss that [`Output::Measure`] asked for, in nats per token, if the engine can measure it.
    Measured { number: u32, loss: Option<f32> },
    /// The body of [`Output::Encode`], and the digest of the Θ̂ that it is relative to.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// One inner step is done.
    Stepped(Step),
    /// As many tokens of the steps so far, and of none told before, went through each expert of the layout, in its
    /// order. To be said before the [`Input::Stepped`] after which it is known; who has nothing to tell says nothing.
    Saw { seen: Vec<u64> },
    /// The device worked for so long beyond the calls of the steps, in microseconds: rest is owed for it.
    Worked { us: u64 },
    /// The shell waited for so long with nothing to do, in microseconds: rest that was owed is paid by it.
    Waited { us: u64 },
    /// The owner paused or resumed training.
    Paused(bool),
    /// The page became hidden or visible.
    Hidden(bool),
    /// The owner has it train for this part of the time, in thousandths, 1 to 1000.
    Duty { permille: u16 },
    /// The owner has reason to believe that the syncer can be reached again.
    Hurry,
    /// The owner ends it politely; [`Output::End`] follows.
    Leave,
    /// While it leaves, and again whenever something came in: nothing waits to be sent any more, and the engine has
    /// nothing to bring out.
    Flushed,
    /// [`super::Member::deadline`] has come, or may have; also to be said after each step.
    Timeout,
}

/// One inner step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Tokens trained on.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// How long its call took, in microseconds: rest is owed for it.
    pub busy_us: u64,
    /// What earlier steps took beyond their calls and no step has reported yet, in microseconds: told before by
    /// [`Input::Worked`].
    pub earlier_us: u64,
}

/// Something to do, in this order, before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Make a connection; answer with [`Input::Opened`] or [`Input::Closed`].
    Connect,
    /// Sign the challenge's text, put the signature into `hello` and send it, unless the connection is another one by
    /// then.
    Greet { hello: Box<Hello>, challenge: Challenge },
    /// Send a message.
    Send(Message),
    /// Say goodbye and close the connection; [`Input::Closed`] is awaited for a while.
    Close(Bye),
    /// Drop the connection, after `farewell` if there is one, and all fetches of fragments: nothing of them is to come
    /// in any more. The next attempt is in `retry_ms`.
    Disconnect { farewell: Option<Bye>, reason: String, retry_ms: u64 },
    /// Make the engine of this run, or unless `anew` keep that of before; answer with [`Input::Built`] or
    /// [`Input::Failed`].
    Build { welcome: Box<Welcome>, anew: bool },
    /// Drop the engine and the fetch of a shard: it joins as a newcomer does.
    Afresh { reason: String },
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Fetch a shard, and no other any more.
    FetchShard { shard: u32, body_bytes: u64 },
    /// Code the progress on a fragment as of now; answer with [`Input::Encoded`], which may come later.
    Encode { serial: Serial, fragment: FragmentId },
    /// The update that was coded last is part of Θ̂, or of the one that comes next (`Replica::include`).
    Include { fragment: FragmentId },
    /// Take in a merged change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Take in a whole Θ̂ (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Fetch the held-out windows, which have so many bytes at most; answer with [`Input::HeldOut`].
    FetchHeldOut { body_bytes_max: u64 },
    /// Measure the loss of Θ̂ on these windows, `[n, context + 1]`; answer with [`Input::Measured`].
    Measure { number: u32, windows: Arc<[u32]> },
    /// Something went wrong that is dealt with; for people.
    Trouble { reason: String },
    /// It is over: nothing comes after this.
    End(End),
}

/// How a membership ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its owner ended it.
    Left,
    /// The run is complete.
    Complete(Bye),
    /// The syncer will not have this learner, now or later.
    Refused(Bye),
    /// The syncer did not take it in, for too long.
    Unreachable {
        /// How long, in milliseconds.
        waited_ms: u64,
        /// What came of the last attempt.
        reason: String,
    },
    /// Its device was lost again and again.
    DeviceLost,
}
