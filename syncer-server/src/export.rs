//! The model as a folder that Hugging Face's `transformers` loads unchanged as a Llama.

use std::fs::{self, File};
use std::io::Seek;
use std::path::{Path, PathBuf};

use archipelago::bytes::from_f32s;
use archipelago::diloco::{Fragments, Layout, RunId};
use archipelago::wire::{ModelSpec, RunSpec};
use safetensors::tensor::{Dtype, View};
use serde::Serialize;
use serde_json::json;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::errors::ServerError;
use crate::prepare::layout;
use crate::store::{Snapshot, Store, disk, write_file};

/// What was exported.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// The folder.
    pub out: PathBuf,
    /// The run.
    pub run: String,
    /// Parameters of the model.
    pub params: u64,
    /// Tokens merged into them.
    pub tokens_merged: u64,
    /// Newest held-out loss, in nats per token.
    pub val_loss: Option<f32>,
}

/// Writes the newest snapshot of the run in `dir` to `out`: `config.json`, `model.safetensors`,
/// `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`.
///
/// # Errors
/// - `NoSnapshot`: there is none.
/// - `DirCorrupt`: there is no whole one.
/// - `Disk`: something cannot be read or written.
pub fn export(dir: &Path, out: &Path) -> Result<Exported, ServerError> {
    let store = Store::look(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.manifest()?.ok_or_else(none)?;
    let snapshot = store.latest(manifest.run)?.ok_or_else(none)?;
    let path = store.tokenizer_path();
    let tokenizer = fs::read_to_string(&path).map_err(disk("read", &path))?;
    write(&snapshot, &tokenizer, out)?;
    Ok(Exported {
        out: out.to_owned(),
        run: RunId::to_string(&manifest.run),
        params: snapshot.states.iter().map(|state| state.theta.len() as u64).sum(),
        tokens_merged: snapshot.record.ledger.clock_tokens(),
        val_loss: snapshot.carried.history.last(),
    })
}

fn write(snapshot: &Snapshot, tokenizer: &str, out: &Path) -> Result<(), ServerError> {
    let spec = &snapshot.record.spec;
    let layout = layout(spec)?;
    write_folder(&flat(snapshot, spec, &layout)?, &spec.model, &layout, tokenizer, out)
}

fn write_folder(
    theta: &[f32],
    spec: &ModelSpec,
    layout: &Layout,
    tokenizer: &str,
    out: &Path,
) -> Result<(), ServerError> {
    fs::create_dir_all(out).map_err(disk("make", out))?;
    let tensors = layout.offsets().map(|(start, tensor)| {
        let values = &theta[start as usize..][..tensor.len() as usize];
        let shape = match tensor.rows {
            1 => vec![tensor.cols as usize],
            rows => vec![rows as usize, tensor.cols as usize],
        };
        (tensor.name.clone(), Shaped { shape, values })
    });
    let path = out.join("model.safetensors");
    let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    safetensors::serialize_to_file(tensors, Some(metadata), &path)
        .map_err(|error| disk("write", &path)(std::io::Error::other(error)))?;

    let json =
        |name: &str, value: serde_json::Value| write_file(&out.join(name), format!("{value:#}\n").as_bytes());
    json("config.json", model_config(spec))?;
    // safetensors makes files for their owner only; a model is for whom the folder is for.
    let config = out.join("config.json");
    let permissions = fs::metadata(&config).map_err(disk("read", &config))?.permissions();
    fs::set_permissions(&path, permissions).map_err(disk("write", &path))?;
    json("generation_config.json", generation_config(spec))?;
    json("tokenizer_config.json", tokenizer_config(spec))?;
    write_file(&out.join("tokenizer.json"), tokenizer.as_bytes())
}

/// The same folder as one file, `name/…` in a ZIP archive that nothing is compressed in: parameters hardly
/// get smaller. Made in `dir`, gone when it is closed; only `theta`, `[layout.len()]`, is held in memory.
///
/// # Errors
/// - `Internal`: `theta` is not a model like `spec`.
/// - `Disk`: something cannot be written.
pub fn archive(
    theta: &[f32],
    spec: &RunSpec,
    tokenizer: &str,
    dir: &Path,
    name: &str,
) -> Result<File, ServerError> {
    let layout = layout(spec)?;
    if theta.len() != layout.len() {
        let what = "the parameters do not fit the run's model".into();
        return Err(ServerError::Internal { what });
    }
    let folder = tempfile::tempdir_in(dir).map_err(disk("make a folder in", dir))?;
    write_folder(theta, &spec.model, &layout, tokenizer, folder.path())?;
    zip(folder.path(), tempfile::tempfile_in(dir).map_err(disk("write", dir))?, name)
        .map_err(disk("write an archive in", dir))
}

fn zip(folder: &Path, archive: File, name: &str) -> std::io::Result<File> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    let mut zip = ZipWriter::new(archive);
    for path in paths {
        let mut file = File::open(&path)?;
        let large = file.metadata()?.len() >= u32::MAX.into();
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        zip.start_file(format!("{name}/{file_name}"), options.large_file(large))?;
        std::io::copy(&mut file, &mut zip)?;
        // The disk need not hold all of it twice.
        fs::remove_file(&path)?;
    }
    let mut archive = zip.finish()?;
    archive.rewind()?;
    Ok(archive)
}

fn flat(snapshot: &Snapshot, spec: &RunSpec, layout: &Layout) -> Result<Vec<f32>, ServerError> {
    let count = spec.exchange.fragments.try_into().unwrap_or(std::num::NonZeroU16::MIN);
    let fragments = Fragments::plan(layout, count);
    let fits = |(p, state): (_, &archipelago::diloco::FragmentState)| fragments.len(p) == state.theta.len();
    if usize::from(fragments.count()) != snapshot.states.len()
        || !fragments.ids().zip(&snapshot.states).all(fits)
    {
        let what = "the snapshot's fragments do not fit its model".into();
        return Err(ServerError::Internal { what });
    }
    let mut theta = vec![0.0; layout.len()];
    for (p, state) in fragments.ids().zip(&snapshot.states) {
        fragments.scatter(p, &state.theta, &mut theta);
    }
    Ok(theta)
}

fn model_config(spec: &ModelSpec) -> serde_json::Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab,
        "hidden_size": spec.d_model,
        "intermediate_size": spec.d_ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.d_model / spec.heads,
        "max_position_embeddings": spec.context,
        "hidden_act": "silu",
        "rms_norm_eps": decimal(spec.norm_eps),
        // Version 4 of transformers reads the first, version 5 the second.
        "rope_theta": decimal(spec.rope_theta),
        "rope_parameters": { "rope_type": "default", "rope_theta": decimal(spec.rope_theta) },
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "use_cache": true,
        "dtype": "float32",
        "torch_dtype": "float32",
        "bos_token_id": null,
        "eos_token_id": null,
        "pad_token_id": null,
    })
}

fn generation_config(spec: &ModelSpec) -> serde_json::Value {
    // The model has no token that ends a text, so a length does.
    json!({ "do_sample": true, "temperature": 0.8, "max_new_tokens": spec.context / 2 })
}

fn tokenizer_config(spec: &ModelSpec) -> serde_json::Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": spec.context,
        "clean_up_tokenization_spaces": false,
    })
}

/// The shortest decimal that is the same `f32`: 1e-5, not 9.999999747378752e-6.
fn decimal(value: f32) -> serde_json::Value {
    let shortest: f64 = value.to_string().parse().expect("a number prints as one");
    json!(shortest)
}

struct Shaped<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
}

impl View for Shaped<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        from_f32s(self.values).into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
