//! Tests of text generation with the run's model: in a page, from HTTP data, and natively, from the run's folder.

use archipelago_core::model::{ModelSpec, init};
use archipelago_runtime::engine::cpu::Writer;
use syncer_server::{SampleArgs, ServeConfig, ServerError, sample};

use crate::support::{Server, config};

pub fn args(dir: &std::path::Path) -> SampleArgs {
    let prompt = "The ünd ".into();
    let folder = dir.to_owned().into();
    let (chat, system, picture) = (None, None, None);
    SampleArgs { folder, prompt, chat, system, tokens: 60, temperature: 0.7, seed: 3, picture, json: false }
}

/// Sends `sent` to `path`.
async fn post(server: &Server, path: &str, sent: &str) -> (u16, String, Vec<u8>) {
    server.exchange(&format!("POST {path}\nContent-Length: {}", sent.len()), sent).await
}

async fn run_of(server: &Server) -> String {
    server.status().await["run"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_tells_the_shape_of_its_model_and_spells() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = run_of(&server).await;
    let get = async |path: &str| {
        let (code, _, body) = server.http(&format!("GET /v1/runs/{run}/{path}")).await;
        (code, String::from_utf8(body).unwrap())
    };
    let (code, body) = get("model").await;
    assert_eq!(code, 200);
    let view: serde_json::Value = serde_json::from_str(&body).unwrap();
    let model: ModelSpec = serde_json::from_value(view["model"].clone()).unwrap();
    assert_eq!((view["tokenIsByte"].as_bool(), model.vocab), (Some(true), 256));
    assert!(view["fragments"].as_u64().unwrap() > 0);
    let ask = async |path: &str, sent: &str| {
        let (code, _, body) = post(&server, &format!("/v1/runs/{run}/{path}"), sent).await;
        (code, String::from_utf8(body).unwrap())
    };
    assert_eq!(ask("tokens", "aü").await, (200, "[97,195,188]".into()));
    assert_eq!(ask("text", "[97,195,188]").await, (200, "aü".into()));
    assert_eq!(ask("text", "[]").await, (200, String::new()));
    assert_eq!(ask("text", "[1,x]").await.0, 400);
    assert_eq!(ask("tokens", "").await, (200, "[]".into()));
    assert_eq!(ask("tokens", &"x".repeat(4_097)).await.0, 413);
    assert_eq!(server.http("GET /v1/runs/0000000000000001/model").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_vocabulary_of_its_own_is_spelt_by_the_syncer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServeConfig { vocab: Some(300), ..config(dir.path()) }).await;
    let run = run_of(&server).await;
    let (_, _, body) = server.http(&format!("GET /v1/runs/{run}/model")).await;
    assert!(String::from_utf8(body).unwrap().contains("\"tokenIsByte\":false"));
    let ask = async |path: &str, sent: &str| post(&server, &format!("/v1/runs/{run}/{path}"), sent).await.2;
    let tokens = ask("tokens", "the sea").await;
    let found: Vec<u32> = serde_json::from_slice(&tokens).unwrap();
    assert!((1..=7).contains(&found.len()) && found.iter().all(|&token| token < 300), "{found:?}");
    assert_eq!(ask("text", &String::from_utf8(tokens).unwrap()).await, b"the sea");
    server.stop().await;
}

#[tokio::test]
async fn only_the_invited_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let invite = Some("open-sesame".into());
    let server = Server::start(ServeConfig { invite, ..config(dir.path()) }).await;
    let run = run_of(&server).await;
    for (request, sent) in [("GET", ""), ("POST", "a"), ("POST", "[97]")] {
        let path = match sent {
            "" => "model",
            "a" => "tokens",
            _ => "text",
        };
        let request = format!("{request} /v1/runs/{run}/{path}\nContent-Length: {}", sent.len());
        assert_eq!(server.exchange(&request, sent).await.0, 403, "{path}");
        let invited = format!("{request}\nx-archipelago-invite: open-sesame");
        assert_eq!(server.exchange(&invited, sent).await.0, 200, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_snapshot_writes_what_its_parameters_write() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |args: &SampleArgs| sample(args, |_| Ok(())).unwrap_err();
    assert!(matches!(fails(&args(dir.path())), ServerError::NoRun { .. }));
    let server = Server::start(config(dir.path())).await;
    server.stop().await;

    let mut shown = String::new();
    let written = sample(&args(dir.path()), |piece| {
        shown.push_str(piece);
        Ok(())
    })
    .unwrap();
    assert_eq!((shown, written.tokens, written.tokens_merged), (written.text.clone(), 60, 0));
    let spec = archipelago_core::model::Preset::Tiny.model(256);
    let mut writer = Writer::new(&spec, init(&spec, config(dir.path()).seed).unwrap()).unwrap();
    let prompt: Vec<u32> = "The ünd ".bytes().map(u32::from).collect();
    writer.begin(&prompt, 0.7, 3).unwrap();
    let bytes: Vec<u8> = writer.take(60).map(|token| token as u8).collect();
    assert_eq!(written.text, String::from_utf8_lossy(&bytes));

    let long = SampleArgs { tokens: 1_000, ..args(dir.path()) };
    let whole = sample(&long, |_| Ok(())).unwrap();
    assert!(whole.text.starts_with(written.text.trim_end_matches(char::REPLACEMENT_CHARACTER)));
    let closed = sample(&long, |_| Err(std::io::ErrorKind::BrokenPipe.into())).unwrap();
    assert!(closed.tokens < 300, "nobody reads any more: {} tokens", closed.tokens);

    let empty = SampleArgs { prompt: String::new(), ..args(dir.path()) };
    assert!(matches!(fails(&empty), ServerError::Config { .. }), "nothing to go on with");

    // Without a picture nothing is written, and existing files are not overwritten.
    let file = dir.path().join("out.svg");
    let drawn = SampleArgs { picture: Some(file.clone()), ..args(dir.path()) };
    assert!(fails(&drawn).to_string().contains("holds no picture") && !file.exists());
    std::fs::write(&file, "mine").unwrap();
    assert!(fails(&drawn).to_string().contains("already exists"));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}
