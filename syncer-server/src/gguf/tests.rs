//! Tests of GGUF files, by a reader of the format that shares no code with the writer.

use std::collections::BTreeMap;
use std::path::Path;

use archipelago_core::model::{ExpertSpec, ModelSpec, Preset, layout};
use serde_json::{Value as Json, json};

use super::container::Value;
use super::{Description, GgufVocabulary, TensorType, write_gguf};
use crate::corpus::Vocabulary;

/// Tensor of a file: sizes, ggml's number of its type, and its bytes.
#[derive(Debug, PartialEq)]
struct Read {
    dims: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
}

/// Bytes of a file, with the place of the next one.
struct Reader<'a>(&'a [u8], usize);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.0[self.1..self.1 + N].try_into().unwrap();
        self.1 += N;
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        self.1 += len;
        String::from_utf8(self.0[self.1 - len..self.1].to_vec()).unwrap()
    }

    fn value(&mut self, kind: u32) -> Json {
        match kind {
            4 => json!(self.u32()),
            5 => json!(i32::from_le_bytes(self.bytes())),
            6 => json!(f32::from_le_bytes(self.bytes())),
            7 => json!(self.bytes::<1>() == [1]),
            8 => json!(self.text()),
            9 => {
                let (kind, len) = (self.u32(), self.u64());
                (0..len).map(|_| self.value(kind)).collect()
            }
            other => panic!("type {other}"),
        }
    }
}

/// Reads the metadata and the tensors of a file.
fn read(path: &Path) -> (BTreeMap<String, Json>, BTreeMap<String, Read>) {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes, 0);
    assert_eq!((&reader.bytes::<4>(), reader.u32()), (b"GGUF", 3));
    let (tensors, entries) = (reader.u64(), reader.u64());
    let metadata: BTreeMap<_, _> = (0..entries)
        .map(|_| {
            let (key, kind) = (reader.text(), reader.u32());
            (key, reader.value(kind))
        })
        .collect();
    assert_eq!(metadata.len() as u64, entries);
    let heads: Vec<_> = (0..tensors)
        .map(|_| {
            let (name, count) = (reader.text(), reader.u32());
            let dims: Vec<u64> = (0..count).map(|_| reader.u64()).collect();
            (name, dims, reader.u32(), reader.u64() as usize)
        })
        .collect();
    let start = reader.1.next_multiple_of(32);
    let mut end = 0;
    let tensors = heads
        .into_iter()
        .map(|(name, dims, kind, offset)| {
            let values = dims.iter().product::<u64>() as usize;
            let len = match kind {
                0 => 4 * values,
                1 | 30 => 2 * values,
                8 => values / 32 * 34,
                other => panic!("type {other}"),
            };
            // ggml refuses a file if the tensors do not follow each other.
            assert_eq!(offset, end, "{name}");
            end = (offset + len).next_multiple_of(32);
            (name, Read { dims, kind, data: bytes[start + offset..][..len].to_vec() })
        })
        .collect();
    assert_eq!(bytes.len(), start + end);
    (metadata, tensors)
}

/// Writes the model `spec` with the values 0, 1, 2, … and reads it again.
fn written(
    spec: &ModelSpec,
    kind: TensorType,
    metadata: &[(String, Value)],
) -> (BTreeMap<String, Json>, BTreeMap<String, Read>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let layout = layout(spec).unwrap();
    let theta: Vec<f32> = (0..layout.len()).map(|value| value as f32).collect();
    write_gguf(&path, spec, &layout, &theta, kind, metadata).unwrap();
    read(&path)
}

