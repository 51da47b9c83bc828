//! The model as a folder.

use archipelago::diloco::Fragments;
use archipelago::model;
use safetensors::SafeTensors;
use syncer_server::errors::ServerError;
use syncer_server::export::export;
use syncer_server::store::Store;
use tokenizers::Tokenizer;

use crate::support::{Server, config};

#[tokio::test]
async fn a_folder_holds_the_model_whole() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("model");
    assert!(matches!(export(dir.path(), &out), Err(ServerError::NoSnapshot { .. })));

    let server = Server::start(config(dir.path())).await;
    let run = server.status().await["run"].as_str().unwrap().to_owned();
    // A snapshot is there before the first learner, and may be taken while the server runs.
    let exported = export(dir.path(), &out).unwrap();
    assert_eq!(exported.run, run);
    server.stop().await;

    let manifest = Store::look(dir.path()).manifest().unwrap().unwrap();
    let snapshot = Store::look(dir.path()).latest(manifest.run).unwrap().unwrap();
    let spec = &manifest.spec;
    let layout = model::layout(&spec.model).unwrap();
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
    assert_eq!(config["hidden_size"], spec.model.d_model);
    let tokenizer = Tokenizer::from_file(out.join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true) as u32, spec.model.vocab);
}
