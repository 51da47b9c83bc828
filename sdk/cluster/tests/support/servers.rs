//! Real servers on loopback for tests: one or three NATS nodes, and an S3 server. They end with the test.

use std::path::{Path, PathBuf};

use archipelago_cluster::StoreSettings;
use archipelago_test_servers::ServerProcess;

/// Returns the folder of the server programs, or `None` if tests with servers are not requested.
pub fn wanted() -> Option<PathBuf> {
    let bin = std::env::var_os("ARCHIPELAGO_TEST_SERVERS");
    if bin.is_none() {
        println!("left out; `cargo xtask test --only cluster` runs it");
    }
    bin.map(PathBuf::from)
}

/// NATS nodes and the S3 server of a cluster.
pub struct ClusterServers {
    plan: archipelago_test_servers::ClusterServers,
    folder: tempfile::TempDir,
    nodes: Vec<Option<ServerProcess>>,
    s3: ServerProcess,
}

impl ClusterServers {
    /// Starts `nodes` NATS nodes and an S3 server with a bucket.
    pub fn start(bin: &Path, nodes: usize) -> Self {
        Self::start_with(bin, nodes, 1 << 30)
    }

    /// Starts servers with a limit of `bytes` bytes for all streams of a node.
    pub fn start_with(bin: &Path, nodes: usize, bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = archipelago_test_servers::ClusterServers::lay(bin, folder.path(), nodes, bytes)
            .expect("a place for each");
        let s3 = ServerProcess::start(&plan.s3()).expect("a server that speaks S3");
        let mut crew = Self { plan, folder, nodes: (0..nodes).map(|_| None).collect(), s3 };
        (0..nodes).for_each(|node| crew.revive(node));
        crew.plan.begin().expect("all of them answer");
        crew
    }

    /// Returns the addresses of the nodes, with credentials that permit all operations.
    pub fn nats(&self) -> Vec<String> {
        self.plan.nats()
    }

    /// Returns the address of the S3 server.
    pub fn s3(&self) -> String {
        self.plan.s3_url()
    }

    /// Returns the settings for states at `place`, with the S3 variables.
    pub fn blobs(&self, place: &str) -> StoreSettings {
        StoreSettings { place: place.to_owned(), variables: self.plan.variables() }
    }

    /// Returns the folder of the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Restarts a killed node with the data on its disk.
    pub fn revive(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            self.nodes[node] = Some(ServerProcess::start(&self.plan.node(node)).expect("a server of NATS"));
        }
    }

    /// Returns the process id of a node, if it runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.nodes[node].as_ref().map(ServerProcess::pid)
    }

    /// Returns the process id of the S3 server.
    pub fn s3_pid(&self) -> u32 {
        self.s3.pid()
    }
}
