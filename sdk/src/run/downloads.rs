//! Parameters and shards on their way, a few at a time; a shard is resumed where it broke off.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;

use archipelago_core::bytes::to_f32s;
use futures::StreamExt;
use futures::future::{Either, FutureExt, LocalBoxFuture, select};
use futures::stream::FuturesUnordered;

use crate::member::Input;
use crate::platform::{FetchError, FetchReply, FetchRequest, RequestHeader, fetch};
use crate::wire::http::{INVITE_HEADER, VERSION_HEADER, fragment_path, shard_path};
use crate::wire::{FragmentId, Invite, RunId, Version, clip};

use super::Address;

/// Fragments under way at once; each is held in memory whole.
const FRAGMENTS_MAX: usize = 4;

type Reply = Result<FetchReply, FetchError>;

/// A transfer that ended and was not looked at yet.
enum Ended {
    Fragment(Wanted, Reply),
    Shard(Reply),
}

/// All transfers of one run.
pub(super) struct Downloads {
    address: Address,
    fragments: FuturesUnordered<LocalBoxFuture<'static, (Wanted, Reply)>>,
    waiting: VecDeque<Wanted>,
    shard: Option<Shard>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    run: RunId,
    fragment: FragmentId,
    version: Version,
    body_bytes: u64,
}

/// The one shard that is fetched at a time.
struct Shard {
    shard: u32,
    body_bytes: u64,
    /// `None` once it broke off, until it is asked for again.
    transfer: Option<LocalBoxFuture<'static, Reply>>,
    /// What came before a transfer broke off.
    partial: Vec<u8>,
}

impl Downloads {
    /// Nothing under way.
    pub(super) fn new(address: Address) -> Self {
        let (fragments, waiting) = (FuturesUnordered::new(), VecDeque::new());
        Self { address, fragments, waiting, shard: None }
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

    /// Asks for `shard`, `body_bytes` long, from where it broke off; any other is given up.
    pub(super) fn shard(&mut self, run: RunId, shard: u32, body_bytes: u64) {
        let broken = self.shard.take().filter(|held| held.shard == shard);
        let partial = broken.map(|held| held.partial).unwrap_or_default();
        let path = shard_path(run, shard);
        let request = request(&self.address, &path, partial.len() as u64, body_bytes);
        let transfer = Some(fetch(request).boxed_local());
        self.shard = Some(Shard { shard, body_bytes, transfer, partial });
    }

    /// What became of a transfer that ended, if one did.
    pub(super) fn try_next(&mut self) -> Option<Input> {
        self.next().now_or_never()
    }

    /// Waits for the end of a transfer, and starts what waited for it; for ever without one. Dropping the future loses
    /// nothing.
    pub(super) async fn next(&mut self) -> Input {
        loop {
            let ended = self.ended().await;
            if let Some(input) = self.take(ended) {
                return input;
            }
        }
    }

    async fn ended(&mut self) -> Ended {
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

    fn take(&mut self, ended: Ended) -> Option<Input> {
        match ended {
            Ended::Fragment(Wanted { fragment, body_bytes, .. }, reply) => {
                self.start_waiting();
                let reply = reply.map_err(|error| error.to_string());
                Some(match reply.and_then(|reply| values(&reply, body_bytes)) {
                    Ok((version, values)) => Input::Fetched { fragment, version, values },
                    Err(reason) => Input::FetchFailed { fragment, reason },
                })
            }
            Ended::Shard(reply) => {
                let mut held = self.shard.take()?;
                held.transfer = None;
                let (shard, bytes) = (held.shard, held.take(reply));
                self.shard = Some(held).filter(|_| bytes.is_err());
                Some(Input::Shard { shard, bytes })
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
