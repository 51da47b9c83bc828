//! Parameters and shards on their way, a few at a time; what broke off is resumed there.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::pin::pin;

use futures::StreamExt;
use futures::future::{Either, FutureExt, LocalBoxFuture, select};
use futures::stream::FuturesUnordered;

use archipelago_core::bytes::hex;
use archipelago_core::diloco::halves;
use archipelago_core::member::Input;
use archipelago_core::wire::http::{
    INVITE_HEADER, PASS_HEADER, VERSION_HEADER, fragment_path, fragment_tag, held_out_path, shard_path,
};
use archipelago_core::wire::{FragmentId, Invite, RunId, Version, clip};
use archipelago_runtime::platform::{
    ByteCount, FetchError, FetchReply, FetchRequest, RequestHeader, fetch, sleep,
};

use super::Address;

/// Fragments under way at once; each is held in memory whole.
const FRAGMENTS_MAX: usize = 4;

/// Longest wait for a syncer that has no time now, in seconds.
const RETRY_S_MAX: u32 = 30;

type Reply = Result<FetchReply, FetchError>;

/// A transfer that ended and was not looked at yet.
enum Ended {
    Fragment(Wanted, Reply),
    Shard(Reply),
    HeldOut(Reply),
}

/// All transfers of one run.
pub(super) struct Downloads {
    address: Address,
    /// What shows that this learner was taken in.
    pass: Option<String>,
    fragments: FuturesUnordered<LocalBoxFuture<'static, (Wanted, Reply)>>,
    waiting: VecDeque<Wanted>,
    /// What came of fragments before their transfers broke off.
    broken: BTreeMap<FragmentId, Begun>,
    shard: Option<Shard>,
    held_out: Option<LocalBoxFuture<'static, Reply>>,
    /// Bytes of all bodies, as they come.
    count: ByteCount,
}

#[derive(Debug)]
struct Wanted {
    run: RunId,
    fragment: FragmentId,
    version: Version,
    body_bytes: u64,
    begun: Option<Begun>,
}

