//! Tests of runs that train adapters on the frozen model of `tests/golden/init`.

use std::fs;
use std::path::Path;

use archipelago_core::model::{FrozenForm, ModelSpec};
use archipelago_core::wire::{Frozen, Welcome};
use safetensors::SafeTensors;
use serde_json::Value;
use syncer_server::{ForkArgs, Form, ServeConfig, Store, backup, export, fork, replayed, validate};

use crate::init::{from_folder, goes_on};
use crate::replay::args;
use crate::support::{Learner, PATIENCE, Server, config, header};

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
    let mut learner = Learner::join(&server, 1).await;
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
async fn adapters_begin_as_the_model_and_come_home_for_peft_and_merged() {
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
    let spec = Learner::join(&server, 1).await.welcome.spec;
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
    let base = from_folder(dir.path()).init.unwrap().canonicalize().unwrap();
    assert_eq!(config["base_model_name_or_path"], base.to_str().unwrap());
    let named = Form { base: Some("lab/tiny"), ..Form::default() };
    export(dir.path(), out.path(), named, false).unwrap();
    let config = json(&out.path().join("adapter_config.json"));
    assert_eq!(config["base_model_name_or_path"], "lab/tiny");
    assert!(fs::read_to_string(out.path().join("README.md")).unwrap().contains("\nbase_model: lab/tiny\n"));
    let card = fs::read_to_string(out.path().join("README.md")).unwrap();
    assert!(card.contains("library_name: peft") && card.contains("rank 2 on q,k,v,o,gate,up,down"), "{card}");

    // The whole model in the same folder: no adapters are left that would be loaded on top of it.
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
    let from_merged = ServeConfig { init: Some(out.path().to_owned()), ..from_folder(again.path()) };
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
    let welcome = Learner::join(&server, 1).await.welcome;
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
    let welcome = Learner::join(&server, 1).await.welcome;
    assert_eq!(welcome.spec.frozen, None);
    assert_eq!(server.http(&format!("GET /v1/runs/{}/frozen/0", welcome.run)).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_run_of_adapters_goes_on_without_the_folder_and_says_what_is_damaged() {
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

    let path = Store::look(dir.path()).frozen_path();
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
async fn what_no_adapters_can_be_trained_on_is_refused_in_a_sentence() {
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
