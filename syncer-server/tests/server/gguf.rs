//! Tests of models exported as GGUF.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use syncer_server::{Form, Format, ServeConfig, TensorType, export};

use crate::init::from_folder;
use crate::support::{ScriptedLearner, Server};

const GGUF: Form<'_> = Form {
    format: Format::Gguf(TensorType::F32),
    licence: Some("mit"),
    merged: false,
    base: None,
    is_public: false,
};

/// Runs `config` until an update is merged.
async fn run(config: ServeConfig) {
    let server = Server::start(config).await;
    ScriptedLearner::join(&server, 1).await.merge().await;
    server.stop().await;
}

/// Returns all values in the `model.safetensors` of `folder`, sorted by their bits.
fn values(folder: &Path) -> Vec<[u8; 4]> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors();
    let mut values: Vec<[u8; 4]> =
        tensors.iter().flat_map(|(_, tensor)| tensor.data().as_chunks().0.to_vec()).collect();
    values.sort_unstable();
    values
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Goal: the file has the values of the model, whether all weights or adapters were trained, and replaces an earlier
/// export of another kind.
#[tokio::test]
async fn one_file_has_the_whole_model() {
    let (plain, adapters) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(from_folder(plain.path())).await;
    let config = from_folder(adapters.path());
    let lora = syncer_server::LoraArgs { lora_rank: 2, ..config.lora.clone() };
    run(ServeConfig { lora, ..config }).await;
    for (dir, merged) in [(&plain, false), (&adapters, true)] {
        let out = tempfile::tempdir().unwrap();
        let exported = export(dir.path(), out.path(), Form { merged, ..Form::default() }, false).unwrap();
        let expected = values(out.path());
        let found = export(dir.path(), out.path(), GGUF, false).unwrap();
        assert_eq!((found.params, expected.len() as u64), (exported.params, found.params));
        assert_eq!(names(out.path()), ["README.md", "model.gguf"]);

        let bytes = fs::read(out.path().join("model.gguf")).unwrap();
        // Each tensor of this model is a multiple of the alignment, so the values are the end of the file.
        let (head, data) = bytes.split_at(bytes.len() - 4 * expected.len());
        let mut values = data.as_chunks().0.to_vec();
        values.sort_unstable();
        assert!(values == expected, "merged: {merged}");
        let has = |text: &str| head.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(has("general.license") && has("tokenizer.ggml.eos_token_id") && has("blk.1.ffn_down.weight"));
        let card = fs::read_to_string(out.path().join("README.md")).unwrap();
        assert!(card.contains("llama-cli -m model.gguf") && card.contains("- gguf\n---"), "{card}");

        let small = Form { format: Format::Gguf(TensorType::Q8_0), ..GGUF };
        export(dir.path(), out.path(), small, false).unwrap();
        assert!(fs::metadata(out.path().join("model.gguf")).unwrap().len() < bytes.len() as u64);
        export(dir.path(), out.path(), Form { merged, ..Form::default() }, false).unwrap();
        assert!(!out.path().join("model.gguf").exists() && out.path().join("config.json").exists());
    }
}

/// Goal: a tokenizer that llama.cpp lacks is refused before anything in the folder changes.
#[tokio::test]
async fn unknown_tokenizers_are_refused() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(from_folder(dir.path())).await;
    export(dir.path(), out.path(), Form::default(), false).unwrap();
    let before = names(out.path());
    let path = dir.path().join("tokenizer.json");
    let json = fs::read_to_string(&path).unwrap();
    let words = json.replacen("\"use_regex\": true", "\"use_regex\": false", 1);
    assert_ne!(json, words);
    fs::write(&path, words).unwrap();
    let error = export(dir.path(), out.path(), GGUF, false).unwrap_err();
    assert_eq!(error.exit_code(), 9);
    assert!(error.to_string().contains("splits texts in a way that is not known by name"), "{error}");
    assert_eq!(names(out.path()), before);
}
