//! Tests of valid and invalid model folders. transformers wrote `tests/golden/init/model`, see
//! `tests/golden/init_fixture.py`.

mod home;

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::bytes::to_f32s;
use archipelago_core::diloco::{Layout, binary16};
use archipelago_core::model::{self, LoraSpec, ModelSpec};
use archipelago_core::wire::{DataSpec, ShardSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/init/model")
}

/// Returns a copy of the fixture that a test may change.
fn copy() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

/// Returns the error for a fixture after `change`.
fn refused(change: impl Fn(&Path)) -> String {
    let dir = copy();
    change(dir.path());
    let opened = Folder::open(dir.path(), None);
    opened.and_then(|folder| folder.params().map(drop)).expect_err("it is refused").to_string()
}

fn with_config(key: &str, value: Value) -> String {
    refused(|dir| {
        let path = dir.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = value.clone();
        fs::write(path, config.to_string()).unwrap();
    })
}

#[test]
fn the_fixture_is_read_as_it_is_meant() {
    let folder = Folder::open(&fixture(), None).unwrap();
    let expected = ModelSpec {
        vocab: 288,
        d_model: 8,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        d_ff: 12,
        context: 24,
        rope_theta: 500.0,
        norm_eps: 1e-6,
        untied_head: false,
        experts: None,
        lora: None,
    };
    assert_eq!((*folder.model(), folder.name()), (expected, "model".to_owned()));
    assert_eq!(
        *folder.special(),
        SpecialTokens { bos: Some(0), eos: vec![0], pad: None, generation_eos: vec![0] }
    );
    assert_eq!(Folder::open(&fixture(), Some(7)).unwrap().model().context, 7);
    let theta = folder.params().unwrap();
    assert_eq!(theta.len(), model::layout(folder.model()).unwrap().len());
    // The original values are bfloat16.
    assert!(
        theta.iter().all(|value| value.to_bits() & 0xffff == 0) && theta.iter().any(|value| *value != 0.0)
    );
}

#[test]
fn a_key_that_cannot_be_represented_is_named_with_its_value() {
    let check = |key: &str, value: Value, part: &str| {
        let said = with_config(key, value);
        assert!(said.starts_with(&format!("config.json has {part}")), "{said}");
        assert!(!said.contains('\n'), "{said}");
    };
    check("model_type", json!("gpt2"), "model_type = \"gpt2\": only models of the types llama and mixtral");
    check("model_type", Value::Null, "no model_type");
    check("hidden_act", json!("gelu"), "hidden_act = \"gelu\"");
    check("attention_bias", json!(true), "attention_bias = true");
    check("mlp_bias", json!(true), "mlp_bias = true");
    check("head_dim", json!(8), "head_dim = 8");
    check("hidden_size", json!(0), "hidden_size = 0");
    check("hidden_size", json!(-8), "hidden_size = -8");
    check("hidden_size", json!(8.5), "hidden_size = 8.5");
    check("hidden_size", json!(1_u64 << 40), "hidden_size = 1099511627776");
    check("num_attention_heads", json!(3), "num_attention_heads = 3: it does not split hidden_size = 8");
    check("num_attention_heads", json!(8), "num_attention_heads = 8");
    check("num_key_value_heads", json!(3), "num_key_value_heads = 3");
    check("vocab_size", Value::Null, "no vocab_size");
    check(
        "max_position_embeddings",
        json!(131_072),
        "max_position_embeddings = 131072: windows have at most 65536",
    );
    check("rms_norm_eps", json!(0.0), "rms_norm_eps = 0");
    check("rms_norm_eps", json!("small"), "rms_norm_eps = \"small\"");
    check("rope_theta", json!(1e4), "rope_parameters.rope_theta = 500");
    check("rope_scaling", json!({"type": "linear", "factor": 2.0}), "rope_scaling.type = \"linear\"");
    check("rope_scaling", json!(2), "rope_scaling = 2");
    check("rope_parameters", json!({"rope_type": "llama3"}), "rope_parameters.rope_type = \"llama3\"");
    check("rope_parameters", json!({"rope_theta": 1e300}), "rope_theta = ");
    check(
        "rope_parameters",
        json!({"partial_rotary_factor": 0.5}),
        "rope_parameters.partial_rotary_factor = 0.5",
    );
    check("quantization_config", json!({"quant_method": "gptq"}), "quantization_config = {");
    check("tie_word_embeddings", json!("yes"), "tie_word_embeddings = \"yes\"");
    let long = with_config("model_type", json!("x".repeat(10_000)));
    assert!(long.len() < 300, "{long}");
    let said = with_config("vocab_size", json!((1 << 24) + 1));
    assert!(said.contains("vocab_size = 16777217"), "{said}");
    assert!(
        Folder::open(&fixture(), Some(25)).unwrap_err().to_string().contains("give --context 24 or less")
    );
}

