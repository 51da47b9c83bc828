//! Tests of runs that begin with a model folder, mostly the one in `tests/golden/init`, which transformers made.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::model::{ModelSpec, init};
use archipelago_core::wire::Version;
use archipelago_core::wire::http::{HEALTH, READY};
use archipelago_runtime::engine::cpu::Writer;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::Value;
use syncer_server::{
    Cli, ForkArgs, Form, Format, Precision, Replay, Role, SampleArgs, ServeConfig, ServerError, Store, Verb,
    export, fork, parse, replayed, sample,
};
use tokenizers::Tokenizer;

use crate::durability::args;
use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/init")
}

pub fn from_folder(dir: &Path) -> ServeConfig {
    config(dir).with(|it| {
        it.initial.init = Some(golden().join("model"));
        it.data = Some(golden().join("text.txt").into());
        it.identity.held_out = 0.3;
        it.identity.batch = std::num::NonZeroU32::new(2);
    })
}

/// Returns the settings of [`from_folder`] without the model folder.
pub fn goes_on(dir: &Path) -> ServeConfig {
    from_folder(dir).with(|it| it.initial.init = None)
}

fn replay(dir: &Path) -> Result<Replay, ServerError> {
    replayed(&args(dir, None), |_| {})
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(golden().join("expected.json")).unwrap()).unwrap()
}

async fn first_loss(server: &Server) -> f64 {
    let measured = async {
        loop {
            if let Some(loss) = server.status().await["valLossFirst"].as_f64() {
                return loss;
            }
        }
    };
    tokio::time::timeout(PATIENCE, measured).await.unwrap()
}

/// Returns the name, type and values of each tensor in the `model.safetensors` of `folder`.
fn tensors(folder: &Path) -> Vec<(String, Dtype, Vec<f32>)> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        let values = match tensor.dtype() {
            Dtype::BF16 => {
                tensor.data().as_chunks().0.iter().map(|[a, b]| f32::from_le_bytes([0, 0, *a, *b])).collect()
            }
            _ => tensor.data().as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        };
        (name.to_owned(), tensor.dtype(), values)
    };
    let mut names = file.names();
    names.sort_unstable();
    names.into_iter().map(values).collect()
}

#[tokio::test]
async fn the_first_loss_is_that_of_transformers_and_the_model_comes_home_unchanged() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(ServeConfig { no_eval: false, ..from_folder(dir.path()) }).await;
    let expected = expected();
    let loss = first_loss(&server).await;
    assert!(
        (loss - expected["loss"].as_f64().unwrap()).abs() < 1e-3,
        "{loss} instead of {}",
        expected["loss"]
    );
    assert_eq!(server.status().await["init"], "model");
    server.stop().await;

    let (single, half) = (out.path().join("single"), out.path().join("half"));
    export(dir.path(), &single, Form { licence: Some("mit"), ..Form::default() }, false).unwrap();
    export(
        dir.path(),
        &half,
        Form { format: Format::Transformers(Precision::Bf16), ..Form::default() },
        false,
    )
    .unwrap();
    // The parameters were bfloat16, so rounding to it changes nothing.
    let (single_tensors, half_tensors) = (tensors(&single), tensors(&half));
    assert_eq!(single_tensors.len(), 20);
    for ((name, single, values), (_, half, rounded)) in single_tensors.iter().zip(&half_tensors) {
        assert_eq!((single, half), (&Dtype::F32, &Dtype::BF16), "{name}");
        assert!(values == rounded, "{name}");
    }
    let read = |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let json = |folder: &Path, name: &str| serde_json::from_str::<Value>(&read(folder, name)).unwrap();
    assert_eq!(json(&half, "config.json")["dtype"], "bfloat16");
    let found = json(&single, "config.json");
    let given = json(&golden().join("model"), "config.json");
    for key in [
        "vocab_size",
        "hidden_size",
        "num_key_value_heads",
        "rms_norm_eps",
        "eos_token_id",
        "rope_parameters",
    ] {
        assert_eq!(found[key], given[key], "{key}");
    }
    assert_eq!(json(&single, "generation_config.json")["eos_token_id"], 0);
    let tokenizer = json(&single, "tokenizer_config.json");
    assert_eq!((&tokenizer["model_max_length"], &tokenizer["eos_token"]), (&24.into(), &"<|end|>".into()));
    assert!(read(&single, "tokenizer.json") == read(&golden().join("model"), "tokenizer.json"));
    let card = read(&single, "README.md");
    assert!(card.contains("license: mit") && card.contains("the model in the folder `model`"), "{card}");
    assert!(card.contains("`text.txt`") && card.contains(&format!("first {loss:.4}")), "{card}");

    // A run can begin with an export, and has the same parameters.
    let again = tempfile::tempdir().unwrap();
    let server = Server::start(from_folder(again.path()).with(|it| it.initial.init = Some(half))).await;
    server.status().await;
    server.stop().await;
    let initial = |dir: &Path| Store::open_read_only(dir).manifest().unwrap().unwrap().init.unwrap().sha256;
    assert_eq!(initial(again.path()), initial(dir.path()));
}

