//! Small run for tests: its model, learners with random progress, a TCP server that connects them to a gateway, and
//! checks of invariants.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it is part of tests alone")]

#[cfg(feature = "nats-s3")]
pub mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::{InitialStates, Learners, Services};
use archipelago_core::cluster::{
    AdminCommands, GatewayId, GatewayInput, GatewayOutput, GatewayTerms, LeaderTerms, ProcessId, Record,
    UnresolvedUpdate, state_of,
};
use archipelago_core::diloco::syncer::Rollback;
use archipelago_core::diloco::{
    Codec, Entry, FragmentState, Fragments, Layout, MergeEntry, MergeRule, OuterSpec, QuorumPolicy,
    RoundTerms, Segment, SenderInfo, SenderTrust, Tensor, Timing, TrustLevel, Verified, Verifier,
    WeightBounds, checksum,
};
use archipelago_core::model::Preset;
use archipelago_core::rng::Rng;
use archipelago_core::wire::{
    ApplyPolicy, Code, ConnId, ExchangeSpec, FragmentId, LearnerId, MergeClass, Round, RunId, Serial, Update,
    Version,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

/// Silence after which a learner disconnects from its gateway.
const SILENCE: Duration = Duration::from_millis(1_500);
/// Mean time after which a learner moves to another gateway.
const STAYS: Duration = Duration::from_secs(20);

/// Updates and receipts of a learner, recorded for the checks.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Fragment, round and body of each sent update.
    pub sent: BTreeMap<Serial, (FragmentId, Round, Vec<u8>)>,
    /// Receipt of each update: the version that contains it, or `None` if it was not merged.
    pub told: BTreeMap<Serial, Option<Version>>,
    /// True if the learner got two different receipts for an update, or a receipt for an unknown one.
    pub is_confused: bool,
}

/// Simulated learner.
pub struct SimulatedLearner {
    id: LearnerId,
    run: Arc<RunConstants>,
    rng: Rng,
    book: Arc<Mutex<Book>>,
    /// Updates without a known fate.
    open: BTreeMap<FragmentId, (Round, Serial)>,
    serial: u64,
    conn: u64,
}

impl SimulatedLearner {
    pub fn new(id: LearnerId, run: Arc<RunConstants>, seed: u64) -> Self {
        let rng = Rng::new(seed ^ u64::from(id.0) << 40);
        Self { id, run, rng, book: Arc::default(), open: BTreeMap::new(), serial: 0, conn: 0 }
    }

    /// Returns the learner's updates and receipts.
    pub fn book(&self) -> Arc<Mutex<Book>> {
        Arc::clone(&self.book)
    }

    /// Trains at one gateway after the other, until the sender of the addresses is dropped.
    pub async fn train(mut self, gateways: watch::Receiver<Vec<SocketAddr>>) {
        while gateways.has_changed().is_ok() {
            let there = gateways.borrow().clone();
            if !there.is_empty() {
                let at = there[self.rng.below(there.len() as u32) as usize];
                self.conn += 1;
                self.visit(at, &gateways).await;
            }
            sleep(Duration::from_millis(10 + u64::from(self.rng.below(500)))).await;
        }
    }

    async fn visit(&mut self, at: SocketAddr, gateways: &watch::Receiver<Vec<SocketAddr>>) {
        let Ok(Ok(socket)) = timeout(SILENCE, TcpStream::connect(at)).await else { return };
        let _ = socket.set_nodelay(true);
        let (mut from, mut to) = socket.into_split();
        let open = self.open.iter().map(|(p, (round, serial))| (*p, *round, *serial)).collect();
        let hello = LearnerMessage::Hello(self.id, ConnId(self.conn), open);
        if to.write_all(&frame(&hello)).await.is_err() {
            return;
        }
        let (sender, mut heard) = mpsc::unbounded_channel();
        let reader = tokio::spawn(async move { listen(&mut from, &sender).await });
        let leave = Instant::now() + STAYS.mul_f64(0.5 + self.rng.unit());
        let mut work: BTreeMap<FragmentId, (Instant, Round)> = BTreeMap::new();
        while Instant::now() < leave && gateways.has_changed().is_ok() {
            let due = work.values().map(|(at, _)| *at).min().unwrap_or(leave);
            tokio::select! {
                what = timeout(SILENCE, heard.recv()) => match what {
                    Ok(Some(GatewayMessage::Ask(p, round))) if !self.open.contains_key(&p) => {
                        let ms = 5 + u64::from(self.rng.below(145));
                        work.insert(p, (Instant::now() + Duration::from_millis(ms), round));
                    }
                    Ok(Some(GatewayMessage::Receipt(p, serial, merged))) => self.hear(p, serial, merged),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                },
                () = sleep_until(due) => {
                    let ready = work.extract_if(.., |_, (at, _)| *at <= Instant::now());
                    for (p, (_, round)) in ready.collect::<Vec<_>>() {
                        if self.hand_in(p, round, &mut to).await.is_err() {
                            break;
                        }
                    }
                }
            }
        }
        reader.abort();
    }

