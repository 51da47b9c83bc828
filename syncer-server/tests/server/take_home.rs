//! Tests of exported models and adapters, as a folder and as one file.

use std::fs;
use std::io::{Cursor, Read};
use std::path::Path;

use archipelago_core::data::ShardTokens;
use archipelago_core::diloco::{Fragments, Layout};
use archipelago_core::model::{self, FrozenForm, ModelSpec};
use archipelago_core::wire::{Frozen, Hello, Welcome};
use safetensors::SafeTensors;
use serde_json::Value;
use syncer_server::{
    ForkArgs, Form, Reports, ServeConfig, ServerError, Store, backup, export, fork, replayed, report,
    validate,
};
use tokenizers::Tokenizer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zip::ZipArchive;

use crate::durability::args;
use crate::init::{from_folder, goes_on};
use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, header, hello};

#[tokio::test]
async fn an_exported_folder_has_the_whole_model() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("model");
    assert!(matches!(export(dir.path(), &out, Form::default(), false), Err(ServerError::NoRun { .. })));

    let server = Server::start(config(dir.path())).await;
    let run = server.status().await["run"].as_str().unwrap().to_owned();
    // A snapshot exists before the first learner, and can be exported while the server runs.
    let exported = export(dir.path(), &out, Form::default(), false).unwrap();
    assert_eq!(exported.run, run);
    server.stop().await;

    let manifest = Store::open_read_only(dir.path()).manifest().unwrap().unwrap();
    let snapshot = Store::open_read_only(dir.path()).latest(manifest.run).unwrap().unwrap();
    let spec = &manifest.spec;
    let layout = Layout::of(&spec.model).unwrap();
    let fragments = Fragments::plan(&layout, spec.exchange.fragments.try_into().unwrap());
    let mut theta = vec![0.0; layout.len()];
    for (p, state) in fragments.ids().zip(&snapshot.states) {
        fragments.scatter(p, &state.theta, &mut theta);
    }

    let bytes = fs::read(out.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), layout.tensors().len());
    for (start, tensor) in layout.offsets() {
        let values = &theta[start as usize..][..tensor.len() as usize];
        let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let found = tensors.tensor(&tensor.name).unwrap();
        assert_eq!(found.data(), expected, "{}", tensor.name);
        let vector = tensor.name.ends_with("norm.weight");
        assert_eq!(found.shape().len(), if vector { 1 } else { 2 }, "{}", tensor.name);
    }

    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["hidden_size"], ModelSpec::of(&spec.model).unwrap().d_model);
    let tokenizer = Tokenizer::from_file(out.join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true) as u32, spec.model.vocab);
}

#[tokio::test]
async fn an_archive_holds_the_same_files() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(config(dir.path())).await;
    let run = server.status().await["run"].as_str().unwrap().to_owned();
    let (code, head, body) = server.http("GET /v1/export.zip").await;
    assert_eq!((code, header(&head, "content-type")), (200, "application/zip"));
    assert_eq!(header(&head, "content-length"), body.len().to_string());
    let name = format!("archipelago-{run}-0");
    assert_eq!(header(&head, "content-disposition"), format!("attachment; filename=\"{name}.zip\""));
    server.stop().await;

    export(dir.path(), out.path(), Form::default(), false).unwrap();
    let mut archive = ZipArchive::new(Cursor::new(body)).unwrap();
    let mut count = 0;
    for entry in fs::read_dir(out.path()).unwrap() {
        let path = entry.unwrap().path();
        let inside = format!("{name}/{}", path.file_name().unwrap().to_str().unwrap());
        let mut bytes = Vec::new();
        archive.by_name(&inside).unwrap().read_to_end(&mut bytes).unwrap();
        // The model card differs, since it contains the name of its folder.
        if !inside.ends_with("README.md") {
            assert!(bytes == fs::read(&path).unwrap(), "{inside}");
        }
        if inside.ends_with(".safetensors") {
            assert!(SafeTensors::deserialize(&bytes).unwrap().len() > 1);
        }
        count += 1;
    }
    assert_eq!((archive.len(), count), (6, 6));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// Goal: exports of a run do not identify its learners: no name, no device, no key.
