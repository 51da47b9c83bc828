//! Roles of this program as a process of the cluster. The process ends when its standard input ends.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use archipelago_cluster::{
    Bus, GatewaySettings, Inbox, LeaderSettings, Servers, ServiceFuture, Services, StoreSettings, Tape,
    gateway, new_process, open, own,
};
use archipelago_core::cluster::{GatewayId, Notice, Record, Reply};
use archipelago_core::wire::{FragmentId, RunId};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::support::LeaderNote;
use crate::support::RunConstants;
use crate::support::{self, frame};

/// Flag before the JSON of [`AdminCommands`].
pub const FLAG: &str = "--play";
/// Duration of a lease, in milliseconds.
pub const LEASE_MS: u64 = 3_000;

/// Role of a process, and the addresses of the services.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdminCommands {
    pub part: ProcessRole,
    pub seed: u64,
    pub nats: Vec<String>,
    pub place: String,
    pub variables: Vec<(String, String)>,
}

/// Role of a process in the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ProcessRole {
    /// Leads fragments, and writes this log file.
    FragmentLeader(PathBuf),
    /// Gateway with this number and port.
    Gateway(u32, u16),
}

/// Returns the run of the test.
pub fn run(seed: u64) -> RunConstants {
    RunConstants::new(seed, 3, 200)
}

/// Connects to the services of the test, as soon as they answer.
pub async fn services(orders: &AdminCommands) -> Services {
    let AdminCommands { nats, place, variables, seed, .. } = orders;
    loop {
        let blobs = StoreSettings { place: place.clone(), variables: variables.clone() };
        let servers = Servers { nats: nats.clone(), replicas: 3, blobs, prefix: "storm".to_owned() };
        match open(servers, RunId(*seed), run(*seed).ids()).await {
            Ok(services) => return services,
            Err(error) if error.is_passing() => eprintln!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a role until standard input ends.
pub async fn play(orders: AdminCommands) {
    let (services, run) = (services(&orders).await, Arc::new(run(orders.seed)));
    let stop = input_ends();
    match orders.part {
        ProcessRole::FragmentLeader(notes) => {
            let services = noting(services, &notes);
            let (process, fragments, initial_states) = (new_process(), run.owner(), run.initial_states());
            let (lease_ms, tick_ms, orders) = (LEASE_MS, 50, run.orders());
            let settings = LeaderSettings {
                process,
                fragments,
                initial_states,
                lead_max: usize::MAX,
                lease_ms,
                tick_ms,
                orders,
            };
            own(services, settings, stop).await;
        }
        ProcessRole::Gateway(id, port) => {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("its port");
            let settings = GatewaySettings { fragments: run.gateway(GatewayId(id)), tick_ms: 200 };
            let (running, learners) = gateway(services, settings);
            tokio::select! {
                () = running.run(stop) => {}
                () = support::keep(run, listener, learners) => {}
            }
        }
    }
}

/// Resolves when the parent process ends or closes the input.
async fn input_ends() {
    let (ended, end) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(ended);
    });
    let _ = end.await;
}

/// Service that writes a log file of its requests.
struct LoggingService<T: ?Sized> {
    service: Arc<T>,
    file: Arc<Mutex<File>>,
}

impl<T: ?Sized> LoggingService<T> {
    fn note(&self, told: &LeaderNote) {
        self.file.lock().unwrap().write_all(&frame(told)).expect("notes can be written");
    }
}

/// Returns the services of a leading process, which log to the file `notes`.
pub fn noting(services: Services, notes: &Path) -> Services {
    let file = Arc::new(Mutex::new(File::create(notes).expect("a file for notes")));
    let Services { tape, bus, .. } = services.clone();
    let tape = Arc::new(LoggingService { service: tape, file: Arc::clone(&file) });
    Services { tape, bus: Arc::new(LoggingService { service: bus, file }), ..services }
}

/// Reads a log file. Its last entry may be incomplete and is then ignored.
pub fn read(notes: &Path) -> Vec<LeaderNote> {
    let bytes = std::fs::read(notes).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut told = Vec::new();
    while let Some((len, more)) = rest.split_first_chunk::<4>() {
        let Some((body, more)) = more.split_at_checked(u32::from_le_bytes(*len) as usize) else { break };
        told.push(rmp_serde::from_slice(body).expect("a note"));
        rest = more;
    }
    told
}

impl Tape for LoggingService<dyn Tape> {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>> {
        Box::pin(async move {
            let appended = self.service.append(fragment, expect, record).await?;
            if let Some(seq) = appended {
                self.note(&LeaderNote::Appended(fragment, seq, record.clone()));
            }
            Ok(appended)
        })
    }

    fn read(&self, fragment: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>> {
        self.service.read(fragment, after)
    }

    fn newest(&self, fragment: FragmentId) -> ServiceFuture<'_, u64> {
        self.service.newest(fragment)
    }
}

impl Bus for LoggingService<dyn Bus> {
    fn notify<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> ServiceFuture<'a, ()> {
        if let Notice::Ended(round) = notice {
            self.note(&LeaderNote::Ended(fragment, *round));
        }
        self.service.notify(fragment, notice)
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> ServiceFuture<'a, ()> {
        self.service.reply(fragment, reply)
    }

    fn notices(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Notice>> {
        self.service.notices(fragment)
    }

    fn replies(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Reply>> {
        self.service.replies(fragment)
    }
}
