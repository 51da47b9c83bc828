//! Real servers on loopback for tests: one or three of NATS, and one that speaks S3. They end with the test.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use archipelago_cluster::StoreSettings;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// The bucket for states.
const BUCKET: &str = "states";

/// The folder of the servers' programs, if these tests are asked for.
pub fn wanted() -> Option<PathBuf> {
    if std::env::var("CLUSTER_TESTS").is_ok_and(|value| value == "yes") {
        let bin =
            std::env::var_os("CLUSTER_BIN").expect("`cargo xtask test --only cluster` says where they are");
        return Some(PathBuf::from(bin));
    }
    println!("left out: CLUSTER_TESTS=yes adds it");
    None
}

/// A program that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The servers of a cluster.
pub struct Crew {
    bin: PathBuf,
    folder: tempfile::TempDir,
    ports: Vec<u16>,
    nodes: Vec<Option<Running>>,
    s3: Running,
}

impl Crew {
    /// So many nodes of NATS, and one server that speaks S3, which has a bucket.
    pub async fn start(bin: &Path, nodes: usize) -> Self {
        Self::start_with(bin, nodes, 1 << 30).await
    }

    /// The same, with so many bytes for all streams of a node.
    pub async fn start_with(bin: &Path, nodes: usize, bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Those of clients, then those of routes, and that of S3.
        let ports = free_ports(2 * nodes + 1);
        for node in 0..nodes {
            std::fs::write(folder.path().join(format!("{node}.conf")), config(&ports, nodes, node, bytes))
                .unwrap();
        }
        let s3 = ports[2 * nodes];
        let mut serve = Command::new(bin.join("moto_server"));
        serve.args(["-H", "127.0.0.1", "-p", &s3.to_string()]);
        let s3 = Running(spawn(&mut serve, &folder.path().join("s3.log")));
        let mut crew =
            Self { bin: bin.to_owned(), folder, ports, nodes: (0..nodes).map(|_| None).collect(), s3 };
        (0..nodes).for_each(|node| crew.revive(node));
        for port in crew.ports.iter().take(nodes).chain(&crew.ports[2 * nodes..]) {
            await_port(*port).await;
        }
        crew.make_bucket();
        crew
    }

    /// Where its nodes are, with the credentials of somebody who may do all.
    pub fn nats(&self) -> Vec<String> {
        let ports = &self.ports[..self.nodes.len()];
        ports.iter().map(|port| format!("nats://owner:secret@127.0.0.1:{port}")).collect()
    }

    /// Where S3 is.
    pub fn s3(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[2 * self.nodes.len()])
    }

    /// States at this place, with what is to be known of S3.
    pub fn blobs(&self, place: &str) -> StoreSettings {
        let variables = [
            ("AWS_ENDPOINT_URL", &*self.s3()),
            ("AWS_REGION", "eu-north-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        StoreSettings { place: place.to_owned(), variables: variables.to_vec() }
    }

    /// A folder of the test's own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends a node at once.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Begins a node that has ended, with what it had on the disk.
    pub fn revive(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            let mut serve = Command::new(self.bin.join("nats-server"));
            serve
                .arg("-c")
                .arg(self.folder.path().join(format!("{node}.conf")))
                .current_dir(self.folder.path());
            let log = self.folder.path().join(format!("nats{node}.log"));
            self.nodes[node] = Some(Running(spawn(&mut serve, &log)));
        }
    }

    /// The process of a node, if it runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.nodes[node].as_ref().map(|running| running.0.id())
    }

    /// The process of the server that speaks S3.
    pub fn s3_pid(&self) -> u32 {
        self.s3.0.id()
    }

    /// The server for tests takes any signature, so a request with a poor one makes the bucket.
    fn make_bucket(&self) {
        let at = format!("{}/{BUCKET}", self.s3());
        let key = "AWS4-HMAC-SHA256 Credential=key/x/eu-north-1/s3/x";
        let region = "<LocationConstraint>eu-north-1</LocationConstraint>";
        let body = format!("<CreateBucketConfiguration>{region}</CreateBucketConfiguration>");
        let made = ureq::put(&at).header("Authorization", key).send(body);
        assert!(made.as_ref().is_ok_and(|made| made.status().is_success()), "{made:?}");
    }
}

/// The settings of a node. It writes each record to the disk before it says so.
fn config(ports: &[u16], nodes: usize, node: usize, bytes: u64) -> String {
    let mut text = format!(
        "server_name: n{node}\nlisten: 127.0.0.1:{}\n\
         jetstream {{ store_dir: \"d{node}\", sync_interval: always, max_file_store: {bytes} }}\n\
         authorization {{ users: [\n\
         {{ user: owner, password: secret }}\n\
         {{ user: reader, password: secret, permissions: {{ publish: {{ deny: [\"$JS.API.STREAM.CREATE.>\"] }} }} }}\n\
         ] }}\n",
        ports[node]
    );
    if nodes > 1 {
        let route = |other: &u16| format!("nats://127.0.0.1:{other}");
        let routes: Vec<String> = ports[nodes..2 * nodes].iter().map(route).collect();
        let _ = writeln!(
            text,
            "cluster {{ name: c, listen: 127.0.0.1:{}, routes: [{}] }}",
            ports[nodes + node],
            routes.join(", ")
        );
    }
    text
}

fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = std::fs::File::options().append(true).create(true).open(log).expect("a log");
    let errors = log.try_clone().expect("the same log");
    let started = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
    started.unwrap_or_else(|error| panic!("{command:?} did not start: {error}"))
}

/// Ports that nobody had a moment ago.
pub fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("its address").port()).collect()
}

async fn await_port(port: u16) {
    for _ in 0..1_200 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("nothing listens on port {port} after a minute");
}
