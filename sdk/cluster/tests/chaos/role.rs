//! Roles of this program as a part of the cluster. The program ends when its standard input ends.

use std::path::PathBuf;
use std::sync::Arc;

use archipelago_cluster::{
    GatewaySettings, LeaderSettings, Servers, Services, StoreSettings, gateway, new_process, open, own,
};
use archipelago_core::cluster::GatewayId;
use archipelago_core::wire::RunId;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::note;
use crate::support::door;
use crate::support::run::Run;

/// Flag before the orders.
pub const FLAG: &str = "--play";
/// Duration of a lease, in milliseconds.
pub const LEASE_MS: u64 = 3_000;

/// Role and environment of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdminCommands {
    pub part: Part,
    pub seed: u64,
    pub nats: Vec<String>,
    pub place: String,
    pub variables: Vec<(String, String)>,
}

/// Role of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Part {
    /// Leader process, with its log file.
    FragmentLeader(PathBuf),
    /// Gateway, with its number and port.
    Gateway(u32, u16),
}

/// Returns the run of a storm.
pub fn run(seed: u64) -> Run {
    Run::new(seed, 3, 200)
}

/// Connects to the services of a storm.
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

/// Runs a role until the standard input ends.
pub async fn play(orders: AdminCommands) {
    let (services, run) = (services(&orders).await, Arc::new(run(orders.seed)));
    let stop = input_ends();
    match orders.part {
        Part::FragmentLeader(notes) => {
            let services = note::noting(services, &notes);
            let (process, fragments, beginnings) = (new_process(), run.owner(), run.beginnings());
            let (lease_ms, tick_ms, orders) = (LEASE_MS, 50, run.orders());
            let settings = LeaderSettings {
                process,
                fragments,
                beginnings,
                lead_max: usize::MAX,
                lease_ms,
                tick_ms,
                orders,
            };
            own(services, settings, stop).await;
        }
        Part::Gateway(id, port) => {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("its port");
            let settings = GatewaySettings { fragments: run.gateway(GatewayId(id)), tick_ms: 200 };
            let (running, learners) = gateway(services, settings);
            tokio::select! {
                () = running.run(stop) => {}
                () = door::keep(run, listener, learners) => {}
            }
        }
    }
}

/// Resolves when the parent process has ended or closes the input.
async fn input_ends() {
    let (ended, end) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(ended);
    });
    let _ = end.await;
}