    async fn hand_in(&mut self, p: FragmentId, round: Round, to: &mut OwnedWriteHalf) -> io::Result<()> {
        if self.open.contains_key(&p) {
            return Ok(());
        }
        self.serial += 1;
        let serial = Serial(self.serial);
        let body = self.run.noise(p, &mut self.rng);
        // From here on the update may have arrived, even if the send fails.
        self.open.insert(p, (round, serial));
        self.book.lock().unwrap().sent.insert(serial, (p, round, body.clone()));
        to.write_all(&frame(&LearnerMessage::Update(p, round, serial, body))).await
    }

    fn hear(&mut self, p: FragmentId, serial: Serial, merged: Option<Version>) {
        let mut book = self.book.lock().unwrap();
        let before = book.told.insert(serial, merged);
        book.is_confused |= before.is_some_and(|before| before != merged) || !book.sent.contains_key(&serial);
        if self.open.get(&p).is_some_and(|(_, open)| *open == serial) {
            self.open.remove(&p);
        }
    }
}

async fn listen(from: &mut OwnedReadHalf, to: &mpsc::UnboundedSender<GatewayMessage>) {
    while let Ok(what) = read::<GatewayMessage>(from).await {
        if to.send(what).is_err() {
            return;
        }
    }
}

/// Maximum time between two messages to a learner.
pub const ALIVE_EVERY: Duration = Duration::from_millis(300);

/// Message from a learner.
#[derive(Debug, Serialize, Deserialize)]
pub enum LearnerMessage {
    /// First message: the learner, the number of its connection, and its updates without a known fate.
    Hello(LearnerId, ConnId, Vec<(FragmentId, Round, Serial)>),
    /// Progress for this round.
    Update(FragmentId, Round, Serial, Vec<u8>),
}

/// Message to a learner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum GatewayMessage {
    /// Sign of life.
    Alive,
    /// Request for progress.
    Ask(FragmentId, Round),
    /// Fate of an update: the version that contains it, or `None`.
    Receipt(FragmentId, Serial, Option<Version>),
}

/// Encodes a frame: the length, then `value` as MessagePack.
pub fn frame<T: Serialize>(value: &T) -> Vec<u8> {
    // Field names are needed, because serde skips some fields with default values.
    let body = rmp_serde::to_vec_named(value).expect("memory takes every byte");
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// Reads the next frame.
pub async fn read<T: DeserializeOwned>(from: &mut OwnedReadHalf) -> io::Result<T> {
    let mut body = vec![0; from.read_u32_le().await? as usize];
    from.read_exact(&mut body).await?;
    rmp_serde::from_slice(&body).map_err(io::Error::other)
}

type LearnerChannels = Arc<Mutex<BTreeMap<(LearnerId, ConnId), mpsc::UnboundedSender<GatewayMessage>>>>;

/// Accepts learners' connections and serves them until the gateway of `learners` ends.
pub async fn keep(run: Arc<RunConstants>, listener: TcpListener, learners: Learners) {
    let Learners { inputs, mut orders } = learners;
    let lines = LearnerChannels::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                tokio::spawn(visit(Arc::clone(&run), socket, inputs.clone(), Arc::clone(&lines)));
            }
            order = orders.recv() => match order {
                None => return,
                Some((p, GatewayOutput::Ask(learner, conn, round))) => {
                    send_to(&lines, (learner, conn), GatewayMessage::Ask(p, round));
                }
                Some((p, GatewayOutput::Receipt(learner, conn, serial, merged))) => {
                    send_to(&lines, (learner, conn), GatewayMessage::Receipt(p, serial, merged));
                }
                Some((p, GatewayOutput::Refused(learner, conn, serial, _))) => {
                    send_to(&lines, (learner, conn), GatewayMessage::Receipt(p, serial, None));
                }
                Some(_) => {}
            }
        }
    }
}

