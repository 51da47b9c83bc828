//! Test helpers of the pure machines: runs small enough to compute by hand, and a host for a syncer.

use crate::diloco::syncer::{Event, Host, RollbackJob, Syncer};
use crate::diloco::{Entry, Layout, MergeClass, MergeEntry, MergeJob, MergeRule, OuterSpec, Part, Tensor};
use crate::wire::{
    ApplyPolicy, Architecture, Bye, Code, ConnId, DataSpec, ExchangeSpec, FragmentId, InnerSpec, LearnerId,
    Message, Model, Optimiser, Round, RunSpec, Serial, ShardSpec, Version,
};

/// P, the number of fragments of [`spec`].
pub(crate) const FRAGMENTS: u16 = 3;

/// Returns three tensors with 120 values. The first one is merged by the mean, like an embedding.
pub(crate) fn layout() -> Layout {
    let tensor = |name: &str, rows, merge| Tensor { name: name.into(), rows, cols: 8, merge };
    Layout::new(vec![
        tensor("embed", 4, MergeClass::Mean),
        tensor("a", 6, MergeClass::Radial),
        tensor("b", 5, MergeClass::Radial),
    ])
    .unwrap()
}

/// Returns a model with the tensors of `layout`, windows of `context` tokens and an empty architecture.
pub(crate) fn model(layout: &Layout, context: u32) -> Model {
    let tensors = layout.tensors().to_vec();
    Model { context, vocab: 256, tensors, architecture: Architecture::default(), experts: None }
}

/// Returns a run with [`layout`]: batches of 2 windows of 4 tokens, H = 6.
pub(crate) fn spec() -> RunSpec {
    let model = model(&layout(), 4);
    let inner = InnerSpec {
        batch: 2,
        lr_max: 1.0,
        lr_min_ratio: 1.0,
        warmup_tokens: 0,
        total_tokens: 1,
        beta1: 0.9,
        beta2: 0.9,
        eps: 1e-8,
        weight_decay: 0.0,
        clip_norm: 0.0,
        optimiser: Optimiser::AdamW,
    };
    let exchange = ExchangeSpec {
        fragments: FRAGMENTS,
        sync_every: 6,
        block: 8,
        code: Code::Int4,
        apply: ApplyPolicy::Keep { residue: true },
    };
    let data = DataSpec {
        token_bytes: 2,
        masks: false,
        shards: vec![ShardSpec { tokens: 100_000, sha256: [0; 32] }],
    };
    RunSpec { model, inner, exchange, data, seed: 1, frozen: None }
}

/// Returns a run with five tensors and 220 values, and its layout: batches of 4 windows of 8 tokens, 5 fragments, H =
/// 10.
pub(crate) fn larger() -> (RunSpec, Layout) {
    let tensor = |name: &str, rows, cols, merge| Tensor { name: name.into(), rows, cols, merge };
    let layout = Layout::new(vec![
        tensor("embedding", 10, 6, MergeClass::Mean),
        tensor("first", 10, 8, MergeClass::Radial),
        tensor("second", 5, 8, MergeClass::Radial),
        tensor("third", 6, 6, MergeClass::Radial),
        tensor("gain", 1, 4, MergeClass::Radial),
    ]);
    let layout = layout.expect("tensors with names of their own");
    let run = spec();
    let inner = InnerSpec { batch: 4, lr_max: 0.05, warmup_tokens: 1, total_tokens: 20_000, ..run.inner };
    let exchange = ExchangeSpec { fragments: 5, sync_every: 10, block: 16, ..run.exchange };
    let shard = ShardSpec { tokens: 32_008, sha256: [0; 32] };
    let data = DataSpec { shards: vec![shard; 4], ..run.data };
    let model = model(&layout, 8);
    (RunSpec { model, inner, exchange, data, ..run }, layout)
}

/// Returns an update of one step of `learner` as an input of a merge.
pub(crate) fn part(learner: LearnerId, tokens: u64) -> Part {
    Part {
        learner,
        serial: Serial(1),
        base: Version(0),
        steps: 1,
        tokens,
        weight: 1.0,
        checksum: 0,
        after_ms: None,
        reach_steps: None,
        is_proven: false,
    }
}

/// Returns the first merge of a fragment, with one update.
pub(crate) fn merge(fragment: FragmentId, part: Part) -> MergeEntry {
    MergeEntry {
        round: Round(1),
        fragment,
        base: Version(0),
        version: Version(1),
        rule: MergeRule::Radial,
        outer: OuterSpec { lr: 1.0, momentum: 0.0 },
        radii: Vec::new(),
        parts: vec![part],
        absent: 0.0,
        experts: Vec::new(),
        checksum: 0,
        digest: 0,
        norm: 0.0,
    }
}

/// Host that records the requests of its syncer in order.
#[derive(Default)]
pub(crate) struct RecordingHost {
    pub(crate) asked: Vec<Asked>,
    pub(crate) events: Vec<Event>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) finished: bool,
}

/// Request of the syncer to a [`RecordingHost`]. A goodbye is recorded as a message.
pub(crate) enum Asked {
    Send(Vec<ConnId>, Message),
    Merge(MergeJob),
    Rollback(RollbackJob),
}

impl Host for RecordingHost {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        self.asked.push(Asked::Send(conns.to_vec(), message));
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.send(&[conn], Message::Bye(bye));
    }

    fn merge(&mut self, job: MergeJob) {
        self.asked.push(Asked::Merge(job));
    }

    fn rollback(&mut self, job: RollbackJob) -> Option<RollbackJob> {
        self.asked.push(Asked::Rollback(job));
        None
    }

    fn record(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    fn note(&mut self, _syncer: &Syncer, event: Event) {
        self.events.push(event);
    }

    fn finished(&mut self) {
        self.finished = true;
    }
}
