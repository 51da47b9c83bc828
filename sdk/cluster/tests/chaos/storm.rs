//! Chaos run: starts the cluster, applies random faults, waits for recovery, and compares receipts with the tape.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::{ClusterId, Nats, NatsSettings, Services};
use archipelago_core::cluster::Record;
use archipelago_core::rng::Rng;
use archipelago_core::wire::{FragmentId, LearnerId, RunId};
use archipelago_test_servers::free_ports;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::role::{self, AdminCommands, ProcessRole};
use crate::support::check;
use crate::support::servers::ClusterServers;
use crate::support::{Book, SimulatedLearner};

/// Number of leading processes, of gateways, and of NATS nodes.
const OF_EACH: usize = 3;
const LEARNERS: u32 = 9;
/// Time limit for rounds of all fragments to continue after the last fault.
const CALM_WITHIN: Duration = Duration::from_secs(90);
/// Time between two merges of a fragment above which it is reported as a gap.
const GAP: Duration = Duration::from_secs(2);

/// Process of the cluster, and the number of its restarts.
struct ClusterProcess {
    child: Child,
    lives: u32,
}

impl Drop for ClusterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All parts of a chaos run.
struct ChaosRun {
    crew: ClusterServers,
    orders: AdminCommands,
    owners: Vec<ClusterProcess>,
    gateways: Vec<ClusterProcess>,
    doors: Vec<u16>,
    notes: Vec<PathBuf>,
    nats: Nats,
    fragments: Vec<FragmentId>,
    /// Recovery times, each with an index into `ill`.
    healing: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Parts with a fault.
    ill: Vec<FaultTarget>,
}

#[derive(Clone, Copy, Debug)]
enum FaultTarget {
    FragmentLeader(usize),
    Gateway(usize),
    Node(usize),
    Paused(u32),
}

/// Runs a chaos test. Returns its measurements as one line of JSON.
///
/// # Errors
/// A description of the first violation.
pub async fn run(bin: &Path, seed: u64, faults: u64) -> Result<String, String> {
    let begun = Instant::now();
    let mut storm = ChaosRun::begin(bin, seed).await?;
    let run = Arc::new(role::run(seed));
    let services = role::services(&storm.orders).await;
    let meter = MergeTimes::default();
    for fragment in run.ids() {
        tokio::spawn(meter.clone().read(services.clone(), fragment));
    }
    let at = storm.doors.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
    let (doors, known) = watch::channel(at);
    let mut accounting: BTreeMap<LearnerId, Arc<Mutex<Book>>> = BTreeMap::new();
    let mut learners = Vec::new();
    for id in (1..=LEARNERS).map(LearnerId) {
        let learner = SimulatedLearner::new(id, Arc::clone(&run), seed);
        accounting.insert(id, learner.book());
        learners.push(tokio::spawn(learner.train(known.clone())));
    }
    storm.await_rounds(&meter, 3).await.map_err(|why| format!("before the storm: {why}"))?;

    let mut rng = Rng::new(seed);
    let mut struck = Vec::new();
    for number in 1..=faults {
        let (before, fault, lasts) = ClusterFault::next(&mut rng, OF_EACH);
        storm.heal_until(Instant::now() + before).await;
        eprintln!("{:6.1} s: fault {number}: {fault:?} for {lasts:?}", begun.elapsed().as_secs_f64());
        struck.push(Instant::now());
        storm.strike(fault, Instant::now() + lasts).await;
    }
    while let Some(Reverse((at, _))) = storm.healing.peek() {
        let at = *at;
        storm.heal_until(at).await;
    }
    storm.await_rounds(&meter, 5).await.map_err(|why| format!("after the storm: {why}"))?;

    drop((doors, known));
    for learner in learners {
        learner.await.map_err(|error| format!("a learner: {error}"))?;
    }
    storm.judge(&services, &accounting, &meter, &struck, begun).await
}

impl ChaosRun {
    async fn begin(bin: &Path, seed: u64) -> Result<Self, String> {
        let crew = ClusterServers::start(bin, OF_EACH);
        let blobs = crew.blobs("s3://states/storm");
        let (part, nats) = (ProcessRole::Gateway(0, 0), crew.nats());
        let orders =
            AdminCommands { part, seed, nats: nats.clone(), place: blobs.place, variables: blobs.variables };
        let fragments = role::run(seed).ids();
        let settings = NatsSettings {
            servers: nats,
            prefix: "storm".to_owned(),
            replicas: OF_EACH,
            fragments: fragments.clone(),
        };
        let nats = Nats::open(settings, ClusterId { run: RunId(seed), nonce: seed }).await;
        let mut storm = Self {
            crew,
            orders,
            owners: Vec::new(),
            gateways: Vec::new(),
            doors: free_ports(OF_EACH).map_err(|error| error.to_string())?,
            notes: Vec::new(),
            nats: nats.map_err(|error| error.to_string())?,
            fragments,
            healing: BinaryHeap::new(),
            ill: Vec::new(),
        };
        for at in 0..OF_EACH {
            let (owner, gateway) = (storm.owner(at, 0), storm.gateway(at, 0));
            storm.owners.push(owner);
            storm.gateways.push(gateway);
        }
        Ok(storm)
    }