fn send_to(lines: &LearnerChannels, to: (LearnerId, ConnId), what: GatewayMessage) {
    if let Some(line) = lines.lock().unwrap().get(&to) {
        let _ = line.send(what);
    }
}

async fn visit(
    run: Arc<RunConstants>,
    socket: TcpStream,
    inputs: mpsc::Sender<(FragmentId, GatewayInput)>,
    lines: LearnerChannels,
) {
    let _ = socket.set_nodelay(true);
    let (mut from, mut to) = socket.into_split();
    let Ok(LearnerMessage::Hello(learner, conn, open)) = read(&mut from).await else { return };
    let (line, mut told) = mpsc::unbounded_channel();
    lines.lock().unwrap().insert((learner, conn), line);
    for fragment in run.ids() {
        let mut mine = open.iter().filter(|(p, ..)| *p == fragment);
        let unsettled = mine.next().map(|&(_, round, serial)| UnresolvedUpdate { round, serial });
        let _ = inputs.send((fragment, GatewayInput::Came(learner, conn, unsettled))).await;
    }
    let speak = async {
        let mut alive = interval(ALIVE_EVERY);
        loop {
            let what = tokio::select! {
                what = told.recv() => what.unwrap_or(GatewayMessage::Alive),
                _ = alive.tick() => GatewayMessage::Alive,
            };
            if to.write_all(&frame(&what)).await.is_err() {
                return;
            }
        }
    };
    let hear = async {
        while let Ok(LearnerMessage::Update(fragment, round, serial, body)) = read(&mut from).await {
            let update = run.update(fragment, serial, body);
            let input = GatewayInput::Update(learner, conn, round, update, STANDING);
            let _ = inputs.send((fragment, input)).await;
        }
    };
    tokio::select! {
        () = speak => {}
        () = hear => {}
    }
    lines.lock().unwrap().remove(&(learner, conn));
    for fragment in run.ids() {
        let _ = inputs.send((fragment, GatewayInput::Left(learner, conn))).await;
    }
}

/// Entry in the log of a leading process: a confirmation that it received or a notice that it sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LeaderNote {
    /// The tape confirmed the record under this number.
    Appended(FragmentId, u64, Record),
    /// The end of the round was announced.
    Ended(FragmentId, Round),
}

/// Numbers of items that were checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub records: usize,
    pub merges: usize,
    pub takeovers: usize,
    pub updates: usize,
    pub receipts: usize,
}

/// Compares all confirmations and receipts with the tape, and recomputes each merge as a single process would.
///
/// # Errors
/// A description of the first violation.
pub async fn check(
    run: &RunConstants,
    services: &Services,
    accounting: &BTreeMap<LearnerId, Book>,
    told: &[LeaderNote],
) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut tapes = BTreeMap::new();
    for fragment in run.ids() {
        let tape = services.tape.read(fragment, 0).await.map_err(|error| error.to_string())?;
        counts.records += tape.len();
        counts.takeovers += tape.iter().filter(|record| matches!(record, Record::Took(_))).count();
        tapes.insert(fragment, tape);
    }
    for told in told {
        match told {
            LeaderNote::Appended(p, seq, record) if tapes[p].get(*seq as usize - 1) != Some(record) => {
                return Err(format!("record {seq} of {p} was acknowledged and is not on the tape"));
            }
            LeaderNote::Ended(p, round) if round.0 > tapes[p].len() as u64 => {
                return Err(format!("the end of round {round} of {p} was told and is not on the tape"));
            }
            LeaderNote::Appended(..) | LeaderNote::Ended(..) => {}
        }
    }
    check_receipts(&tapes, accounting, &mut counts)?;
    for (fragment, tape) in &tapes {
        check_merges(run, services, (*fragment, tape), accounting, &mut counts).await?;
    }
    Ok(counts)
}