/// The beginning of one version of a fragment.
#[derive(Debug)]
struct Begun {
    run: RunId,
    version: Version,
    bytes: Vec<u8>,
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
        Self {
            address,
            pass: None,
            fragments,
            waiting,
            broken: BTreeMap::new(),
            shard: None,
            held_out: None,
            count: ByteCount::default(),
        }
    }

    /// Bytes of bodies that came so far, those that broke off or were given up among them.
    pub(super) fn bytes(&self) -> u64 {
        self.count.get()
    }

    /// What was taken in over the connection with this nonce is shown it from now on.
    pub(super) fn set_pass(&mut self, nonce: &[u8; 32]) {
        self.pass = Some(hex(nonce));
    }

    /// Gives up all fragments, and the held-out windows.
    pub(super) fn clear_fragments(&mut self) {
        self.held_out = None;
        self.fragments.clear();
        self.waiting.clear();
    }

    /// Gives up the shard, or is done with it.
    pub(super) fn clear_shard(&mut self) {
        self.shard = None;
    }

    /// Asks for Θ̂ of a fragment of `len` values, at `version` or later; or for the rest of an earlier one that broke
    /// off, if the syncer still has that.
    pub(super) fn fragment(&mut self, run: RunId, fragment: FragmentId, version: Version, len: usize) {
        let body_bytes = (halves::BYTES * len) as u64;
        self.waiting.push_back(Wanted { run, fragment, version, body_bytes, begun: None });
        self.start_waiting();
    }

    /// Asks for `shard`, `body_bytes` long, from where it broke off; any other is given up.
    pub(super) fn shard(&mut self, run: RunId, shard: u32, body_bytes: u64) {
        let broken = self.shard.take().filter(|held| held.shard == shard);
        let partial = broken.map(|held| held.partial).unwrap_or_default();
        let path = shard_path(run, shard);
        let from = (&self.address, self.pass.as_deref(), &self.count);
        let request = request(from, &path, partial.len() as u64, body_bytes, None);
        let transfer = Some(fetch(request).boxed_local());
        self.shard = Some(Shard { shard, body_bytes, transfer, partial });
    }

    /// Asks for the held-out windows, at most so long.
    pub(super) fn held_out(&mut self, run: RunId, body_bytes_max: u64) {
        let from = (&self.address, self.pass.as_deref(), &self.count);
        let request = request(from, &held_out_path(run), 0, body_bytes_max, None);
        self.held_out = Some(fetch(request).boxed_local());
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
        let held_out = async {
            match self.held_out.as_mut() {
                Some(transfer) => transfer.await,
                None => pending().await,
            }
        };
        match select(pin!(fragment), select(pin!(shard), pin!(held_out))).await {
            Either::Left(((wanted, reply), _)) => Ended::Fragment(wanted, reply),
            Either::Right((Either::Left((reply, _)), _)) => Ended::Shard(reply),
            Either::Right((Either::Right((reply, _)), _)) => Ended::HeldOut(reply),
        }
    }

    fn take(&mut self, ended: Ended) -> Option<Input> {
        match ended {
            Ended::Fragment(wanted, reply) => {
                let (fragment, body_bytes) = (wanted.fragment, wanted.body_bytes);
                let taken = wanted.take(reply);
                let taken = taken.and_then(|begun| begun.complete(body_bytes)).map_err(|(reason, begun)| {
                    self.broken.extend(begun.map(|begun| (fragment, begun)));
                    reason
                });
                self.start_waiting();
                Some(match taken {
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
            Ended::HeldOut(reply) => {
                self.held_out = None;
                let bytes = match reply {
                    Ok(FetchReply { status: 200, body, .. }) => Ok(body),
                    Ok(reply) => Err(refusal(&reply)),
                    Err(error) => Err(error.to_string()),
                };
                Some(Input::HeldOut { bytes })
            }
        }
    }

    fn start_waiting(&mut self) {
        while self.fragments.len() < FRAGMENTS_MAX
            && let Some(mut wanted) = self.waiting.pop_front()
        {
            let Wanted { run, fragment, version, body_bytes, .. } = wanted;
            wanted.begun = self.broken.remove(&fragment).filter(|begun| begun.run == run);
            let from = (&self.address, self.pass.as_deref(), &self.count);
            let request = match &wanted.begun {
                None => request(from, &fragment_path(run, fragment, version), 0, body_bytes, None),
                Some(Begun { version, bytes, .. }) => {
                    let path = fragment_path(run, fragment, *version);
                    let tag = fragment_tag(run, fragment, *version);
                    request(from, &path, bytes.len() as u64, body_bytes, Some(tag))
                }
            };
            self.fragments.push(patient(request).map(move |reply| (wanted, reply)).boxed_local());
        }
    }
}

/// Fetches, and keeps the answer back for as long as a syncer without time asks for.
async fn patient(request: FetchRequest) -> Reply {
    let reply = fetch(request).await;
    if let Ok(FetchReply { status: 503, retry_after_s: Some(seconds), .. }) = &reply {
        sleep(1_000 * u64::from(RETRY_S_MAX.min(*seconds))).await;
    }
    reply
}

/// The request for `path`, from `start_byte` on if it still has the `tag`; invite and pass go along in headers, since
/// addresses end up in logs.
fn request(
    (address, pass, count): (&Address, Option<&str>, &ByteCount),
    path: &str,
    start_byte: u64,
    body_bytes_max: u64,
    tag: Option<String>,
) -> FetchRequest {
    let pass = pass.map(|pass| RequestHeader { name: PASS_HEADER, value: pass.to_owned() });
    let if_range = tag.map(|value| RequestHeader { name: "if-range", value });
    FetchRequest {
        url: address.http_url(path),
        start_byte,
        body_bytes_max,
        headers: [address.invite().map(invite_header), pass, if_range].into_iter().flatten().collect(),
        header: VERSION_HEADER,
        count: count.clone(),
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

impl Wanted {
    /// What is there of the fragment after `reply`; or why nothing more, with what to go on from.
    fn take(self, reply: Reply) -> Result<Begun, (String, Option<Begun>)> {
        let run = self.run;
        match reply {
            Ok(FetchReply { status: 206, body, .. }) => Ok(self.joined(body)),
            Ok(FetchReply { status: 200, header, body, .. }) => match version_in(header) {
                Some(version) => Ok(Begun { run, version, bytes: body }),
                None => Err((format!("the answer names no version in {VERSION_HEADER}"), None)),
            },
            // What came before stays of use if the syncer only has no time.
            Ok(reply) => Err((refusal(&reply), self.begun.filter(|_| reply.status == 503))),
            Err(error) => {
                let reason = error.to_string();
                let begun = match error {
                    FetchError::Network { status: Some(206), partial, .. } => Some(self.joined(partial)),
                    FetchError::Network { status: Some(200), header, partial, .. } => {
                        version_in(header).map(|version| Begun { run, version, bytes: partial })
                    }
                    FetchError::Network { .. } => self.begun,
                    FetchError::TooLarge { .. } => None,
                };
                // A range from 0 on would be no range.
                Err((reason, begun.filter(|begun| !begun.bytes.is_empty())))
            }
        }
    }

    /// What came before, with `more` behind it.
    fn joined(self, more: Vec<u8>) -> Begun {
        let mut begun =
            self.begun.unwrap_or(Begun { run: self.run, version: self.version, bytes: Vec::new() });
        begun.bytes.extend(more);
        begun
    }
}

impl Begun {
    /// The version and its values, if all `body_bytes` are there.
    fn complete(self, body_bytes: u64) -> Result<(Version, Vec<f32>), (String, Option<Self>)> {
        if self.bytes.len() as u64 == body_bytes {
            return Ok((self.version, halves::from_bytes(&self.bytes)));
        }
        Err((format!("it came with {} bytes instead of {body_bytes}", self.bytes.len()), None))
    }
}

fn version_in(header: Option<String>) -> Option<Version> {
    header.and_then(|text| text.parse().ok()).map(Version)
}

fn refusal(reply: &FetchReply) -> String {
    let text = String::from_utf8_lossy(&reply.body);
    format!("HTTP status {}: {}", reply.status, clip(text.trim(), 200))
}
