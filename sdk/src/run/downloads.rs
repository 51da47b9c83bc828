//! Parameters and shards on their way, a few at a time; a shard is resumed where it broke off.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;

use archipelago_core::bytes::to_f32s;
use futures::StreamExt;
use futures::future::{Either, FutureExt, LocalBoxFuture, select};
use futures::stream::FuturesUnordered;

use crate::platform::{FetchError, FetchReply, FetchRequest, RequestHeader, fetch};
use crate::wire::http::{INVITE_HEADER, VERSION_HEADER, fragment_path, shard_path};
use crate::wire::{FragmentId, Invite, RunId, Version, clip};

use super::{Address, Backoff};

/// Fragments under way at once; each is held in memory whole.
const FRAGMENTS_MAX: usize = 4;

/// A transfer that ended.
#[derive(Debug)]
pub(super) enum Download {
    /// Θ̂ of a fragment, or why there is none.
    Fragment { fragment: FragmentId, result: Result<(Version, Vec<f32>), String> },
    /// The bytes of a shard, not yet checked, or why there are none.
    Shard { shard: u32, result: Result<Vec<u8>, String> },
}

type Reply = Result<FetchReply, FetchError>;

/// A transfer that ended and was not looked at yet.
pub(super) enum Ended {
    Fragment(Wanted, Reply),
    Shard(Reply),
}

/// All transfers of one run.
pub(super) struct Downloads {
    address: Address,
    fragments: FuturesUnordered<LocalBoxFuture<'static, (Wanted, Reply)>>,
    waiting: VecDeque<Wanted>,
    shard: Option<Shard>,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    run: RunId,
    fragment: FragmentId,
    version: Version,
    body_bytes: u64,
}

/// The one shard that is fetched at a time.
struct Shard {
    shard: u32,
    body_bytes: u64,
    transfer: Option<LocalBoxFuture<'static, Reply>>,
    retry_us: u64,
    /// What came before a transfer broke off.
    partial: Vec<u8>,
}

impl Downloads {
    /// Nothing under way; `seed` spreads the retries.
    pub(super) fn new(address: Address, seed: u64) -> Self {
        let (fragments, waiting) = (FuturesUnordered::new(), VecDeque::new());
        Self { address, fragments, waiting, shard: None, backoff: Backoff::new(seed) }
    }

    /// Gives up all fragments.
    pub(super) fn clear_fragments(&mut self) {
        self.fragments.clear();
        self.waiting.clear();
    }

    /// Gives up the shard, or is done with it.
    pub(super) fn clear_shard(&mut self) {
        self.shard = None;
    }

    /// Asks for Θ̂ of a fragment of `len` values, at `version` or later.
    pub(super) fn fragment(&mut self, run: RunId, fragment: FragmentId, version: Version, len: usize) {
        self.waiting.push_back(Wanted { run, fragment, version, body_bytes: 4 * len as u64 });
        self.start_waiting();
    }

    /// Sees to it that `shard`, `body_bytes` long, is on its way, and no other.
    pub(super) fn shard(&mut self, now_us: u64, run: RunId, shard: u32, body_bytes: u64) {
        let other = |held: &Shard| held.shard != shard;
        if self.shard.as_ref().is_none_or(other) {
            self.shard = Some(Shard { shard, body_bytes, transfer: None, retry_us: 0, partial: Vec::new() });
        }
        let held = self.shard.as_mut().expect("set above");
        if held.transfer.is_none() && held.retry_us <= now_us {
            let path = shard_path(run, shard);
            let start_byte = held.partial.len() as u64;
            let request = request(&self.address, &path, start_byte, body_bytes);
            held.transfer = Some(fetch(request).boxed_local());
        }
    }

    /// The bytes of `shard` were not that shard: they are fetched again, a little later.
    pub(super) fn reject_shard(&mut self, now_us: u64, shard: u32, body_bytes: u64) {
        let retry_us = now_us + 1_000 * self.backoff.next_ms(0);
        self.shard = Some(Shard { shard, body_bytes, transfer: None, retry_us, partial: Vec::new() });
    }

