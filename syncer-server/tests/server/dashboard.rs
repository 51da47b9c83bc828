//! Tests of the JSON and event streams for pages, and of the run's history.

use serde_json::Value;
use syncer_server::ServeConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::monitoring::copy;
use crate::support::{PATIENCE, ScriptedLearner, Server, config, header};

pub async fn json(server: &Server, path: &str) -> Value {
    let (code, head, body) = server.http(&format!("GET {path}")).await;
    assert_eq!((code, header(&head, "cache-control")), (200, "no-store"), "{path}");
    serde_json::from_slice(&body).unwrap()
}

/// Client of an event stream. It reads on demand, and keeps the whole text.
pub struct Watch {
    stream: TcpStream,
    pub text: String,
}

impl Watch {
    pub async fn open(server: &Server, path: &str) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // Further headers may follow the path, one per line.
        let (path, more) = path.split_once('\n').unwrap_or((path, ""));
        let more = more.lines().map(|line| format!("{line}\r\n")).collect::<String>();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{more}\r\n", server.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Reads until the event `name` has arrived `count` times in total.
    pub async fn until(&mut self, name: &str, count: usize) {
        let line = format!("event: {name}\n");
        while self.text.matches(&line).count() < count {
            let mut bytes = [0; 4_096];
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut bytes)).await.unwrap().unwrap();
            assert!(read > 0, "the stream ended: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
}

#[tokio::test]
async fn rounds_learners_and_series_show_a_merge() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;

    let status = server.status().await;
    assert_eq!((&status["learnersByState"]["training"], &status["learnersTotal"]), (&1.into(), &1.into()));
    for gone in ["evaluations", "rounds_recent"] {
        assert!(status.get(gone).is_none(), "{gone} grows with the run");
    }

    let rounds = json(&server, "/v1/rounds").await;
    let round = rounds["rounds"].as_array().unwrap().iter().find(|round| !round["merged"].is_null()).unwrap();
    assert_eq!((&round["invited"], &round["answered"]), (&1.into(), &1.into()));
    let (answer, merged) = (&round["answers"][0], &round["merged"]);
    assert_eq!((&answer["learner"], &answer["fate"]), (&1.into(), &"merged".into()));
    assert_eq!(answer["tokens"], learner.step_tokens());
    assert_eq!((&answer["afterMs"], &round["quorumMs"]), (&merged["collectMs"], &merged["collectMs"]));
    assert_eq!(round["decision"]["why"], "allAnswered");
    let times = ["launchedMs", "mergeStartMs", "mergeEndMs"].map(|name| round[name].as_u64().unwrap());
    assert!(times[1] <= times[2] && times[0] + times[2] <= rounds["nowMs"].as_u64().unwrap(), "{round}");

    let page = json(&server, "/v1/learners?sort=speed&limit=1").await;
    assert_eq!((&page["total"], &page["sort"]), (&1.into(), &"speed".into()));
    let shown = &page["learners"][0];
    assert_eq!((&shown["name"], &shown["fates"]["merged"]), (&"learner 1".into(), &1.into()));
    assert_eq!((&shown["mergedShare"], &shown["state"]), (&1.0.into(), &"training".into()));
    assert!(shown["connectedS"].is_f64());
    assert_eq!(json(&server, "/v1/learners?offset=1").await["learners"], Value::Array(vec![]));
    for query in ["limit=0", "limit=-1", "limit=x", "offset=-1", "sort=age", "limits=3"] {
        let (code, _, why) = server.http(&format!("GET /v1/learners?{query}")).await;
        assert_eq!(code, 400, "{query}");
        assert!(String::from_utf8(why).unwrap().contains("sort=merged, speed, name or state"), "{query}");
    }