/// Goal: as in transformers, an added token may lack a row of the embedding unless the text contains it.
#[test]
fn an_added_token_may_have_no_row() {
    let folder = Folder::open(&fixture(), None).unwrap();
    let named = |id: u32| (id, format!("<{id}>"));
    assert!(folder.check_vocab(288, None, named(287)).is_ok());
    assert!(folder.check_vocab(289, None, named(287)).is_ok());
    let said = folder.check_vocab(289, None, named(288)).unwrap_err().to_string();
    assert!(said.contains("vocab_size = 288: the data has the token <288> (id 288)"), "{said}");
    let said = folder.check_vocab(290, Some(named(288)), named(3)).unwrap_err().to_string();
    assert!(said.contains("tokenizer.json has 290 tokens, among them <288>"), "{said}");
}

#[test]
fn a_missing_folder_is_refused_with_a_remedy() {
    let said = |path: &Path| Folder::open(path, None).unwrap_err().to_string();
    let dir = copy();
    assert!(said(&dir.path().join("none")).contains("there is no such folder: check the path"));
    assert!(said(&dir.path().join("config.json")).contains("it is a file"));
    assert!(said(Path::new("~/model")).contains("write the whole path"));
    let hub = said(Path::new("nobody/no-such-model"));
    assert!(hub.contains("`hf download nobody/no-such-model --local-dir no-such-model`"), "{hub}");
}

#[test]
fn placeholder_files_are_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n";
    let page = "<!DOCTYPE html><html>Sign in</html>".repeat(30);
    for name in ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors"] {
        let with = |text: &str| refused(|dir| fs::write(dir.join(name), text).unwrap());
        let said = with(pointer);
        assert!(said.contains(name) && said.contains("git lfs pull"), "{said}");
        assert!(with(&page).contains("(HTML)"));
    }
    for name in ["config.json", "tokenizer.json"] {
        for mark in [&b"\xef\xbb\xbf{}"[..], b"\xff\xfe{\0}\0"] {
            let said = refused(|dir| fs::write(dir.join(name), mark).unwrap());
            assert!(
                said.contains("it begins with a byte order mark: save it as UTF-8 without one"),
                "{said}"
            );
        }
    }
}

/// Model in one file, for tests that damage it.
struct Made {
    dir: TempDir,
    layout: Layout,
    theta: Vec<f32>,
}

impl Made {
    fn new() -> Self {
        let folder = Folder::open(&fixture(), None).unwrap();
        let (layout, theta) = (model::layout(folder.model()).unwrap(), folder.params().unwrap());
        let dir = copy();
        fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
        Self { dir, layout, theta }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("model.safetensors")
    }

