//! Services of a cluster on loopback, for tests and measurements: NATS servers, which write every record to disk before
//! they confirm it, and a server for S3.
//!
//! [`ClusterServers`] prepares their commands. The caller starts them, for example as [`ServerProcess`], a process that
//! ends when it is dropped.

#![expect(clippy::disallowed_methods, reason = "servers take real time to begin")]

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Error, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bucket for states.
const BUCKET: &str = "states";
/// Longest wait until all servers listen.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);
/// Interval of the checks for listening servers.
const POLL: Duration = Duration::from_millis(50);
/// Longest wait for an answer of the S3 server.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Region, key and secret for the S3 server; it is a test server and accepts any.
const REGION: &str = "eu-north-1";
const KEY: &str = "key";
const SECRET: &str = "secret";

/// Command that starts a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Path of the log without an extension.
    pub log: PathBuf,
}

/// Servers of a cluster, prepared but not started.
#[derive(Clone, Debug)]
pub struct ClusterServers {
    bin: PathBuf,
    folder: PathBuf,
    /// Client ports of the NATS nodes.
    client_ports: Vec<u16>,
    s3: u16,
}

impl ClusterServers {
    /// Prepares `nodes` NATS nodes, 1 or 3, each with `store_bytes_max` bytes for all streams, and an S3 server, on
    /// free ports. The programs are in `bin`; their data goes to the existing folder `folder`.
    ///
    /// # Errors
    /// The system has no free port, or the folder cannot be written.
    pub fn lay(bin: &Path, folder: &Path, nodes: usize, store_bytes_max: u64) -> io::Result<Self> {
        let ports = free_ports(2 * nodes + 1)?;
        let (client_ports, rest) = ports.split_at(nodes);
        let (routes, s3) = rest.split_at(nodes);
        let folder = fs::canonicalize(folder)?;
        for (at, client_port) in client_ports.iter().enumerate() {
            let text = config(&folder, at, *client_port, routes, store_bytes_max);
            fs::write(folder.join(format!("{at}.conf")), text)?;
        }
        Ok(Self { bin: bin.to_owned(), folder, client_ports: client_ports.to_vec(), s3: s3[0] })
    }

    /// Returns the command that starts node `node`. A node that is started again finds its stored data.
    #[must_use]
    pub fn node(&self, node: usize) -> Start {
        let config = self.folder.join(format!("{node}.conf"));
        self.start("nats-server", vec!["-c".into(), config.into()], &format!("nats{node}"))
    }

    /// Returns the command that starts the S3 server.
    #[must_use]
    pub fn s3(&self) -> Start {
        let args = ["-H", "127.0.0.1", "-p", &self.s3.to_string()].map(OsString::from);
        self.start("moto_server", args.to_vec(), "s3")
    }

