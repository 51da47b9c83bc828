//! Tests of a server of several runs: names, orders, tokens, and failed runs.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use archipelago_core::wire::{CloseCode, Message};
use serde_json::{Value, json};
use syncer_server::{
    PlaceArgs, RunsArgs, ServeConfig, ServerError, TableArgs, Verb, host, inspect, order, parse, runs,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::{Client, PATIENCE, hello, http_at};
use crate::take_home::{BROWSER, MISSING};

const SETTINGS: &str = "preset = \"tiny\"\ncorpus-bytes = \"60kB\"\nno-eval = true\n";

struct HostedServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServerError>>,
}

impl HostedServer {
    async fn start(folder: &Path) -> Self {
        Self::start_with(folder, ServeConfig::default()).await
    }

    async fn start_with(folder: &Path, config: ServeConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let config = config.with(|it| {
            it.server.runs = Some(folder.to_owned());
            it.start.admin_token = Some("secret-of-the-owner".into());
        });
        let task = tokio::spawn(host(listener, config, || {}, async { drop(stopped.await) }));
        Self { address, stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the server ends").unwrap().unwrap();
    }

    /// Sends the request line `first` with `token` and `body`. Returns the status code and the text of the response.
    async fn ask(&self, first: &str, token: &str, body: &str) -> (u16, String) {
        let headers = format!("\nAuthorization: Bearer {token}\nContent-Length: {}", body.len());
        let (code, _, body) = http_at(self.address, &format!("{first}{headers}"), body).await;
        (code, String::from_utf8(body).unwrap())
    }

    async fn create(&self, name: &str, settings: &str) -> (u16, String) {
        self.ask(
            "POST /v1/runs",
            "secret-of-the-owner",
            &json!({ "name": name, "settings": settings }).to_string(),
        )
        .await
    }

    async fn list(&self, token: &str) -> Vec<Value> {
        let (code, body) = self.ask("GET /v1/runs", token, "").await;
        assert_eq!(code, 200);
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(list["several"], true);
        list["runs"].as_array().unwrap().clone()
    }

    /// Waits until no run is starting.
    async fn settled(&self) -> Vec<Value> {
        for _ in 0..600 {
            let runs = self.list("").await;
            if runs.iter().all(|run| run["state"] != "starting") {
                return runs;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("a run is opened for a minute");
    }
}

fn states(runs: &[Value]) -> Vec<(&str, &str)> {
    runs.iter().map(|run| (run["name"].as_str().unwrap(), run["state"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn only_the_owner_creates_pauses_archives_and_deletes_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = HostedServer::start(dir.path()).await;
    assert_eq!(server.list("").await, Vec::<Value>::new());
    for (name, settings, part) in [
        ("../x", "", "is not a name of a run"),
        ("", "", "is not a name of a run"),
        ("x", "presett = 1", "unknown key `presett`"),
        ("x", "dir = \"/\"", "the key `dir` does not belong here"),
        ("x", "data = \"/etc/hostname\"", "`data` names a file of the server"),
    ] {
        let (code, words) = server.create(name, settings).await;
        assert!(code == 400 && words.contains(part), "{code} {words}");
    }
    // A run that cannot start leaves nothing behind.
    let (code, words) = server.create("x", "preset = \"huge\"").await;
    assert!(code == 422 && words.contains("\"huge\""), "{code} {words}");
    assert!(server.list("").await.is_empty() && !dir.path().join("x").exists());

    let open = (200, "the run a is open\n".to_owned());
    assert_eq!(server.create("a", &format!("{SETTINGS}invite = \"open-sesame\"")).await, open);
    assert_eq!(server.create("b", SETTINGS).await.0, 200);
    assert_eq!(server.create("a", SETTINGS).await, (409, "there is a run a already\n".to_owned()));
    // Only the owner may see the invite.
    assert_eq!(server.list("").await[0]["link"], Value::Null);
    let link = server.list("secret-of-the-owner").await[0]["link"].as_str().unwrap().to_owned();
    assert_eq!(link, format!("http://{}/runs/a/#invite=open-sesame", server.address));

    for order in ["POST /v1/runs", "DELETE /v1/runs/a", "POST /v1/runs/a/archive", "POST /v1/runs/a/start"] {
        let own = fs::read_to_string(dir.path().join("a/admin.token")).unwrap();
        // Tokens of runs are not valid for orders to the server.
        for token in ["", "wrong", own.trim()] {
            assert_eq!(server.ask(order, token, "").await.0, 401, "{order}");
        }
    }
    // A run's token steers only that run.
    let of_a = fs::read_to_string(dir.path().join("a/admin.token")).unwrap();
    assert_eq!(server.ask("POST /v1/runs/a/admin/pause", of_a.trim(), "").await.0, 202);
    assert_eq!(server.ask("POST /v1/runs/b/admin/pause", of_a.trim(), "").await.0, 401);
    assert_eq!(server.ask("POST /runs/b/v1/admin/pause", of_a.trim(), "").await.0, 401);
    assert_eq!(states(&server.list("").await), [("a", "paused"), ("b", "open")]);
    assert_eq!(server.ask("POST /v1/runs/a/admin/resume", "secret-of-the-owner", "").await.0, 202);

    assert_eq!(server.ask("POST /v1/runs/a/archive", "secret-of-the-owner", "").await.0, 200);
    assert_eq!(states(&server.list("").await), [("a", "archived"), ("b", "open")]);
    assert_eq!(server.ask("GET /v1/runs/a/status", "", "").await.0, 503);
    assert_eq!(server.ask("GET /v1/runs/b/status", "", "").await.0, 200);
    server.stop().await;

    // The run stays archived over a restart.
    let server = HostedServer::start(dir.path()).await;
    assert_eq!(states(&server.settled().await), [("a", "archived"), ("b", "open")]);
    assert_eq!(server.ask("POST /v1/runs/a/start", "secret-of-the-owner", "").await.0, 200);
    assert_eq!(server.ask("POST /v1/runs/a/start", "secret-of-the-owner", "").await.0, 409);
    assert_eq!(
        server.ask("DELETE /v1/runs/a", "secret-of-the-owner", "").await,
        (200, "the run a is deleted\n".into())
    );
    assert_eq!(server.ask("DELETE /v1/runs/a", "secret-of-the-owner", "").await.0, 404);
    assert_eq!(server.ask("GET /v1/runs/a/status", "", "").await.0, 404);
    assert_eq!(states(&server.list("").await), [("b", "open")]);
    assert!(!dir.path().join("a").exists());
    server.stop().await;
}

#[tokio::test]
async fn a_run_is_made_by_flags() {
    let dir = tempfile::tempdir().unwrap();
    let server = HostedServer::start(dir.path()).await;
    let order = |words: &[&str]| {
        let url = format!("http://{}", server.address);
        let line = ["syncer-server", "run"].iter().chain(words);
        let line = line.copied().chain(["--url", &url, "--token", "secret-of-the-owner"]).map(OsString::from);
        let Verb::Run(args) = parse(line).unwrap().verb else { panic!("{words:?}") };
        tokio::task::spawn_blocking(move || order(&args).map_err(|error| error.to_string()))
    };
    let create =
        ["create", "poems", "--preset", "tiny", "--data", "builtin:austen", "--no-eval", "--seed", "7"];
    let here = server.address;
    let links = |name: &str| {
        format!(
            "the run {name} is open: http://{here}/runs/{name}/ (learners join ws://{here}/runs/{name}/v1/ws)"
        )
    };
    assert_eq!(order(&create).await.unwrap(), Ok(links("poems")));
    let kept = fs::read_to_string(dir.path().join("poems/settings.toml")).unwrap();
    for line in ["preset = \"tiny\"", "data = \"builtin:austen\"", "no-eval = true", "seed = 7"] {
        assert!(kept.lines().any(|found| found == line), "{line}: {kept}");
    }
    let of_server = order(&["create", "tales", "--data", "/etc/hostname"]).await.unwrap().unwrap_err();
    assert!(of_server.contains("`data` names a file of the server"), "{of_server}");
    let late = order(&["pause", "poems", "--seed", "8"]).await.unwrap().unwrap_err();
    assert!(late.contains("--seed is for create alone"), "{late}");
    // Both links of a run with an invite contain the invite.
    let invited =
        ["create", "odes", "--preset=tiny", "--corpus-bytes=60kB", "--no-eval", "--invite=open-sesame"];
    let said = order(&invited).await.unwrap().unwrap();
    assert_eq!(said.matches("#invite=open-sesame").count(), 2, "{said}");
    server.stop().await;
}

/// Goal: an owner with access to the folder of the runs can create a run with their own text. A failed attempt leaves
/// nothing behind.
#[tokio::test]
async fn a_run_with_an_own_text_is_created_on_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (runs, elsewhere) = (dir.path().join("runs"), dir.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(&runs).unwrap();
    let text = dir.path().join("poems.txt");
    fs::write(&text, "a line of a poem\n".repeat(9_000)).unwrap();
    let settings = dir.path().join("poems.toml");
    let server = HostedServer::start(&runs).await;
    let create = |name: &str, data: &Path, runs: &Path| {
        fs::write(&settings, format!("preset = \"tiny\"\nno-eval = true\ndata = {data:?}\n")).unwrap();
        let url = format!("http://{}", server.address);
        let line = ["syncer-server", "run", "create", name, "--token", "secret-of-the-owner", "--url", &url];
        let line = line.into_iter().map(OsString::from);
        let more = [("--settings", &*settings), ("--runs", runs)];
        let more = more.into_iter().flat_map(|(flag, path)| [OsString::from(flag), path.into()]);
        let Verb::Run(args) = parse(line.chain(more)).unwrap().verb else { panic!("{name}") };
        tokio::task::spawn_blocking(move || order(&args).map_err(|error| error.to_string()))
    };
    let said = create("poems", &text, &runs).await.unwrap().unwrap();
    assert!(said.starts_with("the run poems is open: http://"), "{said}");
    let again = create("poems", &text, &runs).await.unwrap().unwrap_err();
    assert!(again.contains("there is a run poems already"), "{again}");
    let missing = create("odes", &dir.path().join("none.txt"), &runs).await.unwrap().unwrap_err();
    assert!(missing.contains("cannot read data") && missing.contains("none.txt"), "{missing}");
    let wrong = create("odes", &text, &elsewhere).await.unwrap().unwrap_err();
    assert!(wrong.contains("does not have its runs in") && wrong.contains("give --runs"), "{wrong}");
    assert!(!runs.join("odes").exists() && !elsewhere.join("odes").exists());
    assert_eq!(states(&server.list("").await), [("poems", "open")]);
    server.stop().await;
}

#[tokio::test]
async fn a_run_that_cannot_be_opened_does_not_affect_others() {
    let dir = tempfile::tempdir().unwrap();
    for (name, settings) in
        [("good", SETTINGS), ("bad", "preset = \"tiny\"\ndata = \"nowhere\""), ("Odd", "")]
    {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("settings.toml"), settings).unwrap();
    }
    // Remains of a run that was being removed during a crash.
    fs::create_dir_all(dir.path().join(".removed-old/bodies")).unwrap();
    let server = HostedServer::start(dir.path()).await;
    let runs = server.settled().await;
    assert_eq!(states(&runs), [("bad", "failed"), ("good", "open")]);
    assert!(runs[0]["why"].as_str().unwrap().contains("cannot read data nowhere"), "{}", runs[0]);
    assert!(!dir.path().join(".removed-old").exists() && dir.path().join("Odd").exists());
    let (code, words) = server.ask("GET /readyz", "", "").await;
    assert_eq!((code, &*words), (503, "the run bad is failed\n"));
    assert_eq!(server.ask("GET /v1/runs/bad/status", "", "").await.0, 503);
    assert_eq!(server.ask("GET /v1/runs/good/status", "", "").await.0, 200);

    fs::write(dir.path().join("bad/settings.toml"), SETTINGS).unwrap();
    assert_eq!(server.ask("POST /v1/runs/bad/start", "secret-of-the-owner", "").await.0, 200);
    assert_eq!(server.ask("GET /readyz", "", "").await, (200, "ready\n".into()));
    // A run whose folder appeared later can be started, too.
    fs::create_dir(dir.path().join("later")).unwrap();
    assert_eq!(server.ask("POST /v1/runs/later/start", "secret-of-the-owner", "").await.0, 404);
    fs::write(dir.path().join("later/settings.toml"), SETTINGS).unwrap();
    assert_eq!(server.ask("POST /v1/runs/later/start", "secret-of-the-owner", "").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_request_without_a_run_lists_the_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = HostedServer::start(dir.path()).await;
    let none = server.ask("GET /v1/status", "", "").await;
    assert_eq!((none.0, none.1.contains("has no run yet")), (404, true), "{}", none.1);
    for name in ["poems", "tales"] {
        assert_eq!(server.create(name, SETTINGS).await.0, 200);
    }
    for path in ["/v1/status", "/v1/ws", "/v1/learners", "/dashboard"] {
        let (code, words) = server.ask(&format!("GET {path}"), "", "").await;
        let expected = "this server has several runs (poems, tales): add the path of one to its address, such as \
                        /runs/poems";
        assert_eq!((code, words.trim()), (404, expected), "{path}");
    }
    let url = format!("http://{}", server.address);
    let ask = |url: String| {
        let args = TableArgs { place: PlaceArgs { url, ca: None, dir: None }, json: false, csv: false };
        tokio::task::spawn_blocking(move || inspect::status(&args))
    };
    let error = ask(url.clone()).await.unwrap().unwrap_err().to_string();
    assert!(
        error.contains("serves several runs (poems, tales)") && error.contains("/runs/poems/"),
        "{error}"
    );
    assert!(!error.contains("no syncer answers"), "{error}");
    assert!(ask(format!("{url}/runs/poems/")).await.unwrap().unwrap().contains("waiting for learners"));

    let args = RunsArgs { url, ca: None, json: false, csv: true };
    let listed = tokio::task::spawn_blocking(move || runs(&args)).await.unwrap().unwrap();
    let mut lines = listed.lines();
    assert!(lines.next().unwrap().starts_with("name,state,model,"), "{listed}");
    let rows: Vec<&str> = lines.collect();
    assert!(rows.len() == 2 && rows[0].starts_with("poems,open,tiny,0,0,"), "{listed}");

    // The metrics of the server cover all runs, each with its label.
    let (code, metrics) = server.ask("GET /metrics", "", "").await;
    assert_eq!(code, 200);
    for name in ["poems", "tales"] {
        assert!(metrics.contains(&format!("\narchipelago_learners_live{{run=\"{name}\"}} 0\n")), "{metrics}");
    }
    assert_eq!(metrics.matches("# TYPE archipelago_learners_live gauge\n").count(), 1, "{metrics}");
    server.stop().await;
}

/// Opens a long-lived response. Returns the connection and the status code.
async fn open(address: SocketAddr, path: &str, headers: &str) -> (TcpStream, u16) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().unwrap();
    let code = String::from_utf8_lossy(&head[9..]).parse().unwrap();
    (stream, code)
}

/// Goal: if all connections of one run are taken, learners and pages still reach another run.
#[tokio::test]
async fn no_run_takes_the_connections_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServeConfig::default().with(|it| it.server.connections_max = 32);
    let server = HostedServer::start_with(dir.path(), config).await;
    for name in ["a", "b"] {
        assert_eq!(server.create(name, SETTINGS).await.0, 200);
    }
    let join = async |run: &str, number: u8| {
        let url = format!("ws://{}/runs/{run}/v1/ws", server.address);
        let mut client = Client::connect_by(url.into_client_request().unwrap(), None).await;
        client.send(&Message::Hello(hello(number))).await;
        match client.next().await {
            Message::Welcome(_) => Some(client),
            Message::Bye(bye) => {
                assert_eq!((bye.code, bye.wait_ms), (CloseCode::Full, 10_000), "{}", bye.reason);
                None
            }
            other => panic!("{other:?}"),
        }
    };
    let (mut streams, mut learners) = (Vec::new(), Vec::new());
    for number in 0..20 {
        match open(server.address, "/runs/a/v1/events", "").await {
            (stream, 200) => streams.push(stream),
            (_, code) => assert_eq!(code, 503),
        }
        learners.extend(join("a", number).await);
    }
    let held = streams.len() + learners.len();
    assert_eq!(held, 21, "7 are kept for the other run, and 4 for whoever comes and goes");
    for number in 0..7 {
        learners.push(join("b", number).await.unwrap_or_else(|| panic!("after {number}")));
    }
    assert_eq!(server.ask("GET /runs/b/v1/status", "", "").await.0, 200);
    assert_eq!(open(server.address, "/runs/b/v1/events", "").await.1, 503, "all are taken");
    assert!(join("b", 7).await.is_none(), "all are taken");
    drop((streams, learners));
    server.stop().await;
}

/// Goal: an order about a run that is being opened does not wait until the run is open.
#[tokio::test]
async fn a_run_that_is_being_opened_can_be_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = HostedServer::start(dir.path()).await;
    let settings = "preset = \"medium\"\ncorpus-bytes = \"1MB\"\nno-eval = true\n";
    let body = json!({ "name": "large", "settings": settings }).to_string();
    let headers = format!("\nAuthorization: Bearer secret-of-the-owner\nContent-Length: {}", body.len());
    let address = server.address;
    let made =
        tokio::spawn(async move { http_at(address, &format!("POST /v1/runs{headers}"), &body).await.0 });
    for _ in 0..600 {
        if !server.list("").await.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let (code, said) = server.ask("DELETE /v1/runs/large", "secret-of-the-owner", "").await;
    // 200 if the order removed the run, and 404 if the cancelled creation had removed it first.
    assert!([200, 404].contains(&code), "{code} {said}");
    let made = made.await.unwrap();
    assert!([200, 404, 422].contains(&made), "{made}");
    assert_eq!(server.list("").await, Vec::<Value>::new());
    assert!(!dir.path().join("large").exists(), "nothing is left of it");
    server.stop().await;
}

/// Goal: a link to a missing or archived run leads a browser to the list of runs.
#[tokio::test]
async fn wrong_links_lead_to_the_runs() {
    let (dir, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(pages.path().join("missing.html"), MISSING).unwrap();
    let config = ServeConfig::default().with(|it| it.server.pages = Some(pages.path().to_owned()));
    let server = HostedServer::start_with(dir.path(), config).await;
    assert_eq!(server.create("poems", SETTINGS).await.0, 200);
    let away = server.ask("POST /v1/runs/poems/archive", "secret-of-the-owner", "").await;
    assert_eq!(away.0, 200, "{}", away.1);
    for (path, expected, home, said) in [
        ("/nope", 404, "./", "There is no page at this address."),
        ("/runs/none", 404, "../", "There is no such run here."),
        ("/runs/none/", 404, "../../", "There is no such run here."),
        ("/runs/none/dashboard", 404, "../../", "There is no such run here."),
        ("/runs/poems/", 503, "../../", "The run poems is archived."),
    ] {
        let (code, _, body) = http_at(server.address, &format!("GET {path}\n{BROWSER}"), "").await;
        let page = String::from_utf8(body).unwrap();
        let button = format!("<a class=\"button primary\" href=\"{home}\">To the runs</a>");
        assert!(code == expected && page.contains(said) && page.contains(&button), "{path}: {code} {page}");
        let (code, words) = server.ask(&format!("GET {path}"), "", "").await;
        assert!(code == expected && !words.contains('<'), "{path}: {code} {words}");
    }
    server.stop().await;
}
