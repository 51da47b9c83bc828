//! Conversion between a model's shape and the files `config.json`, `generation_config.json` and
//! `tokenizer_config.json`.

use archipelago_core::model::{
    self, CONTEXT_MAX, EXPERTS_MAX, ExpertSpec, LAYERS_MAX, ModelSpec, VOCAB_MAX, WIDTH_MAX,
};
use serde_json::{Map, Value, json};

use super::special::id_value;
use super::writer::Precision;
use super::{Chat, LlamaError, SourceSettings, SpecialTokens};

/// Defaults of `transformers` for missing keys of a `config.json`.
struct Defaults {
    norm_eps: f64,
    rope_theta: f64,
    /// Number of key and value heads; `None` means one per query head.
    kv_heads: Option<u32>,
}

const LLAMA: Defaults = Defaults { norm_eps: 1e-6, rope_theta: 1e4, kv_heads: None };
const MIXTRAL: Defaults = Defaults { norm_eps: 1e-5, rope_theta: 1e6, kv_heads: Some(8) };
/// Default of `router_aux_loss_coef` in the Mixtral configuration of `transformers`.
const AUX_LOSS: f64 = 0.001;

/// Content of a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    /// Shape of the model.
    pub model: ModelSpec,
    /// Special tokens of the model.
    pub special: SpecialTokens,
}

impl Shape {
    /// Reads a `config.json`. `context` is the number of tokens in a window of the run. Without it, windows are as long
    /// as the model allows.
    ///
    /// # Errors
    /// - `Absent`, `Key`: a key is missing or has a value that runs cannot represent.
    /// - `Model`: the sizes together describe no valid model.
    pub fn read(keys: &Map<String, Value>, context: Option<u32>) -> Result<Self, LlamaError> {
        let keys = Keys(keys);
        let is_mixtral = keys.get("model_type") == Some(&json!("mixtral"));
        let defaults = if is_mixtral { MIXTRAL } else { LLAMA };
        if !is_mixtral {
            let why = "only models of the types llama and mixtral can be trained here";
            keys.must("model_type", &json!("llama"), why)?;
        }
        keys.may("hidden_act", &json!("silu"), "only silu is supported")?;
        keys.may("attention_bias", &json!(false), "attention biases are not supported")?;
        keys.may("mlp_bias", &json!(false), "biases in the feed-forward layer are not supported")?;
        let plain = "only parameters in f32, f16 or bf16 are read: save the model without quantization";
        keys.may("quantization_config", &Value::Null, plain)?;

        let width = keys.integer("hidden_size", 2..=WIDTH_MAX)?;
        let heads = keys.integer("num_attention_heads", 1..=WIDTH_MAX)?;
        if !width.is_multiple_of(2 * heads) {
            let why = format!("it does not split hidden_size = {width} into heads of an even width");
            return Err(LlamaError::key("num_attention_heads", heads, why));
        }
        let why = "the width of a head must be hidden_size divided by num_attention_heads";
        keys.may("head_dim", &json!(width / heads), why)?;
        let kv_heads = match keys.get("num_key_value_heads") {
            None => defaults.kv_heads.unwrap_or(heads),
            Some(_) => keys.integer("num_key_value_heads", 1..=heads)?,
        };
        if !heads.is_multiple_of(kv_heads) {
            let why = format!("it does not divide num_attention_heads = {heads}");
            return Err(LlamaError::key("num_key_value_heads", kv_heads, why));
        }
        let model = ModelSpec {
            vocab: keys.integer("vocab_size", 2..=VOCAB_MAX)?,
            d_model: width,
            layers: keys.integer("num_hidden_layers", 1..=LAYERS_MAX)?,
            heads,
            kv_heads,
            d_ff: keys.integer("intermediate_size", 2..=WIDTH_MAX)?,
            context: keys.context(context)?,
            rope_theta: keys.rope_theta(defaults.rope_theta)?,
            norm_eps: positive("rms_norm_eps", keys.number("rms_norm_eps")?.unwrap_or(defaults.norm_eps))?,
            untied_head: match keys.get("tie_word_embeddings") {
                None => true,
                Some(Value::Bool(tied)) => !tied,
                Some(other) => {
                    return Err(LlamaError::key("tie_word_embeddings", other, "it must be true or false"));
                }
            },
            experts: if is_mixtral { Some(keys.experts()?) } else { None },
            lora: None,
        };
        model::layout(&model)?;
        Ok(Self { model, special: SpecialTokens::of(keys.0, model.vocab) })
    }
}