fn check_receipts(
    tapes: &BTreeMap<FragmentId, Vec<Record>>,
    accounting: &BTreeMap<LearnerId, Book>,
    counts: &mut Counts,
) -> Result<(), String> {
    for (learner, book) in accounting {
        if book.is_confused {
            return Err(format!(
                "learner {learner} was told two things of one update, or of one that is not its"
            ));
        }
        for (&serial, &merged) in &book.told {
            let (p, round, _) = &book.sent[&serial];
            let record = tapes[p].get(round.0 as usize - 1);
            let said = record.map(|record| record.has_merged(*learner, serial).then_some(Version(round.0)));
            if said != Some(merged) {
                return Err(format!(
                    "learner {learner} was told of update {serial}, for round {round} of {p}, that it was merged to \
                     {merged:?}; the tape says {said:?}"
                ));
            }
            counts.receipts += 1;
        }
    }
    Ok(())
}

async fn check_merges(
    run: &RunConstants,
    services: &Services,
    (fragment, tape): (FragmentId, &[Record]),
    accounting: &BTreeMap<LearnerId, Book>,
    counts: &mut Counts,
) -> Result<(), String> {
    let mut before = Version(0);
    let mut merged = BTreeSet::new();
    let initial: Vec<_> = run.ids().into_iter().map(|p| run.initial(p)).collect();
    let last = vec![Version(tape.len() as u64); initial.len()];
    let rollbacks = Rollback::all(&run.fragments, run.codec, &initial, &BTreeSet::new(), &last);
    let mut alone =
        rollbacks.into_iter().find(|rollback| rollback.theta().0 == fragment).expect("it is one of them");
    for (record, seq) in tape.iter().zip(1..) {
        let Record::Merged { merge, state } = record else { continue };
        let MergeEntry { round, base, version, parts, .. } = &**merge;
        if (*base, *version, *round) != (before, Version(seq), Round(seq)) {
            return Err(format!("record {seq} of {fragment} is no version that follows on the one before"));
        }
        before = *version;
        counts.merges += 1;
        let mut bodies = Vec::new();
        for part in parts {
            let what = format!("update {} of learner {}, merged in round {round}", part.serial, part.learner);
            let sent = accounting.get(&part.learner).and_then(|book| book.sent.get(&part.serial));
            let Some((p, sent_for, body)) = sent else { return Err(format!("{what}, was never sent")) };
            if (*p, sent_for) != (fragment, round) || !merged.insert((part.learner, part.serial)) {
                return Err(format!("{what}, was for another round, or was merged twice"));
            }
            bodies.push(body.clone());
            counts.updates += 1;
        }
        let mut bodies = bodies.into_iter();
        let next = |_| Ok(bodies.next().unwrap_or_default());
        alone.follow(&Entry::Merged((**merge).clone()), next).map_err(|error| error.to_string())?;
        let stored = services.blobs.load(fragment, seq).await.map_err(|error| error.to_string())?;
        let stored = stored.filter(|bytes| checksum(bytes) == *state);
        let theirs = stored.and_then(|bytes| state_of(*version, alone.theta().1.len(), &bytes));
        if theirs.is_none_or(|theirs| *theirs.theta != alone.theta().1) {
            return Err(format!("round {round} of {fragment}, merged in one place, gives something else"));
        }
    }
    Ok(())
}

/// Facts about every learner: it is trusted without limits.
pub const STANDING: SenderInfo = SenderInfo {
    step_ms_least: 1.0,
    steps_max: None,
    step_tokens: 8,
    stranger_ms: None,
    unmerged_tokens: 1_000_000,
    trust: SenderTrust { level: TrustLevel::Trusted, is_proven: None },
    is_in_norm_stats: true,
    clock_tokens: 0,
};

/// Constants of a run.
pub struct RunConstants {
    pub fragments: Arc<Fragments>,
    pub codec: Codec,
    pub verifier: Verifier,
    rest_ms: u64,
    seed: u64,
}

impl RunConstants {
    /// Returns a run with `fragments` fragments and at least `rest_ms` milliseconds between rounds. Each fragment has
    /// a tensor whose directions cancel out if learners disagree.
    pub fn new(seed: u64, fragments: u16, rest_ms: u64) -> Self {
        let tensor = |name: String, rows, cols, merge| Tensor { name, rows, cols, merge };
        let tensors = (0..fragments)
            .flat_map(|p| {
                [
                    tensor(format!("matrix{p}"), 4, 40, MergeClass::Radial),
                    tensor(format!("embedding{p}"), 1, 30, MergeClass::Mean),
                ]
            })
            .collect();
        let layout = Layout::new(tensors).expect("a layout");
        let fragments = Arc::new(Fragments::plan(&layout, fragments.try_into().expect("a fragment")));
        let codec = Codec::new(&exchange(fragments.count())).expect("a code");
        let verifier = Verifier::new(Arc::clone(&fragments), codec);
        Self { fragments, codec, verifier, rest_ms, seed }
    }