fn values(tensor: &Read) -> Vec<f32> {
    assert_eq!(tensor.kind, 0);
    tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn values_are_coded_as_in_ggml() {
    // The expected bytes are those of gguf-py, the reference of llama.cpp in Python.
    let ramp: Vec<f32> = (0..32).map(|at| ((at * 37 % 64) as f32 - 31.5) * 0.0171).collect();
    let mut ties = vec![0.0; 32];
    ties[..6].copy_from_slice(&[127.0, 0.5, 1.5, -0.5, -2.5, -127.0]);
    let check = |kind: TensorType, values: &[f32], expected: &str| {
        let mut bytes = Vec::new();
        kind.encode(values, &mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        assert_eq!(kind.bytes(values.len() as u64), bytes.len() as u64);
    };
    let q8_0 = TensorType::Q8_0;
    check(q8_0, &ramp, "581c8116a93ed267fa8d22b54bde7306992ec257ea7f12a53ace63f6891eb147da6f");
    check(q8_0, &ties, &format!("003c7f0102fffd81{}", "00".repeat(26)));
    check(q8_0, &[0.0; 32], &"00".repeat(34));
    check(TensorType::F16, &ramp[..4], "4fb8052ee2b53e34");
    check(TensorType::Bf16, &ramp[..4], "0abfc13dbcbe883e");
    check(TensorType::F16, &[1e9, -1e9], "ff7bfffb");
    check(TensorType::F32, &[1.0], "0000803f");
}

#[test]
fn a_file_has_all_values_in_the_order_of_llama_cpp() {
    let spec = ModelSpec { kv_heads: 1, untied_head: true, ..Preset::Tiny.model(256) };
    let width = (spec.d_model / spec.heads) as usize;
    let (_, tensors) = written(&spec, TensorType::F32, &[]);
    assert_eq!(tensors.len(), 3 + 9 * spec.layers as usize);
    let (cols, rows) = (spec.d_model as usize, 256);
    let embedding = &tensors["token_embd.weight"];
    assert_eq!(embedding.dims, [cols as u64, rows]);
    assert!(values(embedding).iter().enumerate().all(|(at, value)| *value == at as f32));
    assert_eq!(tensors["output_norm.weight"].dims, [cols as u64]);
    for (name, heads) in [("attn_q", spec.heads as usize), ("attn_k", 1)] {
        let found = values(&tensors[&format!("blk.0.{name}.weight")]);
        assert_eq!(found.len(), heads * width * cols);
        let first = found.iter().fold(f32::MAX, |least, value| least.min(*value));
        let rows: Vec<usize> =
            found.chunks(cols).map(|row| ((row[0] - first) as usize).div_euclid(cols)).collect();
        // In a head, row i and row i + width / 2 of the model are neighbours.
        assert_eq!(rows[..4], [0, width / 2, 1, width / 2 + 1]);
        let of_last = (heads - 1) * width;
        assert_eq!(rows[of_last..][..2], [of_last, of_last + width / 2]);
    }
    let plain = values(&tensors["blk.1.attn_v.weight"]);
    assert!(plain.windows(2).all(|pair| pair[1] == pair[0] + 1.0));
}

#[test]
fn experts_are_stacked_and_routers_stay_exact() {
    let experts = ExpertSpec { count: 3, per_token: 2, aux_loss: 0.0 };
    // Rows of 68 values are no whole blocks.
    let spec = ModelSpec { experts: Some(experts), d_ff: 68, ..Preset::Tiny.model(256) };
    let description =
        Description { name: "a", licence: Some("mit"), spec: &spec, context: 64, kind: TensorType::Q8_0 };
    let (metadata, tensors) = written(&spec, TensorType::Q8_0, &description.entries());
    let (width, inner) = (u64::from(spec.d_model), 68);
    let of = |name: &str| (&*tensors[name].dims, tensors[name].kind);
    assert_eq!(of("blk.0.ffn_gate_exps.weight"), (&[width, inner, 3][..], 8));
    assert_eq!(of("blk.0.ffn_down_exps.weight"), (&[inner, width, 3][..], 1));
    assert_eq!(of("blk.1.ffn_gate_inp.weight"), (&[width, 3][..], 0));
    assert_eq!(of("blk.1.ffn_norm.weight"), (&[width][..], 0));
    assert_eq!(
        (&metadata["llama.expert_count"], &metadata["llama.expert_used_count"]),
        (&json!(3), &json!(2))
    );
    let expected = json!({
        "general.architecture": "llama", "general.name": "a", "general.license": "mit", "general.file_type": 7,
        "llama.context_length": 64, "llama.block_count": spec.layers, "llama.embedding_length": width,
        "llama.attention.head_count": spec.heads, "llama.attention.head_count_kv": spec.kv_heads,
        "llama.rope.dimension_count": spec.d_model / spec.heads, "llama.rope.freq_base": spec.rope_theta,
        "llama.attention.layer_norm_rms_epsilon": spec.norm_eps, "llama.vocab_size": 256,
        "llama.feed_forward_length": 68,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&metadata[key], value, "{key}");
    }
}

fn entries(vocabulary: &GgufVocabulary<'_>) -> Result<BTreeMap<String, Json>, String> {
    let entries = vocabulary.entries().map_err(|error| error.to_string())?;
    Ok(written(&Preset::Tiny.model(256), TensorType::F32, &entries).0)
}

#[test]
fn bytes_are_a_vocabulary_without_merges() {
    let tokenizer = Vocabulary::Bytes.to_json();
    let bytes = GgufVocabulary { tokenizer: &tokenizer, rows: 256, ..GgufVocabulary::default() };
    let found = entries(&bytes).unwrap();
    let of = |key: &str| &found[&format!("tokenizer.ggml.{key}")];
    let tokens = of("tokens").as_array().unwrap();
    assert_eq!(
        (tokens.len(), &tokens[65], &tokens[10], &tokens[32]),
        (256, &json!("A"), &json!("Ċ"), &json!("Ġ"))
    );
    assert_eq!((of("merges"), of("pre"), of("model")), (&json!([]), &json!("gpt-2"), &json!("gpt2")));
    assert_eq!((of("add_bos_token"), of("add_eos_token")), (&json!(false), &json!(false)));
    // No text has this byte, so the model does not stop at one that it may write.
    assert_eq!((of("eos_token_id"), of("bos_token_id")), (&json!(255), &json!(255)));
    assert!(!found.contains_key("tokenizer.chat_template"));
}

/// Returns a tokenizer of Llama 3's kind, with a token of text, two special tokens and one without a row.
fn llama_3() -> Json {
    let mut json: Json = serde_json::from_str(&Vocabulary::Bytes.to_json()).unwrap();
    json["model"]["vocab"]["Ġa"] = json!(256);
    json["model"]["merges"] = json!([["Ġ", "a"]]);
    json["model"]["ignore_merges"] = json!(true);
    let added = |id: u32, content: &str, special: bool| {
        json!({ "id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false })
    };
    json["added_tokens"] = json!([
        added(257, "<s>", true),
        added(258, "</s>", true),
        added(260, "tag", false),
        added(9999, "x", true)
    ]);
    let regex = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    json["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
    ] });
    json["post_processor"] = json!({ "type": "Sequence", "processors": [
        { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true },
        { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [], "special_tokens": { "<s>": { "id": "<s>", "ids": [257], "tokens": ["<s>"] } } },
    ] });
    json
}

#[test]
fn an_imported_tokenizer_keeps_its_special_tokens() {
    let text = llama_3().to_string();
    let vocabulary = GgufVocabulary {
        tokenizer: &text,
        rows: 262,
        bos: None,
        pad: Some(258),
        stops: &[258, 256, 300],
        template: Some("t"),
        tool_template: Some("u"),
    };
    let found = entries(&vocabulary).unwrap();
    let of = |key: &str| &found[&format!("tokenizer.{key}")];
    let tokens = of("ggml.tokens").as_array().unwrap();
    assert_eq!(tokens[256..], ["Ġa", "<s>", "</s>", "[PAD259]", "tag", "[PAD261]"]);
    assert_eq!(of("ggml.token_type").as_array().unwrap()[255..], [1, 1, 3, 3, 5, 4, 5]);
    assert_eq!((of("ggml.merges"), of("ggml.pre")), (&json!(["Ġ a"]), &json!("llama-bpe")));
    assert_eq!((of("ggml.add_bos_token"), of("ggml.bos_token_id")), (&json!(true), &json!(257)));
    assert_eq!((of("ggml.eos_token_id"), of("ggml.eot_token_id")), (&json!(258), &json!(256)));
    // The third one has no row.
    assert!(!found.contains_key("tokenizer.ggml.eom_token_id"));
    assert_eq!((of("chat_template"), of("chat_template.tool_use")), (&json!("t"), &json!("u")));
}

#[test]
fn ways_of_splitting_are_named_or_refused() {
    let with = |change: &dyn Fn(&mut Json)| {
        let mut json = llama_3();
        change(&mut json);
        let text = json.to_string();
        let vocabulary = GgufVocabulary { tokenizer: &text, rows: 262, ..GgufVocabulary::default() };
        vocabulary.entries().map(|entries| entries[1].1.clone()).map_err(|error| error.to_string())
    };
    let named = |change: &dyn Fn(&mut Json), name: &str| {
        assert_eq!(with(change), Ok(Value::Text(name.to_owned())));
    };
    let byte_level =
        |words: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": words });
    named(&|json| json["model"]["ignore_merges"] = json!(false), "smaug-bpe");
    let plain = |json: &mut Json| {
        json["model"]["ignore_merges"] = json!(false);
        json["pre_tokenizer"] = byte_level(true);
        json["normalizer"] = json!({ "type": "NFC" });
    };
    named(&plain, "gpt-2");
    let digits = |json: &mut Json| {
        plain(json);
        json["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Digits", "individual_digits": true }, byte_level(true)] });
    };
    named(&digits, "smollm");

    let refused = |change: &dyn Fn(&mut Json), part: &str| {
        let error = with(change).unwrap_err();
        assert!(error.contains(part) && error.contains("export for transformers"), "{error}");
    };
    refused(&|json| json["pre_tokenizer"] = byte_level(false), "not known by name");
    refused(&|json| json["pre_tokenizer"] = byte_level(true), "keeps words that are tokens");
    refused(&|json| json["pre_tokenizer"] = json!({ "type": "Metaspace" }), "not byte-level");
    refused(&|json| json["pre_tokenizer"] = Json::Null, "not byte-level");
    refused(
        &|json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({ "Regex": "a" }),
        "not known",
    );
    refused(
        &|json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true),
        "a space before",
    );
    refused(&|json| json["model"]["type"] = json!("Unigram"), "Unigram");
    refused(&|json| json["model"]["byte_fallback"] = json!(true), "byte_fallback");
    refused(&|json| json["model"]["end_of_word_suffix"] = json!("</w>"), "a suffix");
    refused(&|json| json["normalizer"] = json!({ "type": "Lowercase" }), "Lowercase");
    refused(&|json| json["post_processor"] = json!({ "type": "BertProcessing" }), "BertProcessing");
    refused(&|json| json["added_tokens"][0]["content"] = json!("</s>"), "no text of its own");
    refused(&|json| json["model"]["vocab"]["é"] = json!(70_000), "has no row");
    refused(&|json| json["model"]["vocab"]["é"] = json!(70), "is there twice");
    refused(&|json| json["model"]["merges"] = json!(["a b c"]), "a merge");
    let twice = |json: &mut Json| {
        let template = &mut json["post_processor"]["processors"][1];
        let before = template["single"][0].clone();
        template["single"].as_array_mut().unwrap().push(before);
    };
    refused(&twice, "is not the model's end of text");
}