/// Keys of a configuration. A null value counts as missing, as in Python.
struct Keys<'a>(&'a Map<String, Value>);

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Checks that `key` is missing or has the value `expected`.
    fn may(&self, key: &'static str, expected: &Value, why: &str) -> Result<(), LlamaError> {
        match self.get(key) {
            Some(value) if value != expected => Err(LlamaError::key(key, value, why)),
            _ => Ok(()),
        }
    }

    /// Checks that `key` has the value `expected`.
    fn must(&self, key: &'static str, expected: &Value, why: &str) -> Result<(), LlamaError> {
        self.get(key).ok_or(LlamaError::Absent { key })?;
        self.may(key, expected, why)
    }

    fn integer(&self, key: &'static str, range: std::ops::RangeInclusive<u32>) -> Result<u32, LlamaError> {
        let value = self.get(key).ok_or(LlamaError::Absent { key })?;
        let integer = value.as_u64().and_then(|integer| u32::try_from(integer).ok());
        integer.filter(|integer| range.contains(integer)).ok_or_else(|| {
            let why = format!("whole numbers from {} to {} are supported", range.start(), range.end());
            LlamaError::key(key, value, why)
        })
    }

    fn number(&self, key: &str) -> Result<Option<f64>, LlamaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| LlamaError::key(key, value, "it must be a number"))
    }

    /// Returns the mixture of experts of a Mixtral model.
    fn experts(&self) -> Result<ExpertSpec, LlamaError> {
        self.may("sliding_window", &Value::Null, "attention always covers the whole window here")?;
        let noise = self.number("router_jitter_noise")?.filter(|noise| *noise != 0.0);
        if let Some(noise) = noise {
            return Err(LlamaError::key("router_jitter_noise", noise, "noise in routers is not supported"));
        }
        let count = match self.get("num_local_experts") {
            None => 8,
            Some(_) => self.integer("num_local_experts", 2..=EXPERTS_MAX)?,
        };
        let per_token = match self.get("num_experts_per_tok") {
            None => 2,
            Some(_) => self.integer("num_experts_per_tok", 1..=count)?,
        };
        let aux_loss = self.number("router_aux_loss_coef")?.unwrap_or(AUX_LOSS) as f32;
        if !(aux_loss.is_finite() && aux_loss >= 0.0) {
            return Err(LlamaError::key("router_aux_loss_coef", aux_loss, "it must be a number from 0 on"));
        }
        Ok(ExpertSpec { count, per_token, aux_loss })
    }

    /// Returns the number of tokens in a window: `asked`, or the model's maximum.
    fn context(&self, asked: Option<u32>) -> Result<u32, LlamaError> {
        let key = "max_position_embeddings";
        let made_for = self.integer(key, 1..=u32::MAX)?;
        match asked {
            Some(asked) if asked > made_for => {
                Err(LlamaError::key(key, made_for, format!("give --context {made_for} or less")))
            }
            None if made_for > CONTEXT_MAX => {
                let why =
                    format!("windows have at most {CONTEXT_MAX} tokens: give --context, for example 2048");
                Err(LlamaError::key(key, made_for, why))
            }
            _ => Ok(asked.unwrap_or(made_for)),
        }
    }

    /// Checks that rotary embeddings cover whole heads. `outer` is the path of the object that contains these keys,
    /// with a final dot.
    fn whole_heads(&self, outer: &str) -> Result<(), LlamaError> {
        let key = "partial_rotary_factor";
        match self.number(key)?.filter(|part| *part != 1.0) {
            Some(part) => Err(LlamaError::key(
                format!("{outer}{key}"),
                part,
                "partial rotation of heads is not supported",
            )),
            None => Ok(()),
        }
    }

    /// Returns the base of the rotary frequencies. Versions 4 and 5 of transformers store it in different places.
    fn rope_theta(&self, default: f64) -> Result<f32, LlamaError> {
        let mut theta = self.number("rope_theta")?;
        self.whole_heads("")?;
        for outer in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.get(outer) else { continue };
            let Value::Object(inner) = value else {
                return Err(LlamaError::key(outer, value, "it must be an object"));
            };
            let inner = Keys(inner);
            for key in ["rope_type", "type"] {
                if let Some(kind) = inner.get(key).filter(|kind| *kind != "default") {
                    let why = "only positions of the type default are supported";
                    return Err(LlamaError::key(format!("{outer}.{key}"), kind, why));
                }
            }
            inner.whole_heads(&format!("{outer}."))?;
            if let Some(found) = inner.number("rope_theta")? {
                if let Some(other) = theta.filter(|other| *other != found) {
                    let why = format!("rope_theta is {other} elsewhere in the file: remove the wrong one");
                    return Err(LlamaError::key(format!("{outer}.rope_theta"), found, why));
                }
                theta = Some(found);
            }
        }
        positive("rope_theta", theta.unwrap_or(default))
    }
}