    fn owner(&mut self, at: usize, lives: u32) -> ClusterProcess {
        let notes = self.crew.folder().join(format!("owner{at}-{lives}.notes"));
        self.notes.push(notes.clone());
        self.start(ProcessRole::FragmentLeader(notes), &format!("owner{at}"), lives)
    }

    fn gateway(&self, at: usize, lives: u32) -> ClusterProcess {
        self.start(ProcessRole::Gateway(at as u32, self.doors[at]), &format!("gateway{at}"), lives)
    }

    fn start(&self, part: ProcessRole, name: &str, lives: u32) -> ClusterProcess {
        let orders = AdminCommands { part, ..self.orders.clone() };
        let orders = serde_json::to_string(&orders).expect("orders are text");
        let log = self.crew.folder().join(format!("{name}.log"));
        let log = std::fs::File::options().append(true).create(true).open(log).expect("a log");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([role::FLAG, orders.as_str()]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        ClusterProcess { child: command.spawn().expect("this program starts"), lives }
    }

    /// Waits for `count` further merges of each fragment.
    async fn await_rounds(&self, meter: &MergeTimes, count: usize) -> Result<(), String> {
        let from = Instant::now();
        while meter.least(&self.fragments, from) < count {
            if from.elapsed() > CALM_WITHIN {
                let most = meter.least(&self.fragments, from);
                return Err(format!("a fragment was merged {most} times in {CALM_WITHIN:?}, not {count}"));
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn strike(&mut self, fault: ClusterFault, until: Instant) {
        match fault {
            ClusterFault::KillOwner(at) => {
                let _ = self.owners[at].child.kill();
                self.heal_at(until, FaultTarget::FragmentLeader(at));
            }
            ClusterFault::KillGateway(at) => {
                let _ = self.gateways[at].child.kill();
                self.heal_at(until, FaultTarget::Gateway(at));
            }
            ClusterFault::PauseOwner(at) => self.pause(self.owners[at].child.id(), until),
            ClusterFault::PauseGateway(at) => self.pause(self.gateways[at].child.id(), until),
            ClusterFault::PauseStore => self.pause(self.crew.s3_pid(), until),
            ClusterFault::KillNode(at) => self.kill_node(at, until),
            ClusterFault::PauseNode(at) => self.pause_node(at, until),
            ClusterFault::KillLeader(p) => {
                let at = self.leader(p).await;
                self.kill_node(at, until);
            }
            ClusterFault::PauseLeader(p) => {
                let at = self.leader(p).await;
                self.pause_node(at, until);
            }
        }
    }

    /// Returns the node that leads the stream of a fragment, or any node if none does.
    async fn leader(&self, p: usize) -> usize {
        let leader = self.nats.leader(self.fragments[p]).await.ok().flatten();
        leader.and_then(|name| name.strip_prefix('n')?.parse().ok()).unwrap_or(p)
    }

    fn kill_node(&mut self, at: usize, until: Instant) {
        self.crew.kill(at);
        self.heal_at(until, FaultTarget::Node(at));
    }

    fn pause_node(&mut self, at: usize, until: Instant) {
        if let Some(process) = self.crew.pid(at) {
            self.pause(process, until);
        }
    }

    fn pause(&mut self, process: u32, until: Instant) {
        pause(process);
        self.heal_at(until, FaultTarget::Paused(process));
    }

    fn heal_at(&mut self, at: Instant, ill: FaultTarget) {
        self.healing.push(Reverse((at, self.ill.len())));
        self.ill.push(ill);
    }

    /// Waits until `until`. Meanwhile, parts recover at their times.
    async fn heal_until(&mut self, until: Instant) {
        while let Some(Reverse((at, ill))) =
            self.healing.peek().copied().filter(|Reverse((at, _))| *at <= until)
        {
            sleep_until(at).await;
            self.healing.pop();
            match self.ill[ill] {
                FaultTarget::Paused(process) => resume(process),
                FaultTarget::Node(at) => self.crew.revive(at),
                FaultTarget::FragmentLeader(at) => {
                    let lives = self.owners[at].lives + 1;
                    self.owners[at] = self.owner(at, lives);
                }
                FaultTarget::Gateway(at) => {
                    // The port is free only after the old process has ended.
                    let former = &mut self.gateways[at];
                    let (_, _, lives) = (former.child.kill(), former.child.wait(), former.lives + 1);
                    self.gateways[at] = self.gateway(at, lives);
                }
            }
        }
        sleep_until(until).await;
    }

    async fn judge(
        &self,
        services: &Services,
        accounting: &BTreeMap<LearnerId, Arc<Mutex<Book>>>,
        meter: &MergeTimes,
        struck: &[Instant],
        begun: Instant,
    ) -> Result<String, String> {
        let accounting = accounting.iter().map(|(id, book)| (*id, book.lock().unwrap().clone())).collect();
        let told: Vec<_> = self.notes.iter().flat_map(|notes| role::read(notes)).collect();
        let run = role::run(self.orders.seed);
        let counts = check(&run, services, &accounting, &told).await?;
        let again = struck.iter().flat_map(|fault| meter.again(*fault)).collect();
        let (again_p50, again_worst) = middle_and_worst(again);
        let gaps = meter.gaps(GAP);
        let (count, (gap_p50, gap_worst)) = (gaps.len(), middle_and_worst(gaps));
        let figures = serde_json::json!({
            "seed": self.orders.seed,
            "faults": struck.len(),
            "seconds": begun.elapsed().as_secs(),
            "records": counts.records,
            "merges": counts.merges,
            "takeovers": counts.takeovers,
            "updates": counts.updates,
            "receipts": counts.receipts,
            "notes": told.len(),
            "again_ms": { "p50": again_p50, "worst": again_worst },
            "gaps_above_2_s": { "count": count, "p50_ms": gap_p50, "worst_ms": gap_worst },
        });
        Ok(figures.to_string())
    }
}

/// Fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// Kills a leading process. It is restarted after a while.
    KillOwner(usize),
    /// Pauses a leading process for a while.
    PauseOwner(usize),
    KillGateway(usize),
    PauseGateway(usize),
    /// Kills a NATS node. It is restarted with the data on its disk.
    KillNode(usize),
    PauseNode(usize),
    /// Kills the node that leads the stream of this fragment.
    KillLeader(usize),
    /// Pauses the node that leads the stream of this fragment for a while.
    PauseLeader(usize),
    /// Pauses the S3 server for a while.
    PauseStore,
}

impl ClusterFault {
    /// Returns the time before the next fault, the fault, and its duration. `of` is the number of parts of each kind.
    pub fn next(rng: &mut Rng, of: usize) -> (Duration, Self, Duration) {
        let at = rng.below(of as u32) as usize;
        let fault = match rng.below(13) {
            0 | 1 => Self::KillOwner(at),
            2 | 3 => Self::PauseOwner(at),
            4 => Self::KillGateway(at),
            5 => Self::PauseGateway(at),
            6 => Self::KillNode(at),
            7 => Self::PauseNode(at),
            8 | 9 => Self::KillLeader(at),
            10 | 11 => Self::PauseLeader(at),
            _ => Self::PauseStore,
        };
        let is_pause = matches!(
            fault,
            Self::PauseOwner(_) | Self::PauseGateway(_) | Self::PauseNode(_) | Self::PauseLeader(_)
        );
        let (least, more) = if is_pause { (2_000, 4_000) } else { (500, 2_500) };
        let ms =
            |least: u32, more: u32, rng: &mut Rng| Duration::from_millis((least + rng.below(more)).into());
        (ms(500, 3_500, rng), fault, ms(least, more, rng))
    }
}

/// Pauses a process.
pub fn pause(process: u32) {
    signal(process, Signal::STOP);
}

/// Continues a paused process.
pub fn resume(process: u32) {
    signal(process, Signal::CONT);
}

fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has a number");
    // The process may have ended already.
    let _ = kill_process(process, signal);
}

/// Times at which merges of each fragment were first read.
#[derive(Clone, Debug, Default)]
pub struct MergeTimes(Arc<Mutex<BTreeMap<FragmentId, Vec<Instant>>>>);

impl MergeTimes {
    /// Polls the tape of a fragment forever.
    pub async fn read(self, services: Services, fragment: FragmentId) {
        let mut last = 0;
        loop {
            if let Ok(records) = services.tape.read(fragment, last).await {
                last += records.len() as u64;
                let merged = records.iter().filter(|record| matches!(record, Record::Merged { .. })).count();
                let now = Instant::now();
                self.0.lock().unwrap().entry(fragment).or_default().extend(vec![now; merged]);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the number of merges since `from`, for the fragment with the fewest.
    pub fn least(&self, fragments: &[FragmentId], from: Instant) -> usize {
        let seen = self.0.lock().unwrap();
        let count = |p| seen.get(p).map_or(0, |seen| seen.iter().filter(|at| **at > from).count());
        fragments.iter().map(count).min().unwrap_or_default()
    }

    /// Returns, for each fragment, the time from `fault` to the second merge after it. The first one may have been in
    /// flight.
    pub fn again(&self, fault: Instant) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        let again = |seen: &Vec<Instant>| Some(*seen.iter().filter(|at| **at > fault).nth(1)? - fault);
        seen.values().filter_map(again).collect()
    }

    /// Returns the times between two merges of the same fragment that are above `limit`.
    pub fn gaps(&self, limit: Duration) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        let gaps = seen.values().flat_map(|seen| seen.windows(2).map(|pair| pair[1] - pair[0]));
        gaps.filter(|gap| *gap > limit).collect()
    }
}

/// Returns the median and the maximum of `times`, in milliseconds.
pub fn middle_and_worst(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort_unstable();
    let at = |index: usize| times.get(index).map_or(0, Duration::as_millis);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}
