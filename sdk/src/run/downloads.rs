//! Downloads of parameters, shards, frozen weights and held-out windows. Interrupted transfers are resumed.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::pin::pin;

use archipelago_core::bytes::hex;
use archipelago_core::diloco::binary16;
use archipelago_core::driver::Input;
use archipelago_core::text::plain;
use archipelago_core::wire::http::{
    INVITE_HEADER, PASS_HEADER, VERSION_HEADER, fragment_path, fragment_tag, frozen_path, held_out_path,
    shard_path,
};
use archipelago_core::wire::{FragmentId, Invite, RunId, Version, clip};
use archipelago_runtime::platform::{
    ByteCount, FetchError, FetchReply, FetchRequest, RequestHeader, fetch, sleep,
};
use futures::StreamExt;
use futures::future::{Either, FutureExt, LocalBoxFuture, select};
use futures::stream::FuturesUnordered;

use super::Address;

/// Maximum number of simultaneous downloads of fragments. Each download is held in memory.
const FRAGMENTS_MAX: usize = 4;

/// Finished transfer whose result is not processed yet.
enum FinishedTransfer {
    Fragment(FragmentDownload, Reply),
    Shard(Reply),
    Frozen(Reply),
    HeldOut(Reply),
}

/// Result of a finished transfer.
pub(super) enum TransferResult {
    /// An input for the driver.
    Input(Input),
    /// A part of the frozen weights, or the reason for its failure.
    Frozen(Result<Vec<u8>, String>),
}

/// All transfers of one run.
pub(super) struct Downloads {
    address: Address,
    /// Nonce that proves admission in requests.
    pass: Option<String>,
    fragments: FuturesUnordered<LocalBoxFuture<'static, (FragmentDownload, Reply)>>,
    waiting: VecDeque<FragmentDownload>,
    /// Data of interrupted transfers of fragments.
    broken: BTreeMap<FragmentId, PartialFragment>,
    shard: Option<PartDownload>,
    frozen: Option<PartDownload>,
    held_out: Option<LocalBoxFuture<'static, Reply>>,
    /// Received bytes of all response bodies.
    count: ByteCount,
}

#[derive(Debug)]
struct FragmentDownload {
    run: RunId,
    fragment: FragmentId,
    version: Version,
    body_bytes: u64,
    begun: Option<PartialFragment>,
}

/// First part of one version of a fragment.
#[derive(Debug)]
struct PartialFragment {
    run: RunId,
    version: Version,
    bytes: Vec<u8>,
}

impl Downloads {
    /// Returns a value without transfers.
    pub(super) fn new(address: Address) -> Self {
        let (fragments, waiting) = (FuturesUnordered::new(), VecDeque::new());
        Self {
            address,
            pass: None,
            fragments,
            waiting,
            broken: BTreeMap::new(),
            shard: None,
            frozen: None,
            held_out: None,
            count: ByteCount::default(),
        }
    }

    /// Returns the received bytes of all response bodies, including interrupted and cancelled ones.
    pub(super) fn bytes(&self) -> u64 {
        self.count.get()
    }

    /// Sets the nonce of the connection that admitted the learner, for later requests.
    pub(super) fn set_pass(&mut self, nonce: &[u8; 32]) {
        self.pass = Some(hex(nonce));
    }

    /// Cancels the downloads of all fragments and of the held-out windows.
    pub(super) fn clear_fragments(&mut self) {
        self.held_out = None;
        self.fragments.clear();
        self.waiting.clear();
    }

    /// Cancels the download of the shard and drops its data.
    pub(super) fn clear_shard(&mut self) {
        self.shard = None;
    }

    /// Cancels the download of the part of the frozen weights and drops its data.
    pub(super) fn clear_frozen(&mut self) {
        self.frozen = None;
    }

    /// Requests Θ̂ of a fragment of `len` values, at `version` or later. If an earlier transfer was interrupted, it
    /// requests the remainder of that version, which the syncer may still have.
    pub(super) fn fragment(&mut self, run: RunId, fragment: FragmentId, version: Version, len: usize) {
        let body_bytes = (binary16::BYTES * len) as u64;
        self.waiting.push_back(FragmentDownload { run, fragment, version, body_bytes, begun: None });
        self.start_waiting();
    }

    /// Requests the shard with index `shard` and `body_bytes` bytes, resuming an interrupted transfer. Any other
    /// shard is cancelled.
    pub(super) fn shard(&mut self, run: RunId, shard: u32, body_bytes: u64) {
        let download = PartDownload::new("shard", shard, body_bytes).after(self.shard.take());
        let from = (&self.address, self.pass.as_deref(), &self.count);
        let request = request(from, &shard_path(run, shard), download.start_byte(), body_bytes, None);
        self.shard = Some(download.begun(request));
    }