fn positive(key: &str, value: f64) -> Result<f32, LlamaError> {
    let single = value as f32;
    match single.is_finite() && single > 0.0 {
        true => Ok(single),
        false => Err(LlamaError::key(key, value, "it must be a number above 0 that fits in 32 bits")),
    }
}

/// Returns the `config.json` for a model like `spec` with parameters in `precision`. Keys of `source` that do not
/// describe the shape are kept, and so is the longest text that the model supports.
pub fn model_config(
    spec: &ModelSpec,
    special: &SpecialTokens,
    precision: Precision,
    source: Option<&SourceSettings>,
) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab,
        "hidden_size": spec.d_model,
        "intermediate_size": spec.d_ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.d_model / spec.heads,
        "max_position_embeddings": positions(spec, source),
        "hidden_act": "silu",
        "rms_norm_eps": decimal(spec.norm_eps),
        // Version 4 of transformers reads `rope_theta`, version 5 `rope_parameters`.
        "rope_theta": decimal(spec.rope_theta),
        "rope_parameters": { "rope_type": "default", "rope_theta": decimal(spec.rope_theta) },
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": !spec.untied_head,
        "use_cache": true,
        "dtype": precision.torch_name(),
        "torch_dtype": precision.torch_name(),
    });
    if let Some(experts) = &spec.experts {
        config["architectures"] = json!(["MixtralForCausalLM"]);
        config["model_type"] = json!("mixtral");
        config["num_local_experts"] = json!(experts.count);
        config["num_experts_per_tok"] = json!(experts.per_token);
        config["router_aux_loss_coef"] = decimal(experts.aux_loss);
        config["sliding_window"] = Value::Null;
    }
    for (key, id) in special.ids() {
        config[key] = id;
    }
    add_absent(&mut config, source.map(|source| &source.config));
    config
}

/// Returns the longest text that the model supports, in tokens. A run may train on shorter windows.
pub fn positions(spec: &ModelSpec, source: Option<&SourceSettings>) -> u64 {
    let made_for = source.and_then(|source| source.config.get("max_position_embeddings")?.as_u64());
    made_for.unwrap_or_default().max(spec.context.into())
}

/// Adds the keys of `settings` that the object `config` lacks.
fn add_absent(config: &mut Value, settings: Option<&Map<String, Value>>) {
    for (key, value) in settings.into_iter().flatten() {
        if config.get(key).is_none() {
            config[key] = value.clone();
        }
    }
}

