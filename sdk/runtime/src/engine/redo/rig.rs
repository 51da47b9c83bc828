//! Two learners that train for real under a real syncer, in virtual time, one of which may cheat.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use archipelago_core::audit::{AuditJob, Judged, Verdict};
use archipelago_core::data::{ShardForm, ShardTokens, encode_shard, shard_spec, window_start};
use archipelago_core::diloco::syncer::{Event, Host, Input as ToSyncer, RemakeJob, Syncer, SyncerConfig};
use archipelago_core::diloco::tape::Gate;
use archipelago_core::diloco::{Entry, Layout, LearnerId, MergeJob, Millis, checksum};
use archipelago_core::member::{Input, Output};
use archipelago_core::model::{ExpertSpec, ModelSpec, init, layout};
use archipelago_core::wire::{
    ApplyPolicy, Bye, Challenge, Code, ConnId, DataSpec, ExchangeSpec, InnerSpec, Message, RunId, RunSpec,
};

use super::super::cpu::CpuTrainer;
use super::super::{Engine, HostEngine};
use super::peer::{Cheat, Peer, STEP_MS};
use super::redo;
use crate::token;

const RUN: RunId = RunId(7);
/// A part of the text is given.
const FORM: ShardForm = ShardForm { token_bytes: 2, masks: true };

pub struct Rig {
    pub now: Millis,
    pub spec: RunSpec,
    pub syncer: Syncer,
    pub peers: Vec<Peer>,
    pub events: Vec<Event>,
    /// What was to be verified, all of it.
    pub jobs: Vec<AuditJob>,
    pub verdicts: Vec<(LearnerId, Verdict)>,
    /// What updates weighed for experts, in all merges.
    pub expert_weights: Vec<f64>,
    up: VecDeque<(ConnId, Message)>,
    shard: Vec<u8>,
    tokens: ShardTokens,
    /// What waits for the tape, which takes a turn to write.
    gate: Gate<(ConnId, Message)>,
    next_conn: u64,
    share: f64,
}

struct Desk<'a> {
    gate: &'a mut Gate<(ConnId, Message)>,
    sent: Vec<(ConnId, Message)>,
    merges: Vec<MergeJob>,
    audits: Vec<AuditJob>,
    events: Vec<Event>,
}

impl Host for Desk<'_> {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        for &conn in conns {
            self.sent.extend(self.gate.pass_message(&[conn], &message, (conn, message.clone())));
        }
    }
    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.sent.extend(self.gate.pass((conn, Message::Bye(bye))));
    }
    fn merge(&mut self, job: MergeJob) {
        self.merges.push(job);
    }
    fn remake(&mut self, job: RemakeJob) -> Option<RemakeJob> {
        Some(job)
    }
    fn audit(&mut self, job: AuditJob) -> Option<AuditJob> {
        self.audits.push(job);
        None
    }
    fn record(&mut self, entry: Entry) {
        self.gate.decide(&entry);
    }
    fn note(&mut self, _: &Syncer, event: Event) {
        self.events.push(event);
    }
    fn finished(&mut self) {}
}

fn model(experts: Option<ExpertSpec>) -> ModelSpec {
    ModelSpec {
        vocab: 64,
        d_model: 16,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        d_ff: 24,
        context: 16,
        rope_theta: 1e4,
        norm_eps: 1e-5,
        untied_head: false,
        experts,
        lora: None,
    }
}

fn spec(shard: &[u8], apply: ApplyPolicy, model: ModelSpec) -> RunSpec {
    let model = model.into();
    let inner = InnerSpec {
        batch: 2,
        lr_max: 3e-3,
        lr_min_ratio: 0.1,
        warmup_tokens: 2_000,
        total_tokens: 200_000,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        clip_norm: 1.0,
    };
    let exchange = ExchangeSpec { fragments: 3, sync_every: 12, block: 64, code: Code::Int4, apply };
    let data = DataSpec { token_bytes: 2, masks: true, shards: vec![shard_spec(shard, FORM).unwrap()] };
    RunSpec { model, inner, exchange, data, seed: 3, frozen: None }
}

fn config() -> SyncerConfig {
    SyncerConfig { learners_start: 1, ..SyncerConfig::default() }
}

impl Rig {
    pub fn new(share: f64, cheats: &[Option<Cheat>]) -> Self {
        Self::with(share, cheats, ApplyPolicy::Keep { residue: true }, None)
    }