    /// Applies `edit` to the header and the bytes of the parameters in f32, and writes both.
    fn write(&self, edit: impl FnOnce(&mut Value, &mut Vec<u8>)) -> &Self {
        write_tensors(&self.file(), &self.layout, &self.theta, Precision::F32).unwrap();
        let bytes = fs::read(self.file()).unwrap();
        let at = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header = serde_json::from_slice(&bytes[8..at]).unwrap();
        let mut data = bytes[at..].to_vec();
        edit(&mut header, &mut data);
        let header = header.to_string();
        let whole = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        fs::write(self.file(), whole).unwrap();
        self
    }

    /// Sets `tie_word_embeddings`.
    fn tied(&self, tied: bool) -> &Self {
        let path = self.dir.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["tie_word_embeddings"] = json!(tied);
        fs::write(path, config.to_string()).unwrap();
        self
    }

    /// Adds an output matrix that differs from the embedding only in its first value, `first`.
    fn with_head(&self, first: f32) -> &Self {
        self.write(|header, data| {
            let mut head = self.theta[..288 * 8].to_vec();
            head[0] = first;
            let (start, end) = (data.len(), data.len() + 4 * head.len());
            header["lm_head.weight"] =
                json!({"dtype": "F32", "shape": [288, 8], "data_offsets": [start, end]});
            data.extend(head.iter().flat_map(|value| value.to_le_bytes()));
        })
    }

    fn read(&self) -> Result<Vec<f32>, LlamaError> {
        Folder::open(self.dir.path(), None)?.params()
    }

