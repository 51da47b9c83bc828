//! End-to-end test of adapters on a model trained here, as described in `docs/owner.md`, with learner processes.
#![cfg(unix)]

use std::fs;
use std::path::Path;

use archipelago_tests::processes::export;
use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};
use archipelago_tests::toys::pretrained;

/// Returns a text unlike the grammar: lines of a few words in a repeating order.
fn text() -> String {
    let lines = ["the keeper keeps the lamp\n", "the tide leaves the harbour\n", "nobody counts the gulls\n"];
    (0..6_000).map(|i| lines[i * i % 7 % 3]).collect()
}

/// Goal: two learners fetch the frozen model once and train adapters, and both are merged. A killed learner resumes
/// from its cache, although the weights can no longer be fetched. The run resumes from its folder alone. Exports are
/// the adapters, and the whole model.
#[test]
fn two_learners_train_adapters_and_fetch_the_model_once() {
    let _machine = whole_machine();
    let place = tempfile::tempdir().unwrap();
    let (model, data) = (place.path().join("model"), place.path().join("text.txt"));
    pretrained(&model);
    fs::write(&data, text()).unwrap();

    let (init, text) = (model.to_str().unwrap(), data.to_str().unwrap());
    let flags =
        ["--preset", "tiny", "--init", init, "--data", text, "--total-tokens", "2000000", "--lr", "0.01"];
    let often = ["--sync-every", "8", "--fragments", "4", "--snapshot-every", "1s", "--eval-every", "1s"];
    let lora = ["--lora-rank", "4", "--lora-targets", "q,v,up,down", "--frozen", "int8"];
    let mut syncer = SyncerProcess::start(&[&flags[..], &often, &lora].concat());
    let (mut anne, mut bert) = (syncer.learner("anne"), syncer.learner("bert"));
    let status = syncer.wait_until("both are merged and the text is learnt", |status| {
        let both = ["anne", "bert"].iter().all(|name| of_learner(status, name, "tokensMerged") > 0.0);
        let fell = number(status, "valLossLast") < 0.8 * number(status, "valLossFirst");
        both && status["valLossLast"].is_number() && fell
    });
    let losses = [number(&status, "valLossFirst"), number(&status, "valLossLast")];
    println!("held-out loss {losses:?} after {} tokens", number(&status, "tokensMerged"));
    let facts = &status["adapters"];
    assert_eq!((&facts["rank"], &facts["frozenForm"]), (&4.into(), &"int8".into()));
    assert!(number(&status, "params") < 0.25 * number(facts, "frozenParams"), "{status:#}");

    // They share one cache, which contains the parts.
    let cache = fs::read_dir(syncer.folder().with_file_name("cache")).unwrap();
    let kept: u64 = cache.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(kept as f64, number(facts, "frozenBytes"));
    let (frozen, aside) = (syncer.folder().join("frozen.bin"), place.path().join("frozen.bin"));
    fs::rename(&frozen, &aside).unwrap();
    anne.kill();
    let gone = syncer.wait_until("she is missed", |status| number(status, "live") < 1.5);
    let mut anne = syncer.learner("anne");
    let merged = of_learner(&gone, "anne", "tokensMerged");
    syncer.wait_until("who was killed is merged again without fetching them", |status| {
        of_learner(status, "anne", "tokensMerged") > merged && number(status, "live") > 1.5
    });
    for learner in [&mut anne, &mut bert] {
        assert!(learner.interrupt().0.success());
    }
    let before = syncer.interrupt();

    // Without --init, which would provide the weights again.
    syncer.starts_with(&["--data", text]);
    let said = syncer.refused(14);
    assert!(said.contains("frozen.bin") && said.contains("missing"), "{said}");
    fs::rename(&aside, &frozen).unwrap();
    // The folder contains everything except the text.
    fs::remove_dir_all(&model).unwrap();
    syncer.restart();
    let after = syncer.wait_until("it is back", |status| number(status, "tokensMerged") > 0.0);
    assert_eq!((&after["run"], &after["adapters"]), (&before["run"], &before["adapters"]));
    let mut bert = syncer.learner("bert");
    let merged = number(&after, "tokensMerged");
    syncer.wait_until("it goes on", |status| number(status, "tokensMerged") > merged);
    assert!(bert.interrupt().0.success());
    syncer.interrupt();
    assert!(syncer.replay()["merges"].as_u64().is_some_and(|merges| merges > 0));

    let (adapters, whole) = (place.path().join("adapters"), place.path().join("whole"));
    export(&syncer.folder(), &adapters, &[]);
    export(&syncer.folder(), &whole, &["--merged"]);
    assert!(adapters.join("adapter_config.json").is_file() && !adapters.join("config.json").exists());
    let bytes = |folder: &Path, name: &str| fs::metadata(folder.join(name)).unwrap().len();
    assert!(8 * bytes(&adapters, "adapter_model.safetensors") < 5 * bytes(&whole, "model.safetensors"));

    // A run that begins with the merged export starts where the adapters ended.
    let whole = whole.to_str().unwrap();
    let mut syncer =
        SyncerProcess::start(&["--preset", "tiny", "--init", whole, "--data", text, "--eval-every", "1s"]);
    let status = syncer.wait_until("it is measured", |status| status["valLossFirst"].is_number());
    assert!(number(&status, "valLossFirst") < 0.9 * losses[0], "{status:#}");
    syncer.interrupt();
}