#[tokio::test]
async fn exports_do_not_identify_learners() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(config(dir.path())).await;
    let client = Client::connect(&server).await;
    let (name, device) = ("somebody-private".to_owned(), "a-rare-machine".to_owned());
    let greeting = Hello { name: name.clone(), device: device.clone(), ..hello(7) };
    let identity = greeting.identity;
    let (client, welcome) = client.introduced_as(greeting).await;
    ScriptedLearner::of(client, welcome).await.merge().await;
    let (code, _, archive) = server.http("GET /v1/export.zip").await;
    assert_eq!(code, 200);
    server.stop().await;
    export(dir.path(), out.path(), Form::default(), false).unwrap();

    let mut files = vec![archive];
    for entry in fs::read_dir(out.path()).unwrap() {
        files.push(fs::read(entry.unwrap().path()).unwrap());
    }
    let hex: String = identity.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let fingerprint = identity.fingerprint().to_string();
    let secrets = [name.as_bytes(), device.as_bytes(), hex.as_bytes(), fingerprint.as_bytes(), &identity.0];
    for secret in secrets {
        let found = files.iter().any(|file| file.windows(secret.len()).any(|bytes| bytes == secret));
        assert!(!found, "{:?} is in an export", String::from_utf8_lossy(secret));
    }
    let model = fs::read(out.path().join("model.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&model).unwrap();
    let said: Vec<_> = header.metadata().iter().flatten().collect();
    assert_eq!(said, [(&"format".to_owned(), &"pt".to_owned())]);
}

/// Returns the number of temporary files and folders in `dir`.
fn temporary(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".archipelago-tmp-")).count()
}

/// Goal: for any number of requests, one archive is made at a time. Requests that hang up leave nothing behind. Waiting
/// requests share the archive, and no request waits for a slow reader.
#[tokio::test]
async fn concurrent_exports_share_one_archive() {
    let dir = tempfile::tempdir().unwrap();
    // More bytes than the sockets' buffers hold.
    let config = config(dir.path()).with(|it| {
        it.identity.preset = "medium".into();
        it.identity.corpus_bytes = "1MB".parse().unwrap();
    });
    let server = Server::start(config).await;
    let ask = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /v1/export.zip HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        stream
    };
    for _ in 0..100 {
        drop(ask().await);
        assert!(temporary(dir.path()) <= 1, "several archives are made at once");
    }
    let mut slow = ask().await;
    let mut answer = [0; 12];
    tokio::time::timeout(PATIENCE, slow.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let all = futures::future::join_all((0..4).map(|_| server.http("GET /v1/export.zip"))).await;
    let bodies: Vec<_> = all.iter().map(|(code, _, body)| (*code, body)).collect();
    assert!(bodies.iter().all(|body| *body == (200, bodies[0].1) && body.1.len() > 1 << 20));
    drop(slow);
    server.stop().await;
    assert_eq!(temporary(dir.path()), 0);
}

#[tokio::test]
async fn report_and_history_are_public_and_hide_names_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let hidden = config(dir.path()).with(|it| {
        it.agreed.hide_names = true;
        it.invite = Some("open-sesame".into());
    });
    for (config, shown, not_shown) in
        [(config(dir.path()), "learner 1", "islet 1"), (hidden, "islet 1", "learner 1")]
    {
        let is_open = config.invite.is_none();
        let server = Server::start(config).await;
        if is_open {
            ScriptedLearner::join(&server, 1).await.merge().await;
        }
        let run = server.status().await["run"].as_str().unwrap().to_owned();
        let (code, head, body) = server.http(&format!("GET /v1/runs/{run}/report.html")).await;
        assert_eq!((code, header(&head, "content-type")), (200, "text/html; charset=utf-8"));
        assert!(header(&head, "content-security-policy").contains("sandbox"));
        let name = format!("attachment; filename=\"archipelago-{run}-report.html\"");
        assert_eq!(header(&head, "content-disposition"), name);
        let page = String::from_utf8(body).unwrap();
        assert!(page.contains(shown) && !page.contains(not_shown), "{page}");
        assert!(page.contains("built-in grammar"), "{page}");
        let (code, _, body) = server.http(&format!("GET /v1/runs/{run}/history.jsonl")).await;
        assert_eq!(code, 200);
        for line in String::from_utf8(body).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["timeS"].is_number() && line["tokensMerged"].is_number(), "{line}");
        }
        assert_eq!(server.http("GET /v1/runs/0000000000000000/report.html").await.0, 404);
        server.stop().await;
    }

    // The folder gives the same.
    let (out, events) = (dir.path().join("model"), dir.path().join("events"));
    export(dir.path(), &out, Form::default(), false).unwrap();
    let reports = Reports { out: &out, tensorboard: Some(&events), hides_names: false };
    report(dir.path(), reports).unwrap();
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("learner 1") && page.contains("built-in grammar"), "{page}");
    assert!(out.join("history.jsonl").exists());
    assert_eq!(fs::read_dir(&events).unwrap().count(), 1);
}