/// Copies the golden model to the folder `name` in `place`, with the stop tokens `stops` and the chat template
/// `template`.
fn stopping(place: &Path, name: &str, stops: &[u32], template: &str) -> PathBuf {
    let folder = place.join(name);
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(golden().join("model")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let generation = serde_json::json!({ "eos_token_id": stops, "top_p": 0.9 });
    fs::write(folder.join("generation_config.json"), generation.to_string()).unwrap();
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    folder
}

/// Goal: samples, pages and exports of a run that began with a model folder use the folder's stop tokens.
#[tokio::test]
async fn a_model_stops_where_its_folder_says() {
    let place = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}\
                    {% if add_generation_prompt %} is{% endif %}";
    let written = async |name: &str, stops: &[u32]| {
        let folder = stopping(place.path(), name, stops, template);
        let dir = place.path().join(format!("run-{name}"));
        let server = Server::start(from_folder(&dir).with(|it| it.initial.init = Some(folder))).await;
        let run = server.status().await["run"].as_str().unwrap().to_owned();
        let (_, _, body) = server.http(&format!("GET /v1/runs/{run}/model")).await;
        let view: Value = serde_json::from_slice(&body).unwrap();
        server.stop().await;
        let args = sample_args(&dir);
        let raw = SampleArgs { prompt: "The".into(), tokens: 30, ..args.clone() };
        let asked = SampleArgs { chat: Some("What".into()), tokens: 30, ..args };
        let out = place.path().join(format!("out-{name}"));
        export(&dir, &out, Form::default(), false).unwrap();
        let generation = fs::read(out.join("generation_config.json")).unwrap();
        let generation: Value = serde_json::from_slice(&generation).unwrap();
        let sample = |args: &SampleArgs| sample(args, |_| Ok(())).unwrap();
        (sample(&raw), sample(&asked), view["stops"].clone(), generation)
    };
    // Token 0 ends turns, as the syncer finds from the template.
    let (raw, asked, stops, generation) = written("a", &[17]).await;
    assert_eq!((&stops, &generation["eos_token_id"]), (&[17, 0].into(), &[17, 0].into()));
    assert_eq!(generation["top_p"], 0.9);
    assert_eq!((&*raw.prompt, &*asked.prompt), ("The", "What is"));
    assert!(!asked.text.contains("<|end|>"), "{}", asked.text);
    // A model that stops at the first tokens of this text writes a shorter one.
    let tokenizer = Tokenizer::from_file(golden().join("model/tokenizer.json")).unwrap();
    let tokens = tokenizer.encode_fast(&*raw.text, false).unwrap();
    let all: Vec<u32> = tokens.get_ids().iter().copied().take(16).collect();
    let (shorter, _, _, _) = written("b", &all).await;
    assert!(shorter.stopped && raw.text.starts_with(&shorter.text), "{shorter:?} of {raw:?}");
    assert!(shorter.tokens < raw.tokens.max(1), "{shorter:?} of {raw:?}");

    let dir = place.path().join("plain");
    Server::start(config(&dir)).await.stop().await;
    let asked = SampleArgs { chat: Some("What".into()), ..sample_args(&dir) };
    let error = sample(&asked, |_| Ok(())).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("no chat template"), "{error}");
}