    pub fn with(
        share: f64,
        cheats: &[Option<Cheat>],
        apply: ApplyPolicy,
        experts: Option<ExpertSpec>,
    ) -> Self {
        let given = |i: u32| if i % 40 < 22 { token::GIVEN } else { 0 };
        let text: Vec<u32> =
            (0..60_000_u32).map(|i| ((i.wrapping_mul(i) >> 3) % 61 + i % 3) | given(i)).collect();
        let shard = encode_shard(&text, FORM).unwrap();
        let model = model(experts);
        let spec = spec(&shard, apply, model);
        let layout = layout(&model).unwrap();
        let theta = init(&model, spec.seed).unwrap();
        let mut syncer = Syncer::new(RUN, spec.clone(), config(), &layout, &theta).unwrap();
        syncer.audit(share, 11);
        let peers = cheats.iter().zip(1..).map(|(&cheat, number)| Peer::new(number, cheat)).collect();
        let tokens = ShardTokens::parse(shard.clone(), &spec.data.shards[0], FORM, spec.model.vocab).unwrap();
        Self {
            now: Millis(0),
            spec,
            syncer,
            peers,
            events: Vec::new(),
            jobs: Vec::new(),
            verdicts: Vec::new(),
            expert_weights: Vec::new(),
            up: VecDeque::new(),
            shard,
            tokens,
            gate: Gate::new(0, 3),
            next_conn: 1,
            share,
        }
    }