    /// Returns the number of NATS nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.client_ports.len()
    }

    /// Returns the addresses of the nodes, with the credentials of a user with all rights.
    #[must_use]
    pub fn nats(&self) -> Vec<String> {
        self.client_ports.iter().map(|port| format!("nats://owner:secret@127.0.0.1:{port}")).collect()
    }

    /// Returns the address of the folder `name` in the bucket, in the form of the `--blobs` flag.
    #[must_use]
    pub fn place(&self, name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    /// Returns the address of the S3 server.
    #[must_use]
    pub fn s3_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.s3)
    }

    /// Returns the environment variables for the S3 server.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let url = self.s3_url();
        let pairs = [
            ("AWS_ENDPOINT_URL", &*url),
            ("AWS_REGION", REGION),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    /// Waits until all servers listen, and creates the bucket.
    ///
    /// # Errors
    /// A server does not listen after a minute, or the bucket cannot be created.
    pub fn begin(&self) -> io::Result<()> {
        self.begin_nodes()?;
        await_port(self.s3)?;
        self.make_bucket()
    }

    /// Waits until the nodes listen.
    ///
    /// # Errors
    /// A node does not listen after a minute.
    pub fn begin_nodes(&self) -> io::Result<()> {
        self.client_ports.iter().try_for_each(|port| await_port(*port))
    }

    /// Creates the bucket with a raw request over a socket, so that users of this crate link no S3 client. The test
    /// server accepts any signature.
    fn make_bucket(&self) -> io::Result<()> {
        let region = format!("<LocationConstraint>{REGION}</LocationConstraint>");
        let body = format!("<CreateBucketConfiguration>{region}</CreateBucketConfiguration>");
        let head = format!(
            "PUT /{BUCKET} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nContent-Length: {}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential={KEY}/x/{REGION}/s3/x\r\n\r\n",
            self.s3,
            body.len()
        );
        let mut stream = TcpStream::connect(local(self.s3))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all((head + &body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let line = answer.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => Err(Error::other(format!("no bucket was made: {line}"))),
        }
    }

    fn start(&self, program: &str, args: Vec<OsString>, log: &str) -> Start {
        Start { program: self.bin.join(program), args, log: self.folder.join(log) }
    }
}

/// Returns free ports.
///
/// # Errors
/// The system has no free port left.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All listeners stay open until the last port is found, so that no port is returned twice.
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind(local(0))).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn await_port(port: u16) -> io::Result<()> {
    let until = Instant::now() + BEGIN_WITHIN;
    while TcpStream::connect(local(port)).is_err() {
        if Instant::now() >= until {
            return Err(Error::other(format!("nothing listens on port {port} after a minute")));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns the configuration of node `node`. Clients reach it at the port `client_port`, and nodes reach each other at
/// the ports `routes`. It writes each record to disk before it confirms it, and has `bytes` bytes for all streams. One
/// user has all rights, and another one may not create streams.
pub(crate) fn config(folder: &Path, node: usize, client_port: u16, routes: &[u16], bytes: u64) -> String {
    let store = folder.join(format!("d{node}"));
    let mut text = format!(
        "server_name: n{node}\nlisten: 127.0.0.1:{client_port}\n\
         jetstream {{ store_dir: {:?}, sync_interval: always, max_file_store: {bytes} }}\n\
         authorization {{ users: [\n\
         {{ user: owner, password: secret }}\n\
         {{ user: reader, password: secret, permissions: {{ publish: {{ deny: [\"$JS.API.STREAM.CREATE.>\"] }} }} }}\n\
         ] }}\n",
        store.display().to_string()
    );
    if routes.len() > 1 {
        let urls: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let _ = writeln!(
            text,
            "cluster {{ name: c, listen: 127.0.0.1:{}, routes: [{}] }}",
            routes[node],
            urls.join(", ")
        );
    }
    text
}

/// Child process that ends when it is dropped.
#[derive(Debug)]
pub struct ServerProcess(Child);

impl ServerProcess {
    /// Starts the program, with its output appended to a file.
    ///
    /// # Errors
    /// The program is missing, or the file cannot be written.
    pub fn start(start: &Start) -> io::Result<Self> {
        let log = File::options().append(true).create(true).open(start.log.with_extension("log"))?;
        let mut command = Command::new(&start.program);
        command.args(&start.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let failed = |error: Error| {
            Error::new(error.kind(), format!("{} did not start: {error}", start.program.display()))
        };
        Ok(Self(command.spawn().map_err(failed)?))
    }

    /// Waits for the end of the process without a time limit. Returns its exit status.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A process that has ended by itself need not be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::env;

    use super::*;

    #[test]
    fn each_server_has_a_port_of_its_own() {
        let folder = env::temp_dir().join(format!("archipelago-test-servers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let crew = ClusterServers::lay(Path::new("bin"), &folder, 3, 1 << 20).unwrap();
        let ports: BTreeSet<u16> = crew.client_ports.iter().chain([&crew.s3]).copied().collect();
        assert_eq!((ports.len(), crew.nodes(), crew.nats().len()), (4, 3, 3));
        for node in 0..3 {
            let Start { args, log, .. } = crew.node(node);
            let config = fs::read_to_string(&args[1]).unwrap();
            assert!(config.contains(&format!("listen: 127.0.0.1:{}\n", crew.client_ports[node])), "{config}");
            assert!(log.ends_with(format!("nats{node}")), "{log:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn several_nodes_know_each_other() {
        let text = config(Path::new("x"), 1, 7, &[11, 12, 13], 99);
        assert!(text.contains("listen: 127.0.0.1:12, routes: [nats://127.0.0.1:11, "), "{text}");
        assert!(text.contains("max_file_store: 99 "), "{text}");
        assert!(!config(Path::new("x"), 0, 7, &[11], 99).contains("cluster"));
    }
}
