//! Tests that exports of a run repeat the settings of its source folder.

use std::ops::Range;

use super::*;

/// Returns a copy of the fixture with these keys set in these files.
fn folder(files: &[(&str, Value)]) -> TempDir {
    let dir = copy();
    for (name, value) in files {
        let path = dir.path().join(name);
        let mut there: Value =
            fs::read(&path).ok().map_or_else(|| json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
        value.as_object().unwrap().iter().for_each(|(key, value)| there[key] = value.clone());
        fs::write(path, there.to_string()).unwrap();
    }
    dir
}

/// Returns `config.json`, `generation_config.json` and `tokenizer_config.json` of an export. Its stop tokens are those
/// of the folder and `more`.
fn exported(dir: &TempDir, context: Option<u32>, more: &[u32]) -> [Value; 3] {
    let folder = Folder::open(dir.path(), context).unwrap();
    let (spec, special, source) = (folder.model(), folder.special(), Some(folder.settings()));
    let stops = [&special.stops(), more].concat();
    let chat = folder.chat().unwrap();
    [
        model_config(spec, special, Precision::F32, source),
        generation_config(spec, special, &stops, source),
        tokenizer_config(spec, special, &chat, "{}", source),
    ]
}

#[test]
fn exports_repeat_generation_settings() {
    let generation = json!({"eos_token_id": [3, 0], "top_p": 0.9, "temperature": 0.6, "do_sample": true});
    let dir =
        folder(&[("generation_config.json", generation), ("config.json", json!({"initializer_range": 0.5}))]);
    let [config, generation, _] = exported(&dir, Some(7), &[5]);
    assert_eq!(generation["eos_token_id"], json!([3, 0, 5]));
    assert_eq!((&generation["top_p"], &generation["temperature"]), (&json!(0.9), &json!(0.6)));
    assert!(generation.get("max_new_tokens").is_none() && generation.get("_from_model_config").is_none());
    assert_eq!((&config["eos_token_id"], &config["initializer_range"]), (&json!(0), &json!(0.5)));
    // The window length of a run does not limit the exported model.
    assert_eq!(config["max_position_embeddings"], 24);

    let dir = folder(&[]);
    fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    let [_, generation, _] = exported(&dir, None, &[]);
    assert_eq!(generation, json!({"bos_token_id": 0, "eos_token_id": 0}), "no settings of ours");
    let spec = *Folder::open(&fixture(), None).unwrap().model();
    let without = generation_config(&spec, &SpecialTokens::default(), &[], None);
    assert_eq!(without, json!({"do_sample": true, "temperature": 0.8, "max_new_tokens": 12}));
}

#[test]
fn exports_repeat_tokenizer_settings() {
    let tokenizer = json!({
        "padding_side": "left", "truncation_side": "left", "model_max_length": 2048, "pad_token": "<|pad|>",
        "eos_token": {"content": "<|end|>", "lstrip": true}, "extra_special_tokens": ["<|a|>", "<|b|>"],
        "added_tokens_decoder": {"0": {"content": "<|end|>", "special": true}}, "add_bos_token": false,
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
    });
    let [_, _, found] = exported(&folder(&[("tokenizer_config.json", tokenizer.clone())]), Some(7), &[]);
    for key in [
        "padding_side",
        "truncation_side",
        "model_max_length",
        "pad_token",
        "eos_token",
        "added_tokens_decoder",
    ] {
        assert_eq!(found[key], tokenizer[key], "{key}");
    }
    assert_eq!(found["additional_special_tokens"], tokenizer["extra_special_tokens"]);
    assert!(found.get("extra_special_tokens").is_none(), "version 4 takes a list for an object");
    let names: Vec<&Value> =
        found["chat_template"].as_array().unwrap().iter().map(|template| &template["name"]).collect();
    assert_eq!(names, ["tool_use", "default"]);
    assert_eq!(found["tokenizer_class"], "PreTrainedTokenizerFast");

    let dir = folder(&[]);
    fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
    let [_, _, found] = exported(&dir, Some(7), &[]);
    assert_eq!((&found["chat_template"], &found["model_max_length"]), (&json!("file"), &json!(24)));
}

/// Reads these ranges of the folder's parameters.
fn read(made: &Made, ranges: &[Range<usize>]) -> Result<Vec<f32>, LlamaError> {
    Folder::open(made.dir.path(), None)?.tensors().read_within(&made.layout, ranges)
}

/// Goal: a partial read equals the same part of the whole, also if the files repeat the tied output matrix.
#[test]
fn partial_reads_equal_the_whole() {
    let made = Made::new();
    let (whole, embedding) = (&made.theta, made.layout.tensors()[0].len() as usize);
    // The ranges are within a tensor, across the border of two, empty, and at the end.
    let ranges = [5..11, embedding - 3..embedding + 4, 7..7, whole.len() - 1..whole.len()];
    let expected: Vec<f32> = ranges.iter().flat_map(|range| &whole[range.clone()]).copied().collect();
    for made in [made.write(|_, _| {}), made.with_head(whole[0])] {
        assert_eq!(read(made, &ranges).unwrap(), expected);
        assert_eq!(read(made, &[]).unwrap(), Vec::<f32>::new());
    }
}

/// Goal: a read finds each fault in the ranges that it reads, and none outside of them.
#[test]
fn partial_reads_find_the_faults_in_their_ranges() {
    let made = Made::new();
    made.with_head(made.theta[0] + 1.0);
    assert!(read(&made, &[5..11, 1..4]).is_ok());
    let said = read(&made, &[5..11, 0..4]).unwrap_err().to_string();
    assert!(said.contains("lm_head.weight differs from the embedding"), "{said}");
    let (mut theta, norm) = (made.theta.clone(), made.layout.tensors()[0].len() as usize);
    theta[norm + 3] = f32::NAN;
    write_tensors(&made.file(), &made.layout, &theta, Precision::F32).unwrap();
    assert!(read(&made, &[0..4, norm..norm + 3]).is_ok());
    let said = read(&made, &[0..4, norm + 2..norm + 5]).unwrap_err().to_string();
    assert!(
        said.contains("input_layernorm.weight in model.safetensors has the value NaN at place 3"),
        "{said}"
    );
}