    /// Returns the ids of the fragments.
    pub fn ids(&self) -> Vec<FragmentId> {
        self.fragments.ids().collect()
    }

    /// Returns the initial state of a fragment.
    pub fn initial(&self, fragment: FragmentId) -> FragmentState {
        let mut rng = Rng::new(self.seed ^ u64::from(fragment.0) << 32);
        FragmentState::new((0..self.fragments.len(fragment)).map(|_| bell(&mut rng)).collect())
    }

    /// Returns the source of initial states.
    pub fn initial_states(self: &Arc<Self>) -> InitialStates {
        let run = Arc::clone(self);
        InitialStates::new(move |fragment| Ok(run.initial(fragment)))
    }

    /// Returns a leader's parameters for each fragment.
    pub fn owner(&self) -> Vec<LeaderTerms> {
        let terms = |fragment| LeaderTerms {
            process: ProcessId(0),
            rounds: self.rounds(fragment),
            outer: OuterSpec::default(),
            momentum_warmup_tokens: 0.0,
            fragments: 1,
            timing: Timing { step_ms: 10.0, launch_ms: 100.0, ..Timing::default() },
            rest_ms: self.rest_ms,
            idle_ms: 0,
            again_ms: 300,
            sums_ms: 2_000,
            learners_start: 1,
            cohort_max: u32::MAX,
            // The checks read all states.
            states_kept: usize::MAX,
        };
        self.ids().into_iter().map(terms).collect()
    }

    /// Returns the default commands of the owner of the run.
    pub fn orders(&self) -> watch::Receiver<AdminCommands> {
        watch::channel(AdminCommands::none(&self.rounds(FragmentId(0)), u32::MAX)).1
    }

    /// Returns a gateway's parameters for each fragment.
    pub fn gateway(&self, gateway: GatewayId) -> Vec<(FragmentId, GatewayTerms)> {
        let terms = |fragment| {
            let segments = Arc::new(self.segments(fragment));
            (fragment, GatewayTerms { gateway, segments, codec: self.codec })
        };
        self.ids().into_iter().map(terms).collect()
    }

    /// Returns a coded update of random values with a plausible length.
    pub fn noise(&self, fragment: FragmentId, rng: &mut Rng) -> Vec<u8> {
        let values: Vec<f32> = (0..self.fragments.len(fragment)).map(|_| 1e-3 * bell(rng)).collect();
        self.codec.encode(&self.segments(fragment), &values)
    }

    /// Returns a verified update with this body.
    pub fn update(&self, fragment: FragmentId, serial: Serial, body: Vec<u8>) -> Verified {
        let (run, base, seen, checksum) = (RunId(1), Version(0), Vec::new(), checksum(&body));
        self.verifier.verify(Update {
            run,
            fragment,
            serial,
            base,
            steps: 10,
            tokens: 80,
            body,
            checksum,
            seen,
        })
    }

    fn segments(&self, fragment: FragmentId) -> Vec<Segment> {
        self.fragments.segments(fragment).expect("one of its fragments").to_vec()
    }

    fn rounds(&self, fragment: FragmentId) -> RoundTerms {
        RoundTerms {
            fragment,
            segments: self.segments(fragment),
            experts: Vec::new(),
            mixture: None,
            codec: self.codec,
            inner: Preset::Tiny.inner(),
            sync_every: 10,
            is_additive: true,
            lease_ms: 60_000,
            quorum: QuorumPolicy { updates_min: 2.try_into().expect("above 0"), ..QuorumPolicy::default() },
            merge: MergeRule::Radial,
            influence: WeightBounds::default(),
            norm_ratio_max: 1.5,
        }
    }
}

fn exchange(fragments: u16) -> ExchangeSpec {
    let apply = ApplyPolicy::Keep { residue: true };
    ExchangeSpec { fragments, sync_every: 10, block: 16, code: Code::Int4, apply }
}

/// Returns a roughly normal random number: the sum of twelve uniform numbers minus 6.
fn bell(rng: &mut Rng) -> f32 {
    ((0..12).map(|_| rng.unit()).sum::<f64>() - 6.0) as f32
}