    /// Requests a part of the frozen weights, like [`Self::shard`].
    pub(super) fn frozen(&mut self, run: RunId, part: u32, body_bytes: u64) {
        let download =
            PartDownload::new("part of the frozen weights", part, body_bytes).after(self.frozen.take());
        let from = (&self.address, self.pass.as_deref(), &self.count);
        let request = request(from, &frozen_path(run, part), download.start_byte(), body_bytes, None);
        self.frozen = Some(download.begun(request));
    }

    /// Requests the held-out windows, at most `body_bytes_max` long.
    pub(super) fn held_out(&mut self, run: RunId, body_bytes_max: u64) {
        let from = (&self.address, self.pass.as_deref(), &self.count);
        let request = request(from, &held_out_path(run), 0, body_bytes_max, None);
        self.held_out = Some(fetch(request).boxed_local());
    }

    /// Returns the result of a finished transfer, if there is one.
    pub(super) fn try_next(&mut self) -> Option<TransferResult> {
        self.next().now_or_never()
    }

    /// Waits for the end of a transfer, and starts the next one in the queue. Without transfers it waits forever. It
    /// is safe to drop the future.
    pub(super) async fn next(&mut self) -> TransferResult {
        loop {
            let ended = self.ended().await;
            if let Some(result) = self.take(ended) {
                return result;
            }
        }
    }

    async fn ended(&mut self) -> FinishedTransfer {
        let shard = finished(&mut self.shard);
        let frozen = finished(&mut self.frozen);
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
        let (shard, held_out, fragment, frozen) = (pin!(shard), pin!(held_out), pin!(fragment), pin!(frozen));
        match select(select(shard, held_out), select(fragment, frozen)).await {
            Either::Left((Either::Left((reply, _)), _)) => FinishedTransfer::Shard(reply),
            Either::Left((Either::Right((reply, _)), _)) => FinishedTransfer::HeldOut(reply),
            Either::Right((Either::Left(((wanted, reply), _)), _)) => {
                FinishedTransfer::Fragment(wanted, reply)
            }
            Either::Right((Either::Right((reply, _)), _)) => FinishedTransfer::Frozen(reply),
        }
    }

    fn take(&mut self, ended: FinishedTransfer) -> Option<TransferResult> {
        Some(TransferResult::Input(match ended {
            FinishedTransfer::Fragment(wanted, reply) => {
                let (fragment, body_bytes) = (wanted.fragment, wanted.body_bytes);
                let taken = wanted.take(reply);
                let taken = taken.and_then(|begun| begun.complete(body_bytes)).map_err(|(reason, begun)| {
                    self.broken.extend(begun.map(|begun| (fragment, begun)));
                    reason
                });
                self.start_waiting();
                match taken {
                    Ok((version, values)) => Input::Fetched { fragment, version, values },
                    Err(reason) => Input::FetchFailed { fragment, reason },
                }
            }
            FinishedTransfer::Shard(reply) => {
                let (shard, bytes) = finish(&mut self.shard, reply)?;
                Input::Shard { shard, bytes }
            }
            FinishedTransfer::Frozen(reply) => {
                return finish(&mut self.frozen, reply).map(|(_, bytes)| TransferResult::Frozen(bytes));
            }
            FinishedTransfer::HeldOut(reply) => {
                self.held_out = None;
                let bytes = match reply {
                    Ok(FetchReply { status: 200, body, .. }) => Ok(body),
                    Ok(reply) => Err(refusal(&reply)),
                    Err(error) => Err(error.to_string()),
                };
                Input::HeldOut { bytes }
            }
        }))
    }

    fn start_waiting(&mut self) {
        while self.fragments.len() < FRAGMENTS_MAX
            && let Some(mut wanted) = self.waiting.pop_front()
        {
            let FragmentDownload { run, fragment, version, body_bytes, .. } = wanted;
            wanted.begun = self.broken.remove(&fragment).filter(|begun| begun.run == run);
            let from = (&self.address, self.pass.as_deref(), &self.count);
            let request = match &wanted.begun {
                None => request(from, &fragment_path(run, fragment, version), 0, body_bytes, None),
                Some(PartialFragment { version, bytes, .. }) => {
                    let path = fragment_path(run, fragment, *version);
                    let tag = fragment_tag(run, fragment, *version);
                    request(from, &path, bytes.len() as u64, body_bytes, Some(tag))
                }
            };
            self.fragments.push(fetch_patiently(request).map(move |reply| (wanted, reply)).boxed_local());
        }
    }
}