    fn refused(&self, part: &str) {
        let said = self.read().expect_err("it is refused").to_string();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_untied_head_is_read_and_a_tied_one_checked() {
    let made = Made::new();
    assert!(made.write(|_, _| {}).read().unwrap() == made.theta);
    made.tied(false).refused("tensor lm_head.weight is missing");
    for first in [made.theta[0], made.theta[0] + 1.0] {
        let read = made.with_head(first).read().unwrap();
        let (model, head) = read.split_at(made.theta.len());
        assert!(model == made.theta);
        assert!(head[0] == first && head[1..] == made.theta[1..288 * 8]);
    }
    made.tied(true).refused("tie_word_embeddings = true: lm_head.weight differs from the embedding");
    assert!(made.with_head(made.theta[0]).read().unwrap() == made.theta);
}

#[test]
fn names_of_wrapped_modules_are_read() {
    let made = Made::new();
    let renamed = |rename: &dyn Fn(&str) -> String| {
        made.write(|header, _| {
            let entries = std::mem::take(header.as_object_mut().unwrap());
            let plain = |name: String| if name == "__metadata__" { name } else { rename(&name) };
            *header = entries.into_iter().map(|(name, entry)| (plain(name), entry)).collect();
        });
        made.read()
    };
    let wraps: [&dyn Fn(&str) -> String; 5] = [
        &|name| format!("_orig_mod.{name}"),
        &|name| format!("module.{name}"),
        &|name| format!("module._orig_mod.module.{name}"),
        &|name| format!("_fsdp_wrapped_module.{}", name.replace(".mlp.", "._fsdp_wrapped_module.mlp.")),
        &|name| name.replace("self_attn.", "_checkpoint_wrapped_module.self_attn._orig_mod."),
    ];
    for wrap in wraps {
        assert!(renamed(wrap).unwrap() == made.theta, "{}", wrap("model.norm.weight"));
    }
    let said = renamed(&|name| name.replace("model.norm", "model.module.norm")).unwrap_err().to_string();
    assert!(said.contains("model.module.norm.weight"), "{said}");
    made.write(|header, data| {
        let entry = json!({"dtype": "F32", "shape": [8], "data_offsets": [data.len(), data.len() + 32]});
        header["_orig_mod.model.norm.weight"] = entry;
        data.extend([0; 32]);
    });
    made.refused("tensor model.norm.weight in model.safetensors occurs twice");
}

#[test]
fn each_precision_is_read_to_the_bit() {
    let made = Made::new();
    for (precision, dtype) in [(Precision::F32, "F32"), (Precision::Bf16, "BF16")] {
        write_tensors(&made.file(), &made.layout, &made.theta, precision).unwrap();
        assert!(String::from_utf8_lossy(&fs::read(made.file()).unwrap()).contains(&format!("\"{dtype}\"")));
        assert!(made.read().unwrap() == made.theta);
    }
    // The same layout in f16 has half the bytes.
    made.write(|header, data| {
        for tensor in header.as_object_mut().unwrap().values_mut().filter(|tensor| tensor["dtype"] == "F32") {
            tensor["dtype"] = json!("F16");
            for side in 0..2 {
                tensor["data_offsets"][side] = (tensor["data_offsets"][side].as_u64().unwrap() / 2).into();
            }
        }
        *data = binary16::to_bytes(&to_f32s(data));
    });
    let expected = binary16::from_bytes(&binary16::to_bytes(&made.theta));
    assert!(made.read().unwrap() == expected);
    // bfloat16 rounds to nearest, ties to even.
    let mut theta = made.theta.clone();
    theta[..3].copy_from_slice(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1e-30]);
    write_tensors(&made.file(), &made.layout, &theta, Precision::Bf16).unwrap();
    assert_eq!(made.read().unwrap()[..2], [1.0, 1.0 + 4.0 / 256.0]);
}

#[test]
fn damaged_and_foreign_tensors_are_refused() {
    const NORM: &str = "model.norm.weight";
    let made = Made::new();
    let edited = |edit: &dyn Fn(&mut Value, &mut Vec<u8>), part: &str| made.write(edit).refused(part);
    edited(&|_, data| data.truncate(data.len() - 1), "check that it is complete");
    edited(&|_, data| data.push(0), "check that it is complete");
    edited(&|header, _| header[NORM]["data_offsets"] = json!([0, 32]), "cannot be used");
    edited(&|header, _| header[NORM]["data_offsets"] = json!([0, u64::MAX]), "cannot be used");
    edited(&|header, _| header[NORM]["data_offsets"] = json!([32, 0]), "cannot be used");
    edited(&|header, _| header[NORM]["shape"] = json!([u64::MAX, u64::MAX]), "cannot be used");
    edited(&|header, _| header[NORM]["dtype"] = json!("F33"), "cannot be used");
    edited(&|header, _| header[NORM]["dtype"] = json!("I32"), "is of the type I32");
    edited(
        &|header, _| header[NORM]["shape"] = json!([8, 1]),
        "has the shape [8, 1], but config.json requires [8]",
    );
    let renamed = |header: &mut Value| {
        let moved = header.as_object_mut().unwrap().remove(NORM).unwrap();
        header["model.layers.0.self_attn.q_proj.bias"] = moved;
    };
    edited(
        &|header, _| renamed(header),
        "q_proj.bias in model.safetensors does not belong to a model of this type",
    );
    // Derived tensors of old folders are ignored.
    let derived = |header: &mut Value, data: &mut Vec<u8>| {
        let place = json!({"dtype": "F32", "shape": [1], "data_offsets": [data.len(), data.len() + 4]});
        header["model.layers.0.self_attn.rotary_emb.inv_freq"] = place;
        data.extend([0; 4]);
    };
    assert!(made.write(derived).read().unwrap() == made.theta);
    for bad in [f32::NAN, f32::NEG_INFINITY, 65_536.0] {
        let mut theta = made.theta.clone();
        theta[2_304 + 3] = bad;
        write_tensors(&made.file(), &made.layout, &theta, Precision::F32).unwrap();
        made.refused(&format!(
            "tensor model.layers.0.input_layernorm.weight in model.safetensors has the value {bad} at place 3"
        ));
    }
    let whole = {
        made.write(|_, _| {});
        fs::read(made.file()).unwrap()
    };
    for cut in [0, 7, 8, 100, whole.len() / 2] {
        fs::write(made.file(), &whole[..cut]).unwrap();
        made.refused("model.safetensors cannot be used");
    }
    for header_bytes in [u64::MAX, 1 << 40, whole.len() as u64] {
        fs::write(made.file(), [&header_bytes.to_le_bytes(), &whole[8..]].concat()).unwrap();
        made.refused("its header claims");
    }
    fs::write(made.file(), [&8_u64.to_le_bytes()[..], b"[[[[[[[["].concat()).unwrap();
    made.refused("cannot be used");
}

#[test]
fn files_that_are_missing_or_lie_elsewhere_are_refused() {
    let index = "model.safetensors.index.json";
    let check = |said: String, part: &str| assert!(said.contains(part), "{said}");
    check(refused(|dir| fs::remove_file(dir.join(index)).unwrap()), "neither model.safetensors nor");
    check(refused(|dir| fs::remove_file(dir.join("config.json")).unwrap()), "cannot read config.json");
    check(refused(|dir| fs::remove_file(dir.join("tokenizer.json")).unwrap()), "cannot read tokenizer.json");
    let adapters = |dir: &Path| fs::rename(dir.join("config.json"), dir.join("adapter_config.json")).unwrap();
    check(refused(adapters), "it holds adapters without their base model: merge them first");
    check(refused(|dir| fs::write(dir.join("config.json"), "[]").unwrap()), "config.json cannot be used");
    let long = |dir: &Path| fs::write(dir.join("config.json"), vec![b' '; (16 << 20) + 1]).unwrap();
    check(refused(long), "config.json has 16777217 bytes");
    let index_of = |name: &str| {
        let text = json!({"weight_map": {"a": name}}).to_string();
        refused(move |dir| fs::write(dir.join(index), &text).unwrap())
    };
    for outside in ["../model.safetensors", "/etc/hostname", "..", "", "a/b"] {
        check(index_of(outside), "is not the name of a file in this folder");
    }
    check(index_of("none.safetensors"), "cannot read none.safetensors");
    check(index_of("model-00001-of-00002.safetensors"), "is missing from the folder's safetensors files");
    check(refused(|dir| fs::write(dir.join(index), "{}").unwrap()), "it has no weight_map");
    check(refused(|dir| fs::write(dir.join(index), r#"{"weight_map": {}}"#).unwrap()), "it names 0 files");
    let twice = |dir: &Path| {
        fs::copy(dir.join("model-00001-of-00002.safetensors"), dir.join("more.safetensors")).unwrap();
        let names = ["model-00001-of-00002.safetensors", "more.safetensors"];
        fs::write(dir.join(index), json!({"weight_map": {"a": names[0], "b": names[1]}}).to_string())
            .unwrap();
    };
    check(refused(twice), "is in another file too");
    let a_folder = |dir: &Path| {
        fs::remove_file(dir.join("tokenizer.json")).unwrap();
        fs::create_dir(dir.join("tokenizer.json")).unwrap();
    };
    check(refused(a_folder), "tokenizer.json cannot be used: it is not a file");
}

/// Goal: any changed byte in a header yields a model or an error, never a panic.
#[test]
fn no_changed_byte_panics() {
    let made = Made::new();
    made.write(|_, _| {});
    let whole = fs::read(made.file()).unwrap();
    let header_end = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut refused = 0;
    for at in (0..header_end).step_by(3) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(made.file(), changed).unwrap();
        refused += usize::from(made.read().is_err());
    }
    assert!(refused > header_end / 6, "{refused} of {header_end}");
}

#[test]
fn a_card_has_all_facts_and_stays_valid() {
    let folder = Folder::open(&fixture(), None).unwrap();
    let course =
        TrainingProgress { learners: 3, tokens_merged: 4_000, loss_first: Some(5.5), loss_last: None };
    let data =
        DataSpec { token_bytes: 2, masks: false, shards: vec![ShardSpec { tokens: 77, sha256: [0; 32] }] };
    let settings = crate::config::ServeConfig::default();
    let spec = crate::config::run_spec(&settings, (*folder.model()).into(), data).unwrap();
    let card = Card {
        run: "00000000000000ff",
        spec: &spec,
        model: Some(folder.model()),
        params: 3_304,
        merged: false,
        gguf: None,
        text: "a`b|c\n---",
        init: Some("smol"),
        source: None,
        base: Some("/models/smol"),
        folder: "my \"model\"",
        course,
        licence: Some("cc-by-4.0"),
        date: "2026-11-29",
    };
    let text = card.to_markdown();
    for part in [
        "---\nlicense: cc-by-4.0\nlibrary_name",
        "| trained on | `a b c ---`, 77 tokens |",
        "| initial weights | the model in the folder `smol` |",
        "| learners with merged updates | 3 |",
        "| merged tokens | 4000 |",
        "first 5.5000, last not measured",
        "| licence | cc-by-4.0 |",
        "AutoTokenizer.from_pretrained(\"my \\\"model\\\"\")",
        "windows of 24 tokens in each learner |",
        "| learning rate | up to ",
        "| optimiser | AdamW in each learner (betas 0.9 and 0.99",
        "| exported | 2026-11-29 by Archipelago ",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let without = Card { licence: None, init: None, base: None, ..card }.to_markdown();
    assert!(!without.contains("license:") && without.contains("none was chosen"), "{without}");
    assert!(without.contains("random parameters"), "{without}");
    let own = Card { model: None, ..card }.to_markdown();
    assert!(
        own.starts_with("---\nlicense: cc-by-4.0\ntags") && own.contains("| run | 00000000000000ff |"),
        "{own}"
    );
    assert!(!own.contains("transformers") && !own.contains("layers"), "{own}");
    let lora = Some(LoraSpec { rank: 4, alpha: 8.0, targets: "q,v".parse().unwrap() });
    let model = ModelSpec { lora, ..*folder.model() };
    let adapters = Card { model: Some(&model), ..card }.to_markdown();
    for part in [
        "library_name: peft",
        "base = AutoModelForCausalLM.from_pretrained(\"/models/smol\")",
        "PeftModel.from_pretrained(base, \"my \\\"model\\\"\")",
        "rank 4 on q,v",
    ] {
        assert!(adapters.contains(part), "{part:?} is not in\n{adapters}");
    }
    assert!(!adapters.contains("base_model:"), "a path of one machine is no name");
    let merged = Card { model: Some(&model), merged: true, ..card }.to_markdown();
    assert!(merged.contains("library_name: transformers") && merged.contains("rank 4 on q,v"), "{merged}");
    check_base_model_card(card);
    for bad in ["", "a b", "mit\n", "mit: x", &"x".repeat(65)] {
        assert!(!licence(bad), "{bad:?}");
    }
}

/// Checks the card for a base model whose own card has a licence, a language and data sets.
fn check_base_model_card(card: Card<'_>) {
    let keys = "---\nlicense: llama2\nlanguage: en\ndatasets:\n- a/b\n---\n";
    let dir = copy();
    fs::write(dir.path().join("README.md"), keys).unwrap();
    let source = SourceSettings::read(dir.path()).unwrap();
    let course = TrainingProgress { loss_last: Some(2.0), ..card.course };
    let of_base = Card { source: Some(&source), base: Some("lab/smol"), licence: None, course, ..card };
    let of_base = of_base.to_markdown();
    for part in [
        "---\nlicense: llama2\nbase_model: lab/smol\nlanguage:\n- en\ndatasets:\n- a/b\nlibrary_name: transformers\n",
        "| licence | `llama2`, as of the initial model |",
        "| initial weights | the model `lab/smol` |",
        "| perplexity on held-out text | 7.3891 |",
    ] {
        assert!(of_base.contains(part), "{part:?} is not in\n{of_base}");
    }
}