#[tokio::test]
async fn an_export_does_not_overwrite_foreign_files() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Server::start(config(dir.path())).await.stop().await;
    let to = |name: &str| out.path().join(name);
    let written = |name: &str, overwrite| export(dir.path(), &to(name), Form::default(), overwrite);
    // An export may replace its own files, but files of others with the same names only if `overwrite` is true.
    written("own", false).unwrap();
    written("own", false).unwrap();
    for (name, file) in [("notes", "notes.txt"), ("model", "config.json"), ("card", "README.md")] {
        fs::create_dir(to(name)).unwrap();
        fs::write(to(name).join(file), "mine").unwrap();
        let error = written(name, false).unwrap_err();
        assert_eq!(error.exit_code(), 12, "{error}");
        assert!(
            error.to_string().contains(&format!("holds {file}, which no export of this run wrote")),
            "{error}"
        );
        assert_eq!(fs::read_dir(to(name)).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(to(name).join(file)).unwrap(), "mine");
    }
    written("notes", true).unwrap();
    assert_eq!(fs::read_to_string(to("notes/notes.txt")).unwrap(), "mine");

    let error = backup(dir.path(), &dir.path().join("copies/a")).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("inside the run's own folder"), "{error}");
    assert!(!dir.path().join("copies").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn run_files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("runs/a");
    Server::start(config(&dir)).await.stop().await;
    let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    for name in ["run.json", "tokenizer.json", "held-out.json"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
}

#[tokio::test]
async fn fragments_are_the_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let run = welcome.run;
    let layout = Layout::of(&welcome.spec.model).unwrap();
    let fragments = Fragments::plan(&layout, welcome.spec.exchange.fragments.try_into().unwrap());
    let theta = model::init(&ModelSpec::of(&welcome.spec.model).unwrap(), welcome.spec.seed).unwrap();
    for p in fragments.ids() {
        let (code, head, body) = server.http(&format!("GET /v1/runs/{run}/fragments/{p}/0")).await;
        assert_eq!((code, header(&head, "x-archipelago-version")), (200, "0"));
        assert!(header(&head, "cache-control").contains("immutable"));
        let expected = archipelago_core::diloco::binary16::to_bytes(&fragments.gather(p, &theta));
        assert_eq!(body, expected, "fragment {p}");

        let etag = header(&head, "etag");
        let (code, head, part) = server
            .http(&format!("GET /v1/runs/{run}/fragments/{p}/0\nRange: bytes=8-\nIf-Range: {etag}"))
            .await;
        assert_eq!((code, &*part), (206, &expected[8..]));
        assert_eq!(
            header(&head, "content-range"),
            format!("bytes 8-{}/{}", expected.len() - 1, expected.len())
        );
        let again = format!("GET /v1/runs/{run}/fragments/{p}/0\nIf-None-Match: {etag}");
        assert_eq!(server.http(&again).await.0, 304);
    }
    // A download so slow that a merge always happens meanwhile gets the whole current version.
    let (_, _, now) = server.http(&format!("GET /v1/runs/{run}/fragments/0/0")).await;
    let other = format!("GET /v1/runs/{run}/fragments/0/99\nRange: bytes=8-");
    let (code, head, body) = server.http(&other).await;
    assert_eq!((code, header(&head, "x-archipelago-version"), body), (200, "0", now));
    assert_eq!(header(&head, "cache-control"), "no-store");
    assert_eq!(server.http(&format!("GET /v1/runs/{run}/fragments/999/0")).await.0, 404);
    assert_eq!(server.http("GET /v1/runs/0000000000000001/fragments/0/0").await.0, 404);
    assert_eq!(server.http(&format!("GET /v1/runs/{run}/fragments/x/0")).await.0, 400);
    server.stop().await;
}

