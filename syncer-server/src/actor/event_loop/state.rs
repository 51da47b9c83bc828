//! The state of the actor's loop.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_core::diloco::syncer::{RemakeJob, Syncer};
use archipelago_core::diloco::{ConnId, FragmentId, Version};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::super::eval_snapshot::EvalSnapshot;
use super::super::handle::Obeyed;
use super::super::host::Done;
use super::super::loss_checks::Exams;
use super::super::measuring::Measuring;
use super::super::record::Record;
use super::super::save::Saves;
use crate::outbox::{Encoder, Outbox};
use crate::tape::Writer;

type HatReply = oneshot::Sender<(Version, Arc<Vec<f32>>)>;

/// State of the loop in addition to the parts of [`Actor`](super::Actor).
pub(super) struct State {
    pub(super) encoder: Encoder,
    pub(super) outboxes: BTreeMap<ConnId, Outbox>,
    pub(super) merges: JoinSet<Done>,
    /// Fragments to roll back whose newest version is not on disk yet.
    pub(super) remakes: Vec<RemakeJob>,
    pub(super) saves: Saves,
    pub(super) record: Record,
    pub(super) hats: Vec<(FragmentId, HatReply)>,
    /// Outcomes of orders, each with the tape row that must be on disk before the reply.
    pub(super) orders: Vec<(u64, Obeyed, oneshot::Sender<Obeyed>)>,
    pub(super) subjects: Vec<oneshot::Sender<EvalSnapshot>>,
    pub(super) exams: Exams,
    pub(super) measuring: Measuring,
    pub(super) finished: bool,
}

impl State {
    pub(super) fn new(
        syncer: &Syncer,
        tape: Writer,
        snapshot_seq: Option<u64>,
        is_tried: bool,
        measuring: Measuring,
    ) -> Self {
        let fragments = Arc::clone(syncer.fragments());
        let record = Record::new(tape, fragments.count());
        Self {
            saves: Saves::after(snapshot_seq, record.gate.decided()),
            record,
            encoder: Encoder::new(fragments),
            outboxes: BTreeMap::new(),
            merges: JoinSet::new(),
            remakes: Vec::new(),
            hats: Vec::new(),
            orders: Vec::new(),
            subjects: Vec::new(),
            exams: Exams::new(syncer, is_tried),
            measuring,
            finished: false,
        }
    }
}
