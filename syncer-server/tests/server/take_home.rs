//! Tests of the exported model, as a folder and as one file.

use std::io::{Cursor, Read};
use std::path::Path;

use archipelago_core::diloco::{Fragments, Layout};
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::Hello;
use safetensors::SafeTensors;
use syncer_server::{Form, Reports, ServeConfig, ServerError, Store, backup, export, report};
use tokenizers::Tokenizer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zip::ZipArchive;

use crate::support::{Client, Learner, PATIENCE, Server, config, header, hello};

#[tokio::test]
async fn a_folder_holds_the_model_whole() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("model");
    assert!(matches!(export(dir.path(), &out, Form::default(), false), Err(ServerError::NoRun { .. })));

    let server = Server::start(config(dir.path())).await;
    let run = server.status().await["run"].as_str().unwrap().to_owned();
    // A snapshot exists before the first learner, and can be exported while the server runs.
    let exported = export(dir.path(), &out, Form::default(), false).unwrap();
    assert_eq!(exported.run, run);
    server.stop().await;

    let manifest = Store::look(dir.path()).manifest().unwrap().unwrap();
    let snapshot = Store::look(dir.path()).latest(manifest.run).unwrap().unwrap();
    let spec = &manifest.spec;
    let layout = Layout::of(&spec.model).unwrap();
    let fragments = Fragments::plan(&layout, spec.exchange.fragments.try_into().unwrap());
    let mut theta = vec![0.0; layout.len()];
    for (p, state) in fragments.ids().zip(&snapshot.states) {
        fragments.scatter(p, &state.theta, &mut theta);
    }

    let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
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

    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
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
    for entry in std::fs::read_dir(out.path()).unwrap() {
        let path = entry.unwrap().path();
        let inside = format!("{name}/{}", path.file_name().unwrap().to_str().unwrap());
        let mut bytes = Vec::new();
        archive.by_name(&inside).unwrap().read_to_end(&mut bytes).unwrap();
        // The model card differs, since it contains the name of its folder.
        if !inside.ends_with("README.md") {
            assert!(bytes == std::fs::read(&path).unwrap(), "{inside}");
        }
        if inside.ends_with(".safetensors") {
            assert!(SafeTensors::deserialize(&bytes).unwrap().len() > 1);
        }
        count += 1;
    }
    assert_eq!((archive.len(), count), (6, 6));
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// Goal: exports of a run do not identify its learners: no name, no device, no key.
#[tokio::test]
async fn a_model_names_nobody_who_trained_it() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(config(dir.path())).await;
    let client = Client::connect(&server).await;
    let (name, device) = ("somebody-private".to_owned(), "a-rare-machine".to_owned());
    let greeting = Hello { name: name.clone(), device: device.clone(), ..hello(7) };
    let identity = greeting.identity;
    let (client, welcome) = client.introduced_as(greeting).await;
    Learner::of(client, welcome).await.merge().await;
    let (code, _, archive) = server.http("GET /v1/export.zip").await;
    assert_eq!(code, 200);
    server.stop().await;
    export(dir.path(), out.path(), Form::default(), false).unwrap();

    let mut files = vec![archive];
    for entry in std::fs::read_dir(out.path()).unwrap() {
        files.push(std::fs::read(entry.unwrap().path()).unwrap());
    }
    let hex: String = identity.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let fingerprint = identity.fingerprint().to_string();
    let secrets = [name.as_bytes(), device.as_bytes(), hex.as_bytes(), fingerprint.as_bytes(), &identity.0];
    for secret in secrets {
        let found = files.iter().any(|file| file.windows(secret.len()).any(|bytes| bytes == secret));
        assert!(!found, "{:?} is in an export", String::from_utf8_lossy(secret));
    }
    let model = std::fs::read(out.path().join("model.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&model).unwrap();
    let said: Vec<_> = header.metadata().iter().flatten().collect();
    assert_eq!(said, [(&"format".to_owned(), &"pt".to_owned())]);
}

/// Returns the number of temporary files and folders in `dir`.
fn temporary(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".archipelago-tmp-")).count()
}

/// Goal: for any number of requests, one archive is made at a time. Requests that hang up leave nothing behind. Waiting
/// requests share the archive, and no request waits for a slow reader.
#[tokio::test]
async fn one_archive_is_made_for_all_and_none_for_those_who_hung_up() {
    let dir = tempfile::tempdir().unwrap();
    // More bytes than the sockets' buffers hold.
    let config =
        ServeConfig { preset: "medium".into(), corpus_bytes: "1MB".parse().unwrap(), ..config(dir.path()) };
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
async fn a_report_and_its_curves_are_for_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let hidden = ServeConfig { hide_names: true, invite: Some("open-sesame".into()), ..config(dir.path()) };
    for (config, shown, not_shown) in
        [(config(dir.path()), "learner 1", "islet 1"), (hidden, "islet 1", "learner 1")]
    {
        let is_open = config.invite.is_none();
        let server = Server::start(config).await;
        if is_open {
            Learner::join(&server, 1).await.merge().await;
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
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
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
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("learner 1") && page.contains("built-in grammar"), "{page}");
    assert!(out.join("history.jsonl").exists());
    assert_eq!(std::fs::read_dir(&events).unwrap().count(), 1);
}

#[tokio::test]
async fn nobodys_files_are_written_over() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Server::start(config(dir.path())).await.stop().await;
    let to = |name: &str| out.path().join(name);
    let written = |name: &str, overwrite| export(dir.path(), &to(name), Form::default(), overwrite);
    // An export may replace its own files, and files with the same names only if told to.
    written("own", false).unwrap();
    written("own", false).unwrap();
    for (name, file) in [("notes", "notes.txt"), ("model", "config.json"), ("card", "README.md")] {
        std::fs::create_dir(to(name)).unwrap();
        std::fs::write(to(name).join(file), "mine").unwrap();
        let error = written(name, false).unwrap_err();
        assert_eq!(error.exit_code(), 12, "{error}");
        assert!(
            error.to_string().contains(&format!("holds {file}, which no export of this run wrote")),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(to(name)).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(to(name).join(file)).unwrap(), "mine");
    }
    written("notes", true).unwrap();
    assert_eq!(std::fs::read_to_string(to("notes/notes.txt")).unwrap(), "mine");

    let error = backup(dir.path(), &dir.path().join("copies/a")).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("inside the run's own folder"), "{error}");
    assert!(!dir.path().join("copies").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn what_a_run_keeps_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("runs/a");
    Server::start(config(&dir)).await.stop().await;
    let mode = |name: &str| std::fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    for name in ["run.json", "tokenizer.json", "held-out.json"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
}