#[tokio::test]
async fn shards_are_what_the_welcome_says() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let (run, data) = (welcome.run, &welcome.spec.data);
    for (index, spec) in data.shards.iter().enumerate() {
        let path = format!("/v1/runs/{run}/shards/{index}");
        let (code, head, body) = server.http(&format!("GET {path}")).await;
        assert_eq!(code, 200);
        let hex: String = spec.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(header(&head, "etag"), format!("\"{hex}\""));
        let (code, _, rest) = server.http(&format!("GET {path}\nRange: bytes=100-")).await;
        assert_eq!((code, &*rest), (206, &body[100..]));
        // A range of content with another tag is useless, so the response is the whole file.
        let (code, _, whole) = server.http(&format!("GET {path}\nRange: bytes=100-\nIf-Range: \"x\"")).await;
        assert_eq!((code, whole.len()), (200, body.len()));
        let beyond = format!("GET {path}\nRange: bytes={}-", body.len());
        assert_eq!(server.http(&beyond).await.0, 416);
        ShardTokens::parse(body, spec, data.token_bytes, welcome.spec.model.vocab).unwrap();
    }
    assert_eq!(server.http(&format!("GET /v1/runs/{run}/shards/{}", data.shards.len())).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn pages_are_there_and_strict() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    for path in ["/", "/dashboard"] {
        let (code, head, body) = server.http(&format!("GET {path}")).await;
        let text = String::from_utf8(body).unwrap();
        if code == 404 {
            assert!(text.contains("cargo xtask web"), "a syncer without pages says how to get them: {text}");
            continue;
        }
        assert!(header(&head, "content-type").starts_with("text/html"), "{path}");
        let policy = header(&head, "content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("'unsafe"), "{policy}");
        assert!(!text.contains("style=") && !text.contains("onclick"), "{path} has nothing inline");
        let scripts: Vec<_> = text.split('"').filter_map(|part| part.strip_prefix("./assets/")).collect();
        assert!(!scripts.is_empty(), "{path} loads something: {text}");
        for script in scripts {
            let (code, head, plain) = server.http(&format!("GET /assets/{script}")).await;
            assert_eq!(code, 200, "{script}");
            assert!(header(&head, "cache-control").contains("immutable"), "{script}");
            let asked = format!("GET /assets/{script}\nAccept-Encoding: br, gzip");
            let (_, head, packed) = server.http(&asked).await;
            assert_eq!(header(&head, "content-encoding"), "gzip", "{script}");
            assert!(packed.len() < plain.len(), "{script}");
            let again = format!("GET /assets/{script}\nIf-None-Match: {}", header(&head, "etag"));
            assert_eq!(server.http(&again).await.0, 304, "{script}");
        }
    }
    assert_eq!(server.http("GET /assets/no-such-file.js").await.0, 404);
    assert_eq!(server.http("GET /healthz").await.0, 200);
    assert_eq!(server.http("GET /readyz").await.0, 200);
    assert_eq!(server.http("GET /no-such-page").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn pages_of_a_folder_show_once_they_are_there() {
    let (dir, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server =
        Server::start(config(dir.path()).with(|it| it.server.pages = Some(pages.path().to_owned()))).await;
    let (code, head, body) = server.http("GET /").await;
    assert_eq!((code, header(&head, "retry-after")), (503, "2"));
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("http-equiv=\"refresh\"") && text.contains("being built"), "{text}");

    fs::create_dir(pages.path().join("assets")).unwrap();
    fs::write(pages.path().join("index.html"), "<p>a page</p>").unwrap();
    fs::write(pages.path().join("assets/engine-x.wasm"), b"\0asm").unwrap();
    fs::write(pages.path().join("secret"), "not for the network").unwrap();
    let (code, head, body) = server.http("GET /").await;
    assert_eq!((code, &*body), (200, &b"<p>a page</p>"[..]));
    assert!(header(&head, "content-security-policy").contains("default-src 'none'"));
    let again = format!("GET /\nIf-None-Match: {}", header(&head, "etag"));
    assert_eq!(server.http(&again).await.0, 304);
    let (code, head, body) = server.http("GET /assets/engine-x.wasm").await;
    assert_eq!((code, header(&head, "content-type"), &*body), (200, "application/wasm", &b"\0asm"[..]));
    // Compressible files are sent compressed to clients that accept it, as are files built into the program.
    fs::write(pages.path().join("assets/long-x.js"), "let island;\n".repeat(1_000)).unwrap();
    for (file, is_packed, bytes_max) in [("engine-x.wasm", false, 4), ("long-x.js", true, 200)] {
        for _ in 0..2 {
            let asked = format!("GET /assets/{file}\nAccept-Encoding: br, gzip");
            let (code, head, body) = server.http(&asked).await;
            assert_eq!((code, head.contains("content-encoding: gzip")), (200, is_packed), "{file}: {head}");
            assert!(body.len() <= bytes_max, "{file}: {} bytes", body.len());
        }
    }
    assert_eq!(server.http("GET /assets/long-x.js").await.2.len(), 12_000);
    for outside in ["/assets/..%2Fsecret", "/assets/%2E%2E%2Fsecret", "/assets/..", "/secret"] {
        assert_eq!(server.http(&format!("GET {outside}")).await.0, 404, "{outside}");
    }
    server.stop().await;
}

/// `Accept` header of a browser.
pub const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8";

/// The repository's page for wrong links.
pub const MISSING: &str = include_str!("../../../web-demo/pages/missing.html");

/// Goal: for a wrong link, a browser gets a page with links that work, and a program gets a line of text.
#[tokio::test]
async fn wrong_links_lead_on() {
    let (dir, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(pages.path().join("missing.html"), MISSING).unwrap();
    let folder = Some(pages.path().to_owned());
    let server = Server::start(config(dir.path()).with(|it| it.server.pages = folder)).await;
    for (path, home) in [("/nope", "./"), ("/runs", "./"), ("/runs/none/", "../../"), ("/a/b/c", "../../")] {
        let (code, head, body) = server.http(&format!("GET {path}\n{BROWSER}")).await;
        assert_eq!((code, header(&head, "content-type")), (404, "text/html; charset=utf-8"), "{path}");
        assert!(header(&head, "content-security-policy").contains("default-src 'none'"), "{path}");
        let page = String::from_utf8(body).unwrap();
        let button = format!("<a class=\"button primary\" href=\"{home}\">To the run</a>");
        assert!(page.contains("There is no page at this address.") && page.contains(&button), "{page}");
        assert!(!page.contains("\"./\"") || home == "./", "{path}: {page}");
    }
    for plain in ["GET /nope", "GET /nope\nAccept: */*", &format!("GET /v1/nope\n{BROWSER}")] {
        let (code, _, body) = server.http(plain).await;
        assert_eq!((code, &*body), (404, &b"there is nothing here; / shows the run\n"[..]), "{plain}");
    }
    server.stop().await;
}

/// Returns settings with adapters of rank 2 on the folder's model.
fn adapters(dir: &Path) -> ServeConfig {
    of_rank(2, from_folder(dir))
}

fn of_rank(rank: u32, config: ServeConfig) -> ServeConfig {
    let lora = syncer_server::LoraArgs { lora_rank: rank, ..config.lora.clone() };
    ServeConfig { lora, ..config }
}

/// Begins the run of `config`, merges an update and stops. Returns the learner's welcome.
async fn begun(config: ServeConfig) -> Welcome {
    let server = Server::start(config).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    server.stop().await;
    learner.welcome
}

/// Returns the names of the tensors in `file`, and the number of their values.
fn tensors(file: &Path) -> (Vec<String>, usize) {
    let bytes = fs::read(file).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
    names.sort();
    (names, file.tensors().iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>()).sum())
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[tokio::test]
async fn adapters_start_as_the_model_and_export_for_peft_or_merged() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(ServeConfig { no_eval: false, ..adapters(dir.path()) }).await;
    let expected = json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/init/expected.json"));
    let measured = async {
        loop {
            let status = server.status().await;
            if let Some(loss) = status["valLossFirst"].as_f64() {
                return (loss, status);
            }
        }
    };
    let (loss, status) = tokio::time::timeout(PATIENCE, measured).await.unwrap();
    let expected = expected["loss"].as_f64().unwrap();
    assert!((loss - expected).abs() < 1e-3, "{loss} instead of {expected}: adapters change nothing at first");
    let facts = &status["adapters"];
    assert_eq!((&facts["rank"], &facts["targets"]), (&2.into(), &"q,k,v,o,gate,up,down".into()));
    let spec = ScriptedLearner::join(&server, 1).await.welcome.spec;
    server.stop().await;

    let decoder = ModelSpec::of(&spec.model).unwrap();
    let (params, frozen) = (status["params"].as_u64().unwrap(), facts["frozenParams"].as_u64().unwrap());
    assert_eq!(frozen * 2, spec.frozen.unwrap().bytes);
    export(dir.path(), out.path(), Form::default(), false).unwrap();
    let (names, values) = tensors(&out.path().join("adapter_model.safetensors"));
    assert_eq!((names.len(), values as u64), (2 * 7 * 2, params));
    assert_eq!(names[0], "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
    let config = json(&out.path().join("adapter_config.json"));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&2.into(), &4.into()));
    // The path is absolute, so that PEFT finds the model from any working directory. Downloads do not contain it.
    let base = from_folder(dir.path()).initial.init.unwrap().canonicalize().unwrap();
    assert_eq!(config["base_model_name_or_path"], base.to_str().unwrap());
    let named = Form { base: Some("lab/tiny"), ..Form::default() };
    export(dir.path(), out.path(), named, false).unwrap();
    let config = json(&out.path().join("adapter_config.json"));
    assert_eq!(config["base_model_name_or_path"], "lab/tiny");
    assert!(fs::read_to_string(out.path().join("README.md")).unwrap().contains("\nbase_model: lab/tiny\n"));
    let card = fs::read_to_string(out.path().join("README.md")).unwrap();
    assert!(card.contains("library_name: peft") && card.contains("rank 2 on q,k,v,o,gate,up,down"), "{card}");

    // An export of the whole model removes the adapters from the folder, which would be loaded on top of it.
    let merged = Form { merged: true, ..Form::default() };
    assert_eq!(export(dir.path(), out.path(), merged, false).unwrap().params, frozen);
    assert!(!out.path().join("adapter_config.json").exists());
    assert!(!out.path().join("adapter_model.safetensors").exists());
    let (names, values) = tensors(&out.path().join("model.safetensors"));
    assert_eq!((names.len(), values as u64), (20, frozen));
    assert_eq!(json(&out.path().join("config.json"))["hidden_size"], decoder.d_model);
    export(dir.path(), out.path(), Form::default(), false).unwrap();
    assert!(!out.path().join("config.json").exists() && out.path().join("adapter_config.json").exists());

    // A run that begins with the merged model has the same loss.
    export(dir.path(), out.path(), merged, false).unwrap();
    let again = tempfile::tempdir().unwrap();
    let from_merged = from_folder(again.path()).with(|it| it.initial.init = Some(out.path().to_owned()));
    assert_eq!(validate(&from_merged).unwrap().params, frozen);

    let plain = tempfile::tempdir().unwrap();
    begun(from_folder(plain.path())).await;
    let error = export(plain.path(), &out.path().join("plain"), merged, false).unwrap_err();
    assert!(error.to_string().contains("--merged is for runs of adapters"), "{error}");
}

#[tokio::test]
async fn the_weights_are_fetched_in_parts_that_never_change() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(adapters(dir.path())).await;
    let welcome = ScriptedLearner::join(&server, 1).await.welcome;
    let frozen: Frozen = welcome.spec.frozen.unwrap();
    assert_eq!((frozen.form, frozen.parts(), frozen.check()), (FrozenForm::F16, 1, Ok(())));
    let path = format!("GET /v1/runs/{}/frozen", welcome.run);
    let before = server.status().await["joinBytes"].as_u64().unwrap();
    let (code, head, part) = server.http(&format!("{path}/0")).await;
    assert_eq!(code, 200);
    assert!(frozen.is_part(0, &part));
    assert!(header(&head, "cache-control").contains("immutable"), "{head}");
    let tag = header(&head, "etag").to_owned();
    let (code, head, rest) = server.http(&format!("{path}/0\nRange: bytes=100-\nIf-Range: {tag}")).await;
    assert_eq!((code, &rest[..]), (206, &part[100..]), "{head}");
    let (code, _, none) = server.http(&format!("{path}/0\nIf-None-Match: {tag}")).await;
    assert_eq!((code, none.len()), (304, 0));
    assert_eq!(server.http(&format!("{path}/1")).await.0, 404);
    assert_eq!(server.http("GET /v1/runs/00000000000000ff/frozen/0").await.0, 404);
    let fetched = server.status().await["joinBytes"].as_u64().unwrap();
    assert_eq!(fetched - before, (2 * part.len() - 100) as u64, "they count as what it takes to join");
    // Pages cannot generate text with adapters alone, and the request gets an explanation.
    let (code, _, why) = server.http(&format!("GET /v1/runs/{}/model", welcome.run)).await;
    assert_eq!(code, 404);
    assert!(String::from_utf8(why).unwrap().contains("this run trains adapters"));
    server.stop().await;

    // A run that trains all of its weights has no frozen weights.
    let plain = tempfile::tempdir().unwrap();
    let server = Server::start(from_folder(plain.path())).await;
    let welcome = ScriptedLearner::join(&server, 1).await.welcome;
    assert_eq!(welcome.spec.frozen, None);
    assert_eq!(server.http(&format!("GET /v1/runs/{}/frozen/0", welcome.run)).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn an_adapter_run_resumes_without_the_folder_and_names_damage() {
    let dir = tempfile::tempdir().unwrap();
    let before = begun(adapters(dir.path())).await;
    let after = begun(goes_on(dir.path())).await;
    assert_eq!((after.run, &after.spec), (before.run, &before.spec));
    assert!(replayed(&args(dir.path(), None), |_| {}).unwrap().merges > 0);

    // A copy and a fork have the weights, too.
    let place = tempfile::tempdir().unwrap();
    let (copy, forked) = (place.path().join("copy"), place.path().join("fork"));
    backup(dir.path(), &copy).unwrap();
    fork(&ForkArgs { folder: dir.path().to_owned().into(), at: u64::MAX, to: forked.clone(), json: false })
        .unwrap();
    for other in [&copy, &forked] {
        assert_eq!(begun(goes_on(other)).await.spec.frozen, before.spec.frozen);
    }

    let path = Store::open_read_only(dir.path()).frozen_path();
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = Server::refused(goes_on(dir.path())).await;
    assert_eq!(error.exit_code(), 14, "{error}");
    assert!(error.to_string().contains("part 0 does not match its checksum in run.json"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = Server::refused(goes_on(dir.path())).await;
    assert!(error.to_string().contains("frozen.bin") && error.to_string().contains("missing"), "{error}");
    // A start with the same model repairs the file.
    begun(adapters(dir.path())).await;
    assert_eq!(fs::read(&path).unwrap(), whole);
    begun(goes_on(dir.path())).await;
}

#[tokio::test]
async fn unsuitable_adapter_settings_are_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let check = |config: ServeConfig, code: u8, part: &str| {
        let error = validate(&config).unwrap_err();
        assert_eq!(error.exit_code(), code, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    check(of_rank(2, config(dir.path())), 3, "give its folder with --init");
    check(of_rank(300, from_folder(dir.path())), 3, "0 to 256");
    let experts = archipelago_cli::ExpertArgs { experts: 4, ..ServeConfig::default().experts };
    check(ServeConfig { experts, ..adapters(dir.path()) }, 3, "--experts");
    begun(adapters(dir.path())).await;
    // The alpha of that run is twice its rank, as it would be for this one.
    check(of_rank(3, goes_on(dir.path())), 12, "--lora-alpha is 4.0 there, 6.0 here");
    let mut other = of_rank(3, goes_on(dir.path()));
    other.lora.lora_alpha = Some(4.0);
    check(other, 12, "--lora-rank is 2 there, 3 here");
    let int8 = syncer_server::LoraArgs { frozen: FrozenForm::Int8, ..adapters(dir.path()).lora };
    check(ServeConfig { lora: int8, ..adapters(dir.path()) }, 12, "--frozen is \"f16\" there, \"int8\" here");
    // Training all weights of the same model is another run.
    let other = tempfile::tempdir().unwrap();
    begun(from_folder(other.path())).await;
    check(adapters(other.path()), 12, "lora");
}