    let series = json(&server, "/v1/series").await;
    assert_eq!(series["spanS"], 1);
    assert!(!series["timeS"].as_array().unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn events_are_few_and_raw_ones_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut plain = Watch::open(&server, "/v1/events").await;
    plain.until("status", 1).await;
    for header in ["x-accel-buffering: no\r\n", "cache-control: no-cache, no-transform\r\n"] {
        assert!(plain.text.contains(header), "a proxy would keep events back: {}", plain.text);
    }
    let mut raw = Watch::open(&server, "/v1/events?raw=1").await;
    raw.until("status", 1).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    plain.until("point", 1).await;
    plain.until("rounds", 1).await;
    plain.until("status", 2).await;
    raw.until("rounds", 1).await;
    raw.until("run", 4).await;
    assert!(!plain.text.contains("event: run\n"), "{}", plain.text);
    for event in ["joined", "launched", "answered", "settled"] {
        assert!(raw.text.contains(&format!(r#"data: {{"event":"{event}""#)), "{event}: {}", raw.text);
    }
    assert_eq!(server.http("GET /v1/events?raw=yes").await.0, 400);
    server.stop().await;
}

#[tokio::test]
async fn streams_at_once_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut watches = Vec::new();
    for _ in 0..syncer_server::WATCHERS_MAX - 8 {
        let mut watch = Watch::open(&server, "/v1/events").await;
        watch.until("status", 1).await;
        watches.push(watch);
    }
    let (code, _, why) = server.http("GET /v1/events").await;
    assert_eq!((code, why), (503, b"too many pages watch this run: try again later\n".to_vec()));
    // A proxy on this machine may forward strangers without their addresses, so some streams are reserved for requests
    // with the owner's token.
    let owner = "/v1/events\nAuthorization: Bearer secret-of-the-owner";
    let mut owners = Vec::new();
    for _ in 0..8 {
        let mut watch = Watch::open(&server, owner).await;
        watch.until("status", 1).await;
        owners.push(watch);
    }
    assert_eq!(server.http(&format!("GET {owner}")).await.0, 503);
    // Closed streams become available.
    drop((watches, owners));
    wait_for_free_stream(&server).await;
    server.stop().await;
}

/// Goal: some event streams are reserved for the owner, even if strangers hold all others, also behind a proxy next to
/// the syncer. Rejected strangers learn when to retry.
#[tokio::test]
async fn strangers_leave_streams_for_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let far = "\nX-Forwarded-For: 192.0.2.1";
    let mut watches = Vec::new();
    for _ in 0..syncer_server::WATCHERS_MAX - 16 {
        let mut watch = Watch::open(&server, &format!("/v1/events{far}")).await;
        watch.until("status", 1).await;
        watches.push(watch);
    }
    let (code, head, _) = server.http(&format!("GET /v1/events{far}")).await;
    assert_eq!(code, 503);
    assert!(head.contains("retry-after: 10"), "{head}");
    let shown = format!("{far}\nAuthorization: Bearer secret-of-the-owner");
    Watch::open(&server, &format!("/v1/events{shown}")).await.until("status", 1).await;
    Watch::open(&server, "/v1/events").await.until("status", 1).await;
    server.stop().await;
}

/// Waits until a stream is available again.
async fn wait_for_free_stream(server: &Server) {
    let freed = async {
        loop {
            let mut watch = Watch::open(server, "/v1/events").await;
            let mut bytes = [0; 12];
            watch.stream.read_exact(&mut bytes).await.unwrap();
            if bytes.ends_with(b"200") {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.unwrap();
}

#[tokio::test]
async fn the_history_of_a_run_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut watch = Watch::open(&server, "/v1/events").await;
    watch.until("point", 2).await;
    let last = server.stop().await;
    let server = Server::start(config(dir.path())).await;
    let (series, status) = (json(&server, "/v1/series").await, server.status().await);
    let times: Vec<f64> = series["timeS"].as_array().unwrap().iter().map(|at| at.as_f64().unwrap()).collect();
    assert!(times.len() >= 3 && times.is_sorted(), "{times:?}");
    assert!(status["runS"].as_f64().unwrap() >= last.run_s, "{status}");
    server.stop().await;
}

/// Goal: the stream continues after the end of the run, so that open pages do not report a lost connection.
#[tokio::test]
async fn all_watchers_see_the_end_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut watches = Vec::new();
    for _ in 0..8 {
        let mut watch = Watch::open(&server, "/v1/events").await;
        watch.until("status", 1).await;
        watches.push(watch);
    }
    assert_eq!(server.http("POST /v1/admin/finish\nAuthorization: Bearer secret-of-the-owner").await.0, 202);
    for watch in &mut watches {
        while !watch.text.contains(r#""finished":true"#) {
            let heard = watch.text.matches("event: status\n").count();
            assert!(heard < 100, "{}", watch.text);
            watch.until("status", heard + 1).await;
        }
    }
    // A server that stops ends the stream.
    server.stop().await;
    for mut watch in watches {
        let mut rest = String::new();
        tokio::time::timeout(PATIENCE, watch.stream.read_to_string(&mut rest)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_owner_may_hide_names_and_devices() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path()).with(|it| it.agreed.hide_names = true)).await;
    let mut watch = Watch::open(&server, "/v1/events?raw=1").await;
    watch.until("status", 1).await;
    let _learner = ScriptedLearner::join(&server, 7).await;
    watch.until("status", 3).await;
    assert!(watch.text.contains("islet 1") && !watch.text.contains("learner 7"), "{}", watch.text);
    let status = server.status().await;
    assert_eq!(status["namesHidden"], true);
    assert_eq!(status["learners"][0]["name"], "islet 1");
    for path in ["/v1/status", "/v1/learners?sort=name", "/v1/rounds", "/metrics"] {
        let (code, _, body) = server.http(&format!("GET {path}")).await;
        let text = String::from_utf8(body).unwrap();
        assert!(code == 200 && !text.contains("learner 7") && !text.contains("\"test\""), "{path}: {text}");
    }
    server.stop().await;
}

/// Maximum number of copies of the run's folder that are started until one contains the first loss and the traffic.
const TRIES: u32 = 40;

async fn measurements(server: &Server) -> Vec<Value> {
    json(server, "/v1/series").await["evaluations"].as_array().unwrap().clone()
}

/// Goal: a run that crashes before its first snapshot keeps its history. Its first loss is still the one from before
/// training, with its original time. The clock, the loss curve and the traffic continue.
#[tokio::test]
async fn a_crash_before_the_first_snapshot_keeps_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let measured = |dir: &std::path::Path| ServeConfig {
        no_eval: false,
        eval_every: "10ms".parse().unwrap(),
        ..config(dir)
    };
    let server = Server::start(measured(dir.path())).await;
    let first = async {
        loop {
            if let Some(first) = measurements(&server).await.first() {
                return first.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let first = tokio::time::timeout(PATIENCE, first).await.unwrap();
    assert_eq!(first["tokensMerged"], 0);
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    let mut again = None;
    for _ in 0..TRIES {
        let crashed = tempfile::tempdir().unwrap();
        copy(dir.path(), crashed.path());
        let server = Server::start(measured(crashed.path())).await;
        let (status, losses) = (server.status().await, measurements(&server).await);
        server.stop().await;
        if status["bytesUp"] != 0 && losses.first() == Some(&first) {
            again = Some((status, losses));
            break;
        }
    }
    let (status, losses) = again.expect("the history is in the copy");
    assert!((status["valLossFirst"].as_f64().unwrap() - first["loss"].as_f64().unwrap()).abs() < 1e-6);
    let times: Vec<f64> = losses.iter().map(|loss| loss["timeS"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "the run's clock goes back: {times:?}");
    assert!(status["runS"].as_f64().unwrap() >= times[0]);
    server.stop().await;
}
