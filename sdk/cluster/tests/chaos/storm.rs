//! Storm: starts the cluster, applies random faults, waits for recovery, and compares receipts with the tape.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::{ClusterId, Nats, NatsSettings, Services};
use archipelago_core::rng::Rng;
use archipelago_core::wire::{FragmentId, LearnerId, RunId};
use archipelago_crew::free_ports;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::fault::{Fault, pause, resume};
use crate::meter::{Meter, middle_and_worst};
use crate::note;
use crate::role::{self, AdminCommands, Part};
use crate::support::check::check;
use crate::support::learner::{Book, Learner};
use crate::support::servers::Crew;

/// Number of owners, gateways and nodes, each.
const OF_EACH: usize = 3;
const LEARNERS: u32 = 9;
/// Time limit for all fragments to have rounds again after the last fault.
const CALM_WITHIN: Duration = Duration::from_secs(90);
/// Time without a merge of a fragment that counts as a gap.
const GAP: Duration = Duration::from_secs(2);

/// Process of the cluster, and the number of its starts.
struct Player {
    child: Child,
    lives: u32,
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All running parts.
struct Storm {
    crew: Crew,
    orders: AdminCommands,
    owners: Vec<Player>,
    gateways: Vec<Player>,
    doors: Vec<u16>,
    notes: Vec<PathBuf>,
    nats: Nats,
    fragments: Vec<FragmentId>,
    /// Recovery times, with indices into `ill`.
    healing: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Parts that must recover.
    ill: Vec<Ill>,
}

#[derive(Clone, Copy, Debug)]
enum Ill {
    FragmentLeader(usize),
    Gateway(usize),
    Node(usize),
    Paused(u32),
}

/// Runs a storm. Returns its figures as one line of JSON.
///
/// # Errors
/// A description of the violation.
pub async fn run(bin: &Path, seed: u64, faults: u64) -> Result<String, String> {
    let begun = Instant::now();
    let mut storm = Storm::begin(bin, seed).await?;
    let run = Arc::new(role::run(seed));
    let services = role::services(&storm.orders).await;
    let meter = Meter::default();
    for fragment in run.ids() {
        tokio::spawn(meter.clone().read(services.clone(), fragment));
    }
    let at = storm.doors.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
    let (doors, known) = watch::channel(at);
    let mut books: BTreeMap<LearnerId, Arc<Mutex<Book>>> = BTreeMap::new();
    let mut learners = Vec::new();
    for id in (1..=LEARNERS).map(LearnerId) {
        let learner = Learner::new(id, Arc::clone(&run), seed);
        books.insert(id, learner.book());
        learners.push(tokio::spawn(learner.train(known.clone())));
    }
    storm.await_rounds(&meter, 3).await.map_err(|why| format!("before the storm: {why}"))?;

    let mut rng = Rng::new(seed);
    let mut struck = Vec::new();
    for number in 1..=faults {
        let (before, fault, lasts) = Fault::next(&mut rng, OF_EACH);
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
    storm.judge(&services, &books, &meter, &struck, begun).await
}

impl Storm {
    async fn begin(bin: &Path, seed: u64) -> Result<Self, String> {
        let crew = Crew::start(bin, OF_EACH);
        let blobs = crew.blobs("s3://states/storm");
        let (part, nats) = (Part::Gateway(0, 0), crew.nats());
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

    fn owner(&mut self, at: usize, lives: u32) -> Player {
        let notes = self.crew.folder().join(format!("owner{at}-{lives}.notes"));
        self.notes.push(notes.clone());
        self.start(Part::FragmentLeader(notes), &format!("owner{at}"), lives)
    }

    fn gateway(&self, at: usize, lives: u32) -> Player {
        self.start(Part::Gateway(at as u32, self.doors[at]), &format!("gateway{at}"), lives)
    }

    fn start(&self, part: Part, name: &str, lives: u32) -> Player {
        let orders = AdminCommands { part, ..self.orders.clone() };
        let orders = serde_json::to_string(&orders).expect("orders are text");
        let log = self.crew.folder().join(format!("{name}.log"));
        let log = std::fs::File::options().append(true).create(true).open(log).expect("a log");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([role::FLAG, orders.as_str()]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        Player { child: command.spawn().expect("this program starts"), lives }
    }

    /// Waits for `count` further merges of each fragment.
    async fn await_rounds(&self, meter: &Meter, count: usize) -> Result<(), String> {
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

    async fn strike(&mut self, fault: Fault, until: Instant) {
        match fault {
            Fault::KillOwner(at) => {
                let _ = self.owners[at].child.kill();
                self.heal_at(until, Ill::FragmentLeader(at));
            }
            Fault::KillGateway(at) => {
                let _ = self.gateways[at].child.kill();
                self.heal_at(until, Ill::Gateway(at));
            }
            Fault::PauseOwner(at) => self.pause(self.owners[at].child.id(), until),
            Fault::PauseGateway(at) => self.pause(self.gateways[at].child.id(), until),
            Fault::PauseStore => self.pause(self.crew.s3_pid(), until),
            Fault::KillNode(at) => self.kill_node(at, until),
            Fault::PauseNode(at) => self.pause_node(at, until),
            Fault::KillLeader(p) => {
                let at = self.leader(p).await;
                self.kill_node(at, until);
            }
            Fault::PauseLeader(p) => {
                let at = self.leader(p).await;
                self.pause_node(at, until);
            }
        }
    }

    /// Returns the node that leads the tape of a fragment, or any node if there is no leader.
    async fn leader(&self, p: usize) -> usize {
        let leader = self.nats.leader(self.fragments[p]).await.ok().flatten();
        leader.and_then(|name| name.strip_prefix('n')?.parse().ok()).unwrap_or(p)
    }

    fn kill_node(&mut self, at: usize, until: Instant) {
        self.crew.kill(at);
        self.heal_at(until, Ill::Node(at));
    }

    fn pause_node(&mut self, at: usize, until: Instant) {
        if let Some(process) = self.crew.pid(at) {
            self.pause(process, until);
        }
    }

    fn pause(&mut self, process: u32, until: Instant) {
        pause(process);
        self.heal_at(until, Ill::Paused(process));
    }

    fn heal_at(&mut self, at: Instant, ill: Ill) {
        self.healing.push(Reverse((at, self.ill.len())));
        self.ill.push(ill);
    }

    /// Waits until `until`. Parts that are due by then recover.
    async fn heal_until(&mut self, until: Instant) {
        while let Some(Reverse((at, ill))) =
            self.healing.peek().copied().filter(|Reverse((at, _))| *at <= until)
        {
            sleep_until(at).await;
            self.healing.pop();
            match self.ill[ill] {
                Ill::Paused(process) => resume(process),
                Ill::Node(at) => self.crew.revive(at),
                Ill::FragmentLeader(at) => {
                    let lives = self.owners[at].lives + 1;
                    self.owners[at] = self.owner(at, lives);
                }
                Ill::Gateway(at) => {
                    // The port becomes free once the old process is gone.
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
        books: &BTreeMap<LearnerId, Arc<Mutex<Book>>>,
        meter: &Meter,
        struck: &[Instant],
        begun: Instant,
    ) -> Result<String, String> {
        let books = books.iter().map(|(id, book)| (*id, book.lock().unwrap().clone())).collect();
        let told: Vec<_> = self.notes.iter().flat_map(|notes| note::read(notes)).collect();
        let run = role::run(self.orders.seed);
        let counts = check(&run, services, &books, &told).await?;
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