    /// Lets each learner take so many steps, or wait as long.
    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            for peer in 0..self.peers.len() {
                self.turn(peer);
            }
            self.now = self.now.after(STEP_MS);
            self.exchange();
        }
    }

    pub fn failed(&self) -> Vec<Verdict> {
        let failed = self.verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_)));
        failed.map(|&(_, verdict)| verdict).collect()
    }

    pub fn passed(&self) -> usize {
        self.verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count()
    }

    /// Does what is shown again, as `job` says.
    pub fn judge(&self, job: &AuditJob) -> Verdict {
        let (spec, tokens) = (&self.spec, &self.tokens);
        redo(job, spec, &mut |grant, index| {
            let start = window_start(spec, grant, index)? as usize;
            Some(tokens.iter(start).take(spec.model.context as usize + 1).collect())
        })
    }

    /// The connection of a learner breaks, and what is on its way is lost.
    pub fn cut(&mut self, peer: usize) {
        let Some(conn) = self.peers[peer].conn.take() else { return };
        self.up.retain(|&(from, _)| from != conn);
        self.peers[peer].down.clear();
        self.tell_syncer(ToSyncer::Disconnected(conn));
        self.tell(peer, Input::Closed { code: None, reason: "it broke".to_owned() });
    }

    /// Another process takes the place of the syncer, which knows what is on the tape.
    pub fn restart_syncer(&mut self) {
        for peer in 0..self.peers.len() {
            self.cut(peer);
        }
        while self.syncer.record().is_none() {
            self.exchange();
        }
        let record = self.syncer.record().unwrap();
        let states = self.syncer.states().cloned().collect();
        let layout = Layout::of(&record.spec.model).unwrap();
        self.syncer = Syncer::restore(record, &layout, config(), states, self.now.0 as u32).unwrap();
        self.gate = Gate::new(self.gate.decided(), 3);
        self.syncer.audit(self.share, 12);
    }

    fn now_us(&self) -> u64 {
        self.now.0 * 1_000
    }

    fn turn(&mut self, peer: usize) {
        let now_us = self.now_us();
        self.tell(peer, Input::Timeout);
        let batch = self.peers[peer].member.next_batch(now_us);
        self.drain(peer);
        match batch {
            Some(batch) => {
                let step = self.peers[peer].step(&batch.tokens, batch.learning_rate);
                let engine = self.peers[peer].engine.as_mut();
                let seen = engine.map(Engine::take_seen).unwrap_or_default();
                if !seen.is_empty() {
                    self.tell(peer, Input::Saw { seen });
                }
                self.tell(peer, Input::Stepped(step));
            }
            None => self.tell(peer, Input::Waited { us: STEP_MS * 1_000 }),
        }
    }

    /// Brings what is on its way, both ways, as far as it was sent before.
    fn exchange(&mut self) {
        self.gate.reach(self.gate.decided());
        for (conn, message) in std::mem::take(&mut self.up) {
            self.tell_syncer(ToSyncer::Message(conn, message));
        }
        self.tell_syncer(ToSyncer::Timeout);
        for peer in 0..self.peers.len() {
            for message in std::mem::take(&mut self.peers[peer].down) {
                if let Message::Bye(bye) = &message {
                    self.peers[peer].reasons.push(bye.reason.clone());
                }
                self.tell(peer, Input::Message(message));
            }
        }
    }

    fn tell_syncer(&mut self, input: ToSyncer) {
        let (sent, merges, audits, events) = Default::default();
        let mut desk = Desk { gate: &mut self.gate, sent, merges, audits, events };
        desk.sent.extend(std::iter::from_fn(|| desk.gate.release()));
        self.syncer.drive(self.now, input, &mut desk);
        let Desk { sent, merges, audits, events, .. } = desk;
        for (conn, message) in sent {
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.conn == Some(conn)) {
                peer.down.push_back(message);
            }
        }
        for event in &events {
            if let Event::Audited { learner, verdict, .. } = event {
                self.verdicts.push((*learner, *verdict));
            }
        }
        self.events.extend(events);
        for job in merges {
            self.expert_weights.extend(job.updates.iter().flat_map(|update| &update.experts));
            self.tell_syncer(ToSyncer::Merged(Box::new(job.run())));
        }
        for job in audits {
            let (learner, serial) = (job.learner, job.commitment.serial);
            let verdict = self.judge(&job);
            self.jobs.push(job);
            self.tell_syncer(ToSyncer::Audited(Judged { learner, serial, verdict }));
        }
    }

    fn tell(&mut self, peer: usize, input: Input) {
        let now_us = self.now_us();
        self.peers[peer].member.handle(now_us, input);
        self.drain(peer);
    }

    fn drain(&mut self, peer: usize) {
        while let Some(output) = self.peers[peer].member.poll() {
            self.obey(peer, output);
        }
    }

    fn obey(&mut self, peer: usize, output: Output) {
        match output {
            Output::Connect => {
                let conn = ConnId(self.next_conn);
                self.next_conn += 1;
                self.peers[peer].conn = Some(conn);
                self.tell(peer, Input::Opened);
                let challenge = Challenge { run: RUN, nonce: [9; 32], work_bits: 0 };
                self.tell(peer, Input::Message(Message::Challenge(challenge)));
            }
            Output::Greet { hello, .. } => self.send(peer, Message::Hello(*hello)),
            Output::Send(message) => self.send(peer, message),
            Output::Close(_) | Output::Disconnect { .. } => {
                if let Some(conn) = self.peers[peer].conn.take() {
                    self.up.retain(|&(from, _)| from != conn);
                    self.peers[peer].down.clear();
                    self.tell_syncer(ToSyncer::Disconnected(conn));
                }
            }
            Output::Build { welcome, anew } => {
                if anew {
                    let trainer =
                        CpuTrainer::fixed(&ModelSpec::of(&welcome.spec.model).unwrap(), &welcome.spec.inner)
                            .unwrap();
                    self.peers[peer].engine = Some(HostEngine::new(&welcome.spec, trainer).unwrap());
                    self.tell(peer, Input::Exact);
                }
                let fragments = self.peers[peer].engine.as_ref().unwrap().fragments().clone();
                let batch = NonZeroU32::new(welcome.spec.inner.batch).unwrap();
                self.tell(peer, Input::Built { fragments, batch });
            }
            Output::Afresh { reason } => {
                self.peers[peer].engine = None;
                self.peers[peer].afresh.push(reason);
            }
            Output::Fetch { fragment, .. } => {
                let (version, hat) = self.syncer.hat(fragment).expect("merges are done at once");
                self.tell(peer, Input::Fetched { fragment, version, values: hat.to_vec() });
            }
            Output::FetchShard { shard, .. } => {
                let bytes = Ok(self.shard.clone());
                self.tell(peer, Input::Shard { shard, bytes });
            }
            other => self.work(peer, other),
        }
    }

    fn work(&mut self, peer: usize, output: Output) {
        let Some(engine) = &mut self.peers[peer].engine else { return };
        match output {
            Output::Encode { serial, fragment } => {
                engine.encode(serial, fragment).unwrap();
                let state = engine.state().expect("it is exact");
                let coded = engine.encoded().unwrap().unwrap();
                self.tell(peer, Input::State { serial, state });
                let (body, digest) = (coded.body, coded.digest);
                self.tell(peer, Input::Encoded { serial, fragment, body, digest });
            }
            Output::Include { fragment } => engine.include(fragment).unwrap(),
            Output::Apply { fragment, body } => engine.apply(fragment, &body).unwrap(),
            Output::Load { fragment, values, keep } => engine.load(fragment, &values, keep).unwrap(),
            Output::FetchHeldOut { .. } | Output::Measure { .. } => panic!("nobody asks"),
            Output::Trouble { reason } => panic!("{reason}"),
            _ => {}
        }
    }

    fn send(&mut self, peer: usize, mut message: Message) {
        let Peer { conn: Some(conn), cheat, commits, .. } = &mut self.peers[peer] else { return };
        match (&mut message, *cheat) {
            (Message::Evidence { .. }, Some(Cheat::Silent)) => return,
            (Message::Commit(commitment), Some(cheat)) => {
                *commits += 1;
                match cheat {
                    Cheat::Uncommitted if *commits > 3 => return,
                    Cheat::Unchained if *commits > 3 => commitment.opening.0[0] ^= 1,
                    _ => {}
                }
            }
            (Message::Update(update), Some(Cheat::OtherUpdate)) => {
                let last = update.body.len() - 1;
                update.body[last] ^= 1;
                update.checksum = checksum(&update.body);
            }
            (Message::Update(update), Some(Cheat::Doubles)) => update.tokens *= 2,
            _ => {}
        }
        self.up.push_back((*conn, message));
    }
}