#[tokio::test]
async fn a_run_from_a_folder_resumes_without_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(from_folder(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    for _ in 0..4 {
        learner.merge().await;
    }
    let run = learner.welcome.run;
    server.stop().await;
    let found = replay(dir.path()).unwrap();
    assert!(found.first == 1 && found.merges >= 4, "{found:?}");

    // Without a snapshot, a start replays the tape from the initial parameters in the run's folder.
    let states = Store::open_read_only(dir.path()).latest(run).unwrap().unwrap().states;
    let versions: Vec<Version> = states.iter().map(|state| state.version).collect();
    fs::remove_dir_all(dir.path().join("snapshots")).unwrap();
    let server = Server::start(goes_on(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 2).await;
    assert_eq!((welcome.run, &welcome.versions), (run, &versions));
    server.stop().await;
    assert!(Store::open_read_only(dir.path()).latest(run).unwrap().unwrap().states == states);
    // The folder may be given again if it is the same.
    let server = Server::start(from_folder(dir.path())).await;
    assert_eq!(server.status().await["run"], run.to_string());
    server.stop().await;

    // A fork has the initial parameters, and resumes with or without the folder.
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("fork");
    fork(&ForkArgs { folder: dir.path().to_owned().into(), at: u64::MAX, to: to.clone(), json: false })
        .unwrap();
    for config in [goes_on(&to), from_folder(&to)] {
        let server = Server::start(config).await;
        assert_ne!(server.status().await["run"], run.to_string());
        server.stop().await;
    }

    let path = dir.path().join("initial.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = replay(dir.path()).unwrap_err();
    assert_eq!(error.exit_code(), 14, "{error}");
    assert!(
        error.to_string().contains("initial.safetensors: these are not the run's initial parameters"),
        "{error}"
    );
}

#[tokio::test]
async fn a_crash_amid_the_start_loses_nothing() {
    let whole = tempfile::tempdir().unwrap();
    let server = Server::start(from_folder(whole.path())).await;
    server.status().await;
    server.stop().await;
    let initial = |dir: &Path| Store::open_read_only(dir).manifest().unwrap().unwrap().init.unwrap();
    let parameters = |dir: &Path| {
        let out = tempfile::tempdir().unwrap();
        export(dir, out.path(), Form::default(), false).unwrap();
        tensors(out.path())
    };
    // The order in which a start writes these files under its lock; the tape comes last.
    let written = ["tokenizer.json", "initial.safetensors", "run.json", "snapshots"];
    for count in 1..=written.len() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("lock"), "").unwrap();
        for name in &written[..count] {
            let (from, to) = (whole.path().join(name), dir.path().join(name));
            if from.is_dir() {
                fs::create_dir(&to).unwrap();
                fs::copy(from.join("00000001.safetensors"), to.join("00000001.safetensors")).unwrap();
            } else {
                fs::copy(from, to).unwrap();
            }
        }
        // Before `run.json` exists, only the settings refer to the folder.
        let is_known = dir.path().join("run.json").exists();
        let server =
            Server::start(if is_known { goes_on(dir.path()) } else { from_folder(dir.path()) }).await;
        server.status().await;
        assert!(parameters(dir.path()) == parameters(whole.path()), "{count}: it begins with the folder's");
        ScriptedLearner::join(&server, 1).await.merge().await;
        server.stop().await;
        assert_eq!(initial(dir.path()), initial(whole.path()), "{count}");
        let found = replay(dir.path()).unwrap();
        assert!(found.merges > 0, "{count}: {found:?}");
    }
}

#[tokio::test]
async fn another_beginning_is_another_run() {
    let (dir, plain, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(from_folder(dir.path())).await;
    server.status().await;
    server.stop().await;
    // The same shape with other parameters.
    export(dir.path(), other.path(), Form::default(), false).unwrap();
    let path = other.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let changed = from_folder(dir.path()).with(|it| it.initial.init = Some(other.path().to_owned()));
    let error = Server::refused(changed).await;
    assert_eq!(error.exit_code(), 12, "{error}");
    assert!(error.to_string().contains("it began with the model of model"), "{error}");
    let context = goes_on(dir.path()).with(|it| it.identity.context = std::num::NonZeroU32::new(12));
    let error = Server::refused(context).await;
    assert!(error.to_string().contains("model.context is 24 there, 12 here"), "{error}");

    let server = Server::start(config(plain.path())).await;
    server.status().await;
    server.stop().await;
    assert_eq!(Server::refused(from_folder(plain.path())).await.exit_code(), 12);
    let missing = from_folder(plain.path()).with(|it| it.initial.init = Some(plain.path().join("none")));
    let error = Server::refused(missing).await;
    assert_eq!(error.exit_code(), 19, "{error}");
    assert!(error.to_string().contains("there is no such folder"), "{error}");
}

pub fn sample_args(dir: &Path) -> SampleArgs {
    let prompt = "The ünd ".into();
    let folder = dir.to_owned().into();
    let (chat, system, picture) = (None, None, None);
    SampleArgs { folder, prompt, chat, system, tokens: 60, temperature: 0.7, seed: 3, picture, json: false }
}

/// Posts `sent` to `path`. Returns status, head and body.
async fn post(server: &Server, path: &str, sent: &str) -> (u16, String, Vec<u8>) {
    server.exchange(&format!("POST {path}\nContent-Length: {}", sent.len()), sent).await
}

async fn run_of(server: &Server) -> String {
    server.status().await["run"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_serves_its_model_shape_and_tokenises() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = run_of(&server).await;
    let get = async |path: &str| {
        let (code, _, body) = server.http(&format!("GET /v1/runs/{run}/{path}")).await;
        (code, String::from_utf8(body).unwrap())
    };
    let (code, body) = get("model").await;
    assert_eq!(code, 200);
    let view: Value = serde_json::from_str(&body).unwrap();
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
    assert_eq!(ask("text", "[1,256]").await.0, 400);
    assert_eq!(ask("tokens", "").await, (200, "[]".into()));
    assert_eq!(ask("tokens", &"x".repeat(4_097)).await.0, 413);
    assert_eq!(server.http("GET /v1/runs/0000000000000001/model").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn the_syncer_tokenises_with_a_custom_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path()).with(|it| it.identity.vocab = Some(300))).await;
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
async fn model_and_tokenizer_routes_require_the_invite() {
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
async fn sampling_a_snapshot_equals_sampling_its_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |args: &SampleArgs| sample(args, |_| Ok(())).unwrap_err();
    assert!(matches!(fails(&sample_args(dir.path())), ServerError::NoRun { .. }));
    let server = Server::start(config(dir.path())).await;
    server.stop().await;

    let mut shown = String::new();
    let written = sample(&sample_args(dir.path()), |piece| {
        shown.push_str(piece);
        Ok(())
    })
    .unwrap();
    assert_eq!((shown, written.tokens, written.tokens_merged), (written.text.clone(), 60, 0));
    let spec = archipelago_core::model::Preset::Tiny.model(256);
    let mut writer = Writer::new(&spec, init(&spec, config(dir.path()).identity.seed).unwrap()).unwrap();
    let prompt: Vec<u32> = "The ünd ".bytes().map(u32::from).collect();
    writer.begin(&prompt, 0.7, 3).unwrap();
    let bytes: Vec<u8> = writer.take(60).map(|token| token as u8).collect();
    assert_eq!(written.text, String::from_utf8_lossy(&bytes));

    let long = SampleArgs { tokens: 1_000, ..sample_args(dir.path()) };
    let whole = sample(&long, |_| Ok(())).unwrap();
    assert!(whole.text.starts_with(written.text.trim_end_matches(char::REPLACEMENT_CHARACTER)));
    let closed = sample(&long, |_| Err(std::io::ErrorKind::BrokenPipe.into())).unwrap();
    assert!(closed.tokens < 300, "nobody reads any more: {} tokens", closed.tokens);

    let empty = SampleArgs { prompt: String::new(), ..sample_args(dir.path()) };
    assert!(matches!(fails(&empty), ServerError::Config { .. }), "nothing to go on with");

    // Without a picture nothing is written, and existing files are not overwritten.
    let file = dir.path().join("out.svg");
    let drawn = SampleArgs { picture: Some(file.clone()), ..sample_args(dir.path()) };
    assert!(fails(&drawn).to_string().contains("holds no picture") && !file.exists());
    fs::write(&file, "mine").unwrap();
    assert!(fails(&drawn).to_string().contains("already exists"));
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the command lines of `verb` in a YAML file, each as a list of words without the verb's line prefix.
fn commands(text: &str, verb: &str) -> Vec<Vec<String>> {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().starts_with('#')).collect();
    let starts = (0..lines.len()).filter(|at| lines[*at].trim() == format!("- {verb}"));
    let words = |at: usize| {
        let indent = lines[at].len() - lines[at].trim_start().len();
        let same = lines[at..].iter().take_while(|line| {
            line.trim_start().starts_with("- ") && line.len() - line.trim_start().len() == indent
        });
        same.map(|line| filled(line.trim().trim_start_matches("- "))).collect()
    };
    starts.map(words).collect()
}

/// Returns `word` with each variable replaced by a host name, and with the repository's path of the settings file.
fn filled(word: &str) -> String {
    let run = folder().join("cluster/run.toml");
    let word = word.replace("/etc/archipelago/run.toml", run.to_str().unwrap());
    match word.split_once("${") {
        Some((before, rest)) => format!("{before}train.example{}", rest.split_once('}').unwrap().1),
        None => word,
    }
}

fn settings(words: &[String]) -> ServeConfig {
    let arguments = ["syncer-server"].into_iter().map(OsString::from).chain(words.iter().map(OsString::from));
    match parse(arguments).unwrap_or_else(|error| panic!("{words:?}: {error:?}")).verb {
        Verb::Serve(config) | Verb::Doctor(config) => *config,
        verb => panic!("{verb:?}"),
    }
}

/// Parses the commands in the file `name`, and compares verbs and roles with `expected`. Returns the settings of each.
fn check(name: &str, expected: &[(&str, Option<Role>)]) -> Vec<ServeConfig> {
    let text = read(name);
    let mut found = Vec::new();
    let mut configs = Vec::new();
    for verb in ["serve", "doctor"] {
        for words in commands(&text, verb) {
            let config = settings(&words);
            found.push((verb, config.server.cluster.role));
            configs.push(config);
        }
    }
    assert_eq!(found, expected, "{name}");
    configs
}

#[test]
fn deployed_commands_use_known_flags() {
    check("compose.yaml", &[("serve", None)]);
    let (owner, gateway) = (Some(Role::Owner), Some(Role::Gateway));
    let several = [
        ("cluster/compose.yaml", &[("serve", owner), ("serve", gateway), ("doctor", owner)][..]),
        ("cluster/kubernetes/owners.yaml", &[("serve", owner)]),
        ("cluster/kubernetes/gateways.yaml", &[("serve", gateway)]),
    ];
    for (name, expected) in several {
        for config in check(name, expected) {
            assert_eq!(config.server.cluster.cluster, "poems", "{name} has the settings of run.toml");
            assert_eq!(config.server.cluster.blobs.as_deref(), Some("s3://runs"));
            let is_open = config.server.listen == "0.0.0.0:7700";
            assert_eq!(
                is_open,
                config.server.cluster.role == gateway,
                "{name}: learners come to gateways alone"
            );
        }
    }
    let dockerfile = read("Dockerfile");
    let command = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    assert_eq!(
        settings(&serde_json::from_str::<Vec<String>>(command).unwrap()).server.listen,
        "0.0.0.0:7700"
    );
}

#[test]
fn deployed_variables_are_those_of_flags() {
    let command = archipelago_cli::command::<Cli>();
    let serve = command.find_subcommand("serve").unwrap();
    let known: Vec<_> = serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let text = read("cluster/secrets.env.example");
    let given: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let of = |name: &str| given.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
    let ours =
        given.iter().filter_map(|line| line.split('=').next()).filter(|it| it.starts_with("ARCHIPELAGO_"));
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), 3, "{ours:?}");
    assert!(ours.iter().all(|name| known.contains(name)), "{ours:?}");
    let serve = ["serve", "--role=owner", "--blobs=s3://runs"].map(str::to_owned);
    let secrets = [
        format!("--bus={}", of("ARCHIPELAGO_BUS")),
        format!("--invite={}", of("ARCHIPELAGO_INVITE")),
        format!("--admin-token={}", of("ARCHIPELAGO_ADMIN_TOKEN")),
    ];
    let config = settings(&[&serve[..], &secrets].concat());
    assert_eq!(config.server.cluster.bus.len(), 3, "each record is on three servers");
    assert!(config.server.cluster.bus.iter().all(|url| url.contains(of("NATS_PASSWORD"))), "one password");
}

#[test]
fn probes_use_existing_routes_and_the_right_port() {
    let text = read("cluster/kubernetes/gateways.yaml");
    let asked: Vec<_> =
        text.split("httpGet: {path: ").skip(1).map(|rest| rest.split(',').next().unwrap()).collect();
    assert_eq!(asked, [HEALTH, HEALTH, READY]);
    assert!(text.contains("{name: learners, containerPort: 7700}") && text.contains("targetPort: learners"));
}

#[test]
fn every_kubernetes_file_is_applied() {
    let text = read("cluster/kustomization.yaml");
    let mut named: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("  - kubernetes/")).collect();
    let there = fs::read_dir(folder().join("cluster/kubernetes")).unwrap();
    let mut there: Vec<_> = there.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
    assert!(folder().join("cluster/nats.conf").exists() && text.contains("files: [nats.conf]"));
}