impl FragmentDownload {
    /// Returns the data of the fragment after `reply`, or the reason of the failure and the data to resume from.
    fn take(self, reply: Reply) -> Result<PartialFragment, (String, Option<PartialFragment>)> {
        let run = self.run;
        match reply {
            Ok(FetchReply { status: 206, body, .. }) => Ok(self.joined(body)),
            Ok(FetchReply { status: 200, header, body, .. }) => match version_in(header) {
                Some(version) => Ok(PartialFragment { run, version, bytes: body }),
                None => Err((format!("the answer names no version in {VERSION_HEADER}"), None)),
            },
            // Earlier data stays useful if the syncer is only busy.
            Ok(reply) => Err((refusal(&reply), self.begun.filter(|_| reply.status == 503))),
            Err(error) => {
                let reason = error.to_string();
                let begun = match error {
                    FetchError::Network { status: Some(206), partial, .. } => Some(self.joined(partial)),
                    FetchError::Network { status: Some(200), header, partial, .. } => {
                        version_in(header).map(|version| PartialFragment { run, version, bytes: partial })
                    }
                    FetchError::Network { .. } => self.begun,
                    FetchError::TooLarge { .. } => None,
                };
                // A range that starts at 0 would not be a range.
                Err((reason, begun.filter(|begun| !begun.bytes.is_empty())))
            }
        }
    }

    /// Returns the earlier data followed by `more`.
    fn joined(self, more: Vec<u8>) -> PartialFragment {
        let mut begun =
            self.begun.unwrap_or(PartialFragment { run: self.run, version: self.version, bytes: Vec::new() });
        begun.bytes.extend(more);
        begun
    }
}

impl PartialFragment {
    /// Returns the version and the values, if all `body_bytes` bytes are present.
    fn complete(self, body_bytes: u64) -> Result<(Version, Vec<f32>), (String, Option<Self>)> {
        if self.bytes.len() as u64 == body_bytes {
            return Ok((self.version, binary16::from_bytes(&self.bytes)));
        }
        Err((format!("it came with {} bytes instead of {body_bytes}", self.bytes.len()), None))
    }
}

fn version_in(header: Option<String>) -> Option<Version> {
    header.and_then(|text| text.parse().ok()).map(Version)
}

/// Download of a shard or of a part of the frozen weights. There is at most one of each kind at a time.
pub(super) struct PartDownload {
    /// Name of the kind, for display.
    kind: &'static str,
    index: u32,
    body_bytes: u64,
    /// Current transfer; `None` between an interruption and the next request.
    transfer: Option<LocalBoxFuture<'static, Reply>>,
    /// Data received before an interruption.
    partial: Vec<u8>,
}

impl PartDownload {
    /// Returns a download without data.
    pub(super) fn new(kind: &'static str, index: u32, body_bytes: u64) -> Self {
        Self { kind, index, body_bytes, transfer: None, partial: Vec::new() }
    }

    /// Takes over the data of `held` if it is the same shard or part. Otherwise `held` is cancelled.
    pub(super) fn after(self, held: Option<Self>) -> Self {
        let partial = held.filter(|held| held.index == self.index).map(|held| held.partial);
        Self { partial: partial.unwrap_or_default(), ..self }
    }

    /// Returns the offset of the first missing byte.
    pub(super) fn start_byte(&self) -> u64 {
        self.partial.len() as u64
    }

    /// Starts the transfer with `request`.
    pub(super) fn begun(self, request: FetchRequest) -> Self {
        Self { transfer: Some(fetch_patiently(request).boxed_local()), ..self }
    }

    /// Returns all bytes if they are complete. Otherwise keeps the data for the next attempt.
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
                // Earlier data stays useful if the syncer is only busy.
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

/// Waits for the end of the transfer of `download`. Without a transfer it waits forever.
pub(super) async fn finished(download: &mut Option<PartDownload>) -> Reply {
    match download.as_mut().and_then(|download| download.transfer.as_mut()) {
        Some(transfer) => transfer.await,
        None => pending().await,
    }
}

/// Returns the index and the result of the download in `slot`. An incomplete download stays there to be resumed.
pub(super) fn finish(
    slot: &mut Option<PartDownload>,
    reply: Reply,
) -> Option<(u32, Result<Vec<u8>, String>)> {
    let mut held = slot.take()?;
    held.transfer = None;
    let (index, bytes) = (held.index, held.take(reply));
    *slot = Some(held).filter(|_| bytes.is_err());
    Some((index, bytes))
}

/// Maximum wait that a busy syncer can request, in seconds.
const RETRY_S_MAX: u32 = 30;

pub(super) type Reply = Result<FetchReply, FetchError>;

/// Fetches. If the syncer is busy, the reply is delayed by the time that the syncer requests.
pub(super) async fn fetch_patiently(request: FetchRequest) -> Reply {
    let reply = fetch(request).await;
    if let Ok(FetchReply { status: 503, retry_after_s: Some(seconds), .. }) = &reply {
        sleep(1_000 * u64::from(RETRY_S_MAX.min(*seconds))).await;
    }
    reply
}

/// Returns the request for `path` from `start_byte` on, on condition of the entity tag `tag` if there is one. Invite
/// and nonce are sent in headers, because URLs end up in logs.
pub(super) fn request(
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

/// Returns the text of an answer that is not successful.
pub(super) fn refusal(reply: &FetchReply) -> String {
    let text = String::from_utf8_lossy(&reply.body);
    format!("HTTP status {}: {}", reply.status, plain(clip(text.trim(), 200)))
}