/// Returns the `generation_config.json`: that of `source`, or a default if the run has no source folder. The default
/// samples up to half a context. `stops` are all tokens that end a text.
pub fn generation_config(
    spec: &ModelSpec,
    special: &SpecialTokens,
    stops: &[u32],
    source: Option<&SourceSettings>,
) -> Value {
    let mut config = match source {
        Some(source) => json!(source.generation),
        None => {
            json!({ "do_sample": true, "temperature": 0.8, "max_new_tokens": spec.context.div_ceil(2) })
        }
    };
    if !stops.is_empty() {
        config["eos_token_id"] = id_value(stops);
    }
    for (key, id) in special.ids().into_iter().filter(|(_, id)| !id.is_null()) {
        if config.get(key).is_none_or(Value::is_null) {
            config[key] = id;
        }
    }
    config
}

/// Smallest `model_max_length` that means an unknown length. transformers writes 1e30.
const LENGTH_MAX: u64 = 1 << 40;

/// Returns the content of `tokenizer_config.json`. `tokenizer` is the content of `tokenizer.json`. Settings of `source`
/// are kept; missing ones follow from the special tokens and the longest text of the model. `chat` supplies the chat
/// templates.
pub fn tokenizer_config(
    spec: &ModelSpec,
    special: &SpecialTokens,
    chat: &Chat,
    tokenizer: &str,
    source: Option<&SourceSettings>,
) -> Value {
    let mut config = source.map_or_else(|| json!({}), |source| json!(source.tokenizer));
    // Other classes override how tokenizer.json begins and ends a text, and the model was trained with the latter.
    config["tokenizer_class"] = json!("PreTrainedTokenizerFast");
    let length = config.get("model_max_length").and_then(Value::as_u64).filter(|&length| length < LENGTH_MAX);
    config["model_max_length"] = json!(length.unwrap_or_else(|| positions(spec, source)));
    let mut absent = Map::new();
    absent.insert("clean_up_tokenization_spaces".into(), json!(false));
    absent.extend(chat.tokens.iter().map(|(key, text)| (key.clone(), json!(text))));
    for (key, text) in special.texts(tokenizer) {
        absent.entry(key).or_insert(text);
    }
    add_absent(&mut config, Some(&absent));
    as_version_4(&mut config);
    let others = source.map(|source| &source.templates).into_iter().flatten();
    let others = others.filter(|(name, _)| *name != Chat::TOOL_USE).map(|(name, text)| (name.as_str(), text));
    let named = others.chain(chat.tool_use.iter().map(|text| (Chat::TOOL_USE, text)));
    let mut templates: Vec<Value> =
        named.map(|(name, template)| json!({ "name": name, "template": template })).collect();
    match &chat.template {
        Some(template) if templates.is_empty() => config["chat_template"] = json!(template),
        Some(template) => {
            templates.push(json!({ "name": Chat::DEFAULT, "template": template }));
            config["chat_template"] = json!(templates);
        }
        None if templates.is_empty() => {}
        None => config["chat_template"] = json!(templates),
    }
    config
}

/// Moves special tokens without a role to `additional_special_tokens`, which versions 4 and 5 of transformers both
/// read. Version 5 writes them as a list `extra_special_tokens`, for which version 4 expects an object.
fn as_version_4(config: &mut Value) {
    let Some(Value::Array(extra)) = config.get("extra_special_tokens").cloned() else { return };
    let mut all = match config.get("additional_special_tokens") {
        Some(Value::Array(known)) => known.clone(),
        _ => Vec::new(),
    };
    all.extend(extra.into_iter().filter(|token| !all.contains(token)).collect::<Vec<_>>());
    config["additional_special_tokens"] = json!(all);
    config.as_object_mut().expect("it is made as an object").remove("extra_special_tokens");
}

/// Returns the shortest decimal that is the same `f32`, such as 1e-5 instead of 9.999999747378752e-6.
fn decimal(value: f32) -> Value {
    let shortest: f64 = value.to_string().parse().expect("a number prints as one");
    json!(shortest)
}