    /// A transfer that ended, if one did.
    pub(super) fn try_next(&mut self, now_us: u64) -> Option<Download> {
        let ended = self.ended().now_or_never()?;
        self.take(now_us, ended)
    }

    /// Waits for the end of a transfer, to be given to [`Self::take`]. Dropping the future loses nothing.
    pub(super) async fn ended(&mut self) -> Ended {
        let shard = async {
            match self.shard.as_mut().and_then(|shard| shard.transfer.as_mut()) {
                Some(transfer) => transfer.await,
                None => pending().await,
            }
        };
        let fragment = async {
            match self.fragments.next().await {
                Some(ended) => ended,
                None => pending().await,
            }
        };
        match select(pin!(fragment), pin!(shard)).await {
            Either::Left(((wanted, reply), _)) => Ended::Fragment(wanted, reply),
            Either::Right((reply, _)) => Ended::Shard(reply),
        }
    }

    /// Looks at what came, and starts what waited.
    pub(super) fn take(&mut self, now_us: u64, ended: Ended) -> Option<Download> {
        match ended {
            Ended::Fragment(Wanted { fragment, body_bytes, .. }, reply) => {
                self.start_waiting();
                let reply = reply.map_err(|error| error.to_string());
                let result = reply.and_then(|reply| values(&reply, body_bytes));
                Some(Download::Fragment { fragment, result })
            }
            Ended::Shard(reply) => {
                let mut held = self.shard.take()?;
                held.transfer = None;
                let shard = held.shard;
                let result = held.take(reply);
                if result.is_err() {
                    held.retry_us = now_us + 1_000 * self.backoff.next_ms(0);
                    self.shard = Some(held);
                }
                Some(Download::Shard { shard, result })
            }
        }
    }

    fn start_waiting(&mut self) {
        while self.fragments.len() < FRAGMENTS_MAX
            && let Some(wanted) = self.waiting.pop_front()
        {
            let Wanted { run, fragment, version, body_bytes } = wanted;
            let path = fragment_path(run, fragment, version);
            let request = request(&self.address, &path, 0, body_bytes);
            self.fragments.push(fetch(request).map(move |reply| (wanted, reply)).boxed_local());
        }
    }
}

/// The request for `path`; an invite goes along in a header, since addresses end up in logs.
fn request(address: &Address, path: &str, start_byte: u64, body_bytes_max: u64) -> FetchRequest {
    FetchRequest {
        url: address.http_url(path),
        start_byte,
        body_bytes_max,
        headers: address.invite().map(invite_header).into_iter().collect(),
        header: VERSION_HEADER,
    }
}

fn invite_header(invite: &Invite) -> RequestHeader {
    RequestHeader { name: INVITE_HEADER, value: invite.expose().to_owned() }
}

impl Shard {
    /// The whole shard, if it is complete now; else what came of it stays for the next attempt.
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
                self.partial.clear();
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
            Some(reason) => Err(format!("shard {}: {reason}", self.shard)),
            None if self.partial.len() as u64 == self.body_bytes => Ok(std::mem::take(&mut self.partial)),
            None => {
                let found = std::mem::take(&mut self.partial).len();
                Err(format!("shard {} came with {found} bytes instead of {}", self.shard, self.body_bytes))
            }
        }
    }
}

/// The values of a fragment and their version.
fn values(reply: &FetchReply, body_bytes: u64) -> Result<(Version, Vec<f32>), String> {
    if reply.status != 200 {
        return Err(refusal(reply));
    }
    let version = reply.header.as_deref().and_then(|text| text.parse().ok());
    let version = version.ok_or_else(|| format!("the answer names no version in {VERSION_HEADER}"))?;
    if reply.body.len() as u64 != body_bytes {
        return Err(format!("the answer has {} bytes instead of {body_bytes}", reply.body.len()));
    }
    Ok((Version(version), to_f32s(&reply.body)))
}

fn refusal(reply: &FetchReply) -> String {
    let text = String::from_utf8_lossy(&reply.body);
    format!("HTTP status {}: {}", reply.status, clip(text.trim(), 200))
}
