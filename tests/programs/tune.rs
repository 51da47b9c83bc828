//! End-to-end test of fine-tuning, as described in `docs/owner.md`: a model trained here, conversations as JSON lines,
//! and learner processes.
#![cfg(unix)]

use std::fs;

use archipelago_core::rng::Rng;
use archipelago_tests::processes::export;
use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};
use archipelago_tests::toys::pretrained;
use serde_json::{Value, json};

/// Template with marked turns, as most models have.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}\
                        {% if add_generation_prompt %}[assistant]{% endif %}";

/// Returns conversations with random questions, which cannot be predicted, and answers that follow from the question's
/// first letter.
fn chats(count: usize) -> String {
    let mut rng = Rng::new(1);
    let mut letter = || char::from(b'a' + rng.below(26) as u8);
    let mut lines = String::new();
    for _ in 0..count {
        let asked: String = (0..40).map(|_| letter()).collect();
        let answer =
            if asked.starts_with(|c| c < 'n') { "the keeper keeps the lamp" } else { "the tide leaves" };
        let line = json!({"messages": [
            {"role": "user", "content": asked}, {"role": "assistant", "content": answer},
        ]});
        lines.push_str(&format!("{line}\n"));
    }
    lines
}

/// Goal: two learners fine-tune a pretrained model on answers. The held-out loss falls below the bound that random
/// questions would set. An invalid line is named and does no harm, and the run goes on without it. The export has the
/// same chat format as before.
#[test]
fn two_learners_learn_to_answer() {
    let _machine = whole_machine();
    let place = tempfile::tempdir().unwrap();
    let (model, data) = (place.path().join("model"), place.path().join("chats.jsonl"));
    pretrained(&model);
    fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let lines = chats(2_000);
    fs::write(&data, &lines).unwrap();

    let (init, text) = (model.to_str().unwrap(), data.to_str().unwrap());
    let flags = ["--preset", "tiny", "--init", init, "--data", text, "--total-tokens", "2000000"];
    let often = ["--sync-every", "8", "--fragments", "4", "--snapshot-every", "1s", "--eval-every", "1s"];
    let mut syncer = SyncerProcess::start(&[&flags[..], &often[..], &["--held-out", "0.1"]].concat());
    let mut learners = [syncer.learner("anne"), syncer.learner("bert")];
    // Letters drawn from 26 have 3.26 nats each; if they were half of the loss, it could not fall below 1.6.
    let status = syncer.wait_until("both are merged and answers are learnt", |status| {
        let both = ["anne", "bert"].iter().all(|name| of_learner(status, name, "tokensMerged") > 0.0);
        both && status["valLossLast"].as_f64().is_some_and(|loss| loss < 0.3)
    });
    let losses = [number(&status, "valLossFirst"), number(&status, "valLossLast")];
    println!("held-out loss {losses:?} after {} tokens", number(&status, "tokensMerged"));
    assert!(losses[0] > 1.5, "{status:#}");
    assert!(syncer.get("/v1/series").unwrap().contains("[user]"), "the samples answer a question");
    for learner in &mut learners {
        assert!(learner.interrupt().0.success());
    }
    let before = syncer.interrupt();

    fs::write(&data, lines.replacen("\"role\":\"user\"", "\"role\":7", 3)).unwrap();
    let said = syncer.refused(22);
    assert!(
        said.contains("line 1 of") && said.contains("chats.jsonl: message 1: \"role\" is not a text"),
        "{said}"
    );
    fs::write(&data, &lines).unwrap();
    // The folder contains model, template and tokenizer.
    fs::remove_dir_all(&model).unwrap();
    syncer.restart_with(&["--data", text]);
    let after = syncer.wait_until("it is back", |status| number(status, "tokensMerged") > 0.0);
    assert!(
        after["run"] == before["run"] && number(&after, "tokensMerged") >= number(&before, "tokensMerged")
    );
    let mut anne = syncer.learner("anne");
    let merged = number(&after, "tokensMerged");
    syncer.wait_until("it goes on", |status| number(status, "tokensMerged") > merged);
    assert!(anne.interrupt().0.success());
    syncer.interrupt();
    assert!(syncer.replay()["merges"].as_u64().is_some_and(|merges| merges > 0));

    let out = place.path().join("out");
    export(&syncer.folder(), &out, &[]);
    let config: Value =
        serde_json::from_slice(&fs::read(out.join("tokenizer_config.json")).unwrap()).unwrap();
    assert_eq!(config["chat_template"], TEMPLATE);
}
