//! Export of the model as a folder that Hugging Face's `transformers` loads unchanged as a Llama, of its adapters as a
//! folder that PEFT loads, or of the model as one file for llama.cpp.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use archipelago_cli::Bytes;
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::diloco::{FragmentState, Fragments, Layout, RunId};
use archipelago_core::model::{LoraSpec, layout};
use archipelago_core::wire::RunSpec;
use serde::Serialize;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::clock::date;
use crate::config;
use crate::corpus::{Stops, Vocabulary};
use crate::errors::ServerError;
use crate::gguf::{Description, GgufVocabulary, TensorType, write_gguf};
use crate::llama::{
    Card, Precision, SourceSettings, SpecialTokens, TrainingProgress, adapter_config, generation_config,
    model_config, peft_layout, positions, tokenizer_config, write_tensors,
};
use crate::store::{
    Manifest, Snapshot, Store, disk, free_bytes, is_temporary, names, sweep_files, temporary, whole_file,
    write_file,
};
use crate::tape::later_figures;

/// The result of an export.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exported {
    /// Folder of the export.
    pub out: PathBuf,
    /// The run, as 16 hex digits.
    pub run: String,
    /// Parameters of the model.
    pub params: u64,
    /// Tokens merged into the exported parameters.
    pub tokens_merged: u64,
    /// Newest held-out loss, in nats per token.
    pub val_loss: Option<f32>,
}

/// Writes the newest snapshot of the run in `dir` to `out`: `config.json`, `model.safetensors`, `tokenizer.json`,
/// `tokenizer_config.json`, `generation_config.json` and `README.md`. For adapters that are not merged,
/// `adapter_config.json` and `adapter_model.safetensors` replace the model and `config.json`. In GGUF, there are only
/// `model.gguf` and `README.md`, and adapters are always merged. An earlier export of the run in `out` is replaced.
/// With `overwrite`, any files with these names are replaced.
///
/// # Errors
/// - `OutTaken`: `out` holds other files, and `overwrite` is not set.
/// - `Config`: the licence or the base has no valid name, `form.merged` is set for a run that trains all weights, or a
///   model that is not the built-in decoder is exported as GGUF.
/// - `NoRun`, `NoSnapshot`: there is no run, or no snapshot of it.
/// - `DirCorrupt`: no snapshot is intact.
/// - `Tokenizer`: the run's tokenizer cannot be read, or has no form in GGUF.
/// - `Disk`: a file cannot be read or written.
pub fn export(dir: &Path, out: &Path, form: Form<'_>, overwrite: bool) -> Result<Exported, ServerError> {
    config::licence(form.licence)?;
    config::base(form.base)?;
    let store = Store::open_read_only(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.begun()?;
    if form.merged && manifest.spec.frozen.is_none() {
        let why = "--merged is for runs of adapters, and this one trains all weights: leave it out";
        return Err(ServerError::Config { why: why.to_owned() });
    }
    if matches!(form.format, Format::Gguf(_)) && manifest.decoder()?.is_none() {
        let why = "--format gguf is for the built-in decoder, and this run trains a model of another program";
        return Err(ServerError::Config { why: why.to_owned() });
    }
    let snapshot = store.latest(manifest.run)?.ok_or_else(none)?;
    if !overwrite {
        free(out, manifest.run)?;
    }
    let Snapshot { record, states, statistics, .. } = snapshot;
    let statistics = later_figures(&store, manifest.run, statistics)?;
    // Measurements may be newer than the snapshot, so later ones are skipped.
    let merged = record.ledger.clock_tokens();
    let mut evaluations = statistics.history.evaluations.iter();
    let last = evaluations.rfind(|evaluation| evaluation.tokens_merged <= merged);
    let losses = [statistics.history.first(), last.map(|evaluation| evaluation.loss)];
    write(&record, &states, losses, &store, out, form)
}

/// Files of an export.
const FILES: [&str; 11] = [
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    "generation_config.json",
    "history.jsonl",
    GGUF,
    "model.safetensors",
    "report.html",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Files that exports of another kind lack: those of a whole model for transformers, of adapters, and of both. An
/// export removes the files of other kinds, since an earlier export may have left them.
const OF_THE_MODEL: [&str; 2] = ["config.json", "model.safetensors"];
const OF_ADAPTERS: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const OF_TRANSFORMERS: [&str; 3] = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// File with the model for llama.cpp.
const GGUF: &str = "model.gguf";

/// Checks that `out` is missing, empty, or holds only an earlier export of `run`, or the rest of an interrupted one.
/// The card of an export names its run.
///
/// # Errors
/// - `Config`: it is a file.
/// - `OutTaken`: it holds other files.
/// - `Disk`: it cannot be read.
pub(crate) fn free(out: &Path, run: RunId) -> Result<(), ServerError> {
    let taken = |found: &str| ServerError::OutTaken { out: out.to_owned(), found: found.to_owned() };
    let mut names = match names(out) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            let why = format!("{} is a file: give --out a folder", out.display());
            return Err(ServerError::Config { why });
        }
        Err(error) => return Err(disk("read", out)(error)),
    };
    names.retain(|name| !is_temporary(name));
    if let Some(foreign) = names.iter().find(|name| !FILES.contains(&&***name)) {
        return Err(taken(foreign));
    }
    let Some(first) = names.first() else { return Ok(()) };
    // Any Hugging Face folder has files with these names, including the source folder of the run.
    let is_ours = fs::read_to_string(out.join("README.md")).is_ok_and(|card| card.contains(&run.to_string()));
    if is_ours { Ok(()) } else { Err(taken(first)) }
}

/// Kind of the exported files, and the type of the parameters in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A folder for transformers or PEFT.
    Transformers(Precision),
    /// One file for llama.cpp.
    Gguf(TensorType),
}

impl Default for Format {
    fn default() -> Self {
        Self::Transformers(Precision::default())
    }
}

/// Options of an export.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form<'a> {
    /// Kind of the files.
    pub format: Format,
    /// The licence that the owner chose, named in the model's card.
    pub licence: Option<&'a str>,
    /// True if adapters are merged into their base weights to form a complete model.
    pub merged: bool,
    /// The base model as libraries load it: a name on the hub or a folder.
    pub base: Option<&'a str>,
    /// True if strangers can download the export. It then contains no path of this machine.
    pub is_public: bool,
}

/// Writes the model of `states` to `out`, as [`export`] does. `record` and `states` are one state of the run in
/// `store`. `losses` are the first held-out loss and the one at that state.
///
/// # Errors
/// - `NoRun`: there is no run.
/// - `Internal`: the states do not fit the run's model.
/// - `Disk`: a file cannot be read or written.
/// - `Tokenizer`: the run's tokenizer cannot be read, or has no form in GGUF.
pub(crate) fn write(
    record: &SyncerRecord,
    states: &[FragmentState],
    losses: [Option<f32>; 2],
    store: &Store,
    out: &Path,
    form: Form<'_>,
) -> Result<Exported, ServerError> {
    let manifest = store.begun()?;
    let path = store.tokenizer_path();
    let tokenizer = fs::read_to_string(&path).map_err(disk("read", &path))?;
    let layout = manifest.layout()?;
    let mut theta = flat(states, &manifest.spec, &layout)?;
    let is_gguf = matches!(form.format, Format::Gguf(_));
    let form = Form { merged: form.merged || is_gguf && manifest.spec.frozen.is_some(), ..form };
    if let Some(decoder) = manifest.decoder()?.filter(|_| form.merged) {
        theta = store.whole(&manifest.spec, &decoder, theta)?;
    }
    let course = TrainingProgress::of(&record.ledger, losses);
    let whole = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    let name = whole.file_name().unwrap_or_default().to_string_lossy();
    Model { theta: &theta, manifest: &manifest, tokenizer: &tokenizer, course, form }.write(out, &name)?;
    Ok(Exported {
        out: out.to_owned(),
        run: RunId::to_string(&record.run),
        params: theta.len() as u64,
        tokens_merged: course.tokens_merged,
        val_loss: course.loss_last,
    })
}

/// A model to export, with its metadata.
pub(crate) struct Model<'a> {
    /// All parameters as one flat vector: the trained ones or, for merged adapters, all weights.
    pub(crate) theta: &'a [f32],
    /// The run's manifest.
    pub(crate) manifest: &'a Manifest,
    /// Content of the run's `tokenizer.json`.
    pub(crate) tokenizer: &'a str,
    /// Progress of the run.
    pub(crate) course: TrainingProgress,
    /// Options of the export.
    pub(crate) form: Form<'a>,
}

impl Model<'_> {
    /// Writes the folder `out`, and creates it if it is missing. `name` is the model's name in its card.
    fn write(&self, out: &Path, name: &str) -> Result<(), ServerError> {
        let layout = self.layout()?;
        fs::create_dir_all(out).map_err(disk("make", out))?;
        sweep_files(out, &FILES);
        let card = out.join("README.md");
        let precision = match self.form.format {
            Format::Transformers(precision) => precision,
            Format::Gguf(kind) => return self.write_gguf(out, name, &layout, kind),
        };
        write_file(&card, self.card(name)?.as_bytes())?;
        let lora = self.adapters()?;
        let (file, others): (_, &[&str]) = match lora {
            Some(_) => ("adapter_model.safetensors", &OF_THE_MODEL),
            None => ("model.safetensors", &OF_ADAPTERS),
        };
        remove(out, others)?;
        remove(out, &[GGUF])?;
        let path = out.join(file);
        whole_file(&path, |made| write_tensors(made, &layout, self.theta, precision))?;

        // safetensors creates files that only their owner can read; the model gets the permissions of the other files.
        let permissions = fs::metadata(&card).map_err(disk("read", &card))?.permissions();
        fs::set_permissions(&path, permissions).map_err(disk("write", &path))?;
        write_file(&out.join("tokenizer.json"), self.tokenizer.as_bytes())?;
        let Some(spec) = &self.manifest.decoder()? else { return Ok(()) };

        let json = |name: &str, value: serde_json::Value| {
            write_file(&out.join(name), format!("{value:#}\n").as_bytes())
        };
        let (special, source) = (self.special(), self.source());
        match lora {
            Some(lora) => json("adapter_config.json", adapter_config(&lora, self.base()))?,
            None => json("config.json", model_config(spec, &special, precision, source))?,
        }
        // Adapters need this file too, because the base model may not define where turns end.
        let stops = self.stops(&special)?;
        json("generation_config.json", generation_config(spec, &special, &stops, source))?;
        let chat = &self.manifest.chat;
        json("tokenizer_config.json", tokenizer_config(spec, &special, chat, self.tokenizer, source))
    }

    /// Writes the model as GGUF, and its card.
    fn write_gguf(
        &self,
        out: &Path,
        name: &str,
        layout: &Layout,
        kind: TensorType,
    ) -> Result<(), ServerError> {
        let no_model = || ServerError::Internal { what: "only a decoder is exported as GGUF".to_owned() };
        let spec = self.manifest.decoder()?.ok_or_else(no_model)?.base();
        let (special, source, chat) = (self.special(), self.source(), &self.manifest.chat);
        let kept = source.and_then(|source| source.card.license.as_deref());
        let context = positions(&spec, source);
        let licence = self.form.licence.or(kept);
        let mut metadata = Description { name, licence, spec: &spec, context, kind }.entries();
        let vocabulary = GgufVocabulary {
            tokenizer: self.tokenizer,
            rows: spec.vocab,
            bos: special.bos,
            pad: special.pad,
            stops: &self.stops(&special)?,
            template: chat.template.as_deref(),
            tool_template: chat.tool_use.as_deref(),
        };
        let entries = vocabulary.entries();
        metadata.extend(entries.map_err(|error| ServerError::Tokenizer { why: error.to_string() })?);
        write_file(&out.join("README.md"), self.card(name)?.as_bytes())?;
        [&OF_THE_MODEL[..], &OF_ADAPTERS, &OF_TRANSFORMERS]
            .iter()
            .try_for_each(|names| remove(out, names))?;
        whole_file(&out.join(GGUF), |made| write_gguf(made, &spec, layout, self.theta, kind, &metadata))
    }

    /// Returns the adapters to write, unless they are merged.
    fn adapters(&self) -> Result<Option<LoraSpec>, ServerError> {
        Ok(self.manifest.decoder()?.filter(|_| !self.form.merged).and_then(|decoder| decoder.lora))
    }

    /// Returns the tensors to write, under their exported names.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit such a model.
    fn layout(&self) -> Result<Layout, ServerError> {
        let no_model =
            |error: String| ServerError::Internal { what: format!("the run has no model: {error}") };
        let layout = match (self.manifest.decoder()?, self.form.merged) {
            (Some(decoder), true) => layout(&decoder.base()).map_err(|error| no_model(error.to_string()))?,
            _ => self.manifest.layout()?,
        };
        if self.theta.len() != layout.len() {
            let what = "the parameters do not fit the run's model".into();
            return Err(ServerError::Internal { what });
        }
        match self.adapters()? {
            Some(_) => peft_layout(&layout).map_err(|error| no_model(error.to_string())),
            None => Ok(layout),
        }
    }

    /// Returns the name of the folder that the run started from.
    fn folder(&self) -> Option<&str> {
        self.manifest.init.as_ref().map(|initial| &*initial.folder)
    }

    /// Returns the base model as libraries load it: the one in the options, else its name on the hub, else its folder.
    fn base(&self) -> Option<&str> {
        let id = self.source().and_then(|source| source.id.as_deref());
        let path = self.source().filter(|_| !self.form.is_public).map(|source| &*source.path);
        self.form.base.or(id).or(path).or_else(|| self.folder())
    }

    fn special(&self) -> SpecialTokens {
        self.manifest.init.as_ref().map(|initial| initial.special.clone()).unwrap_or_default()
    }

    /// Returns the settings of the folder that the run started from.
    fn source(&self) -> Option<&SourceSettings> {
        self.manifest.init.as_ref().and_then(|initial| initial.source.as_deref())
    }

    /// Returns all tokens at which the model stops writing.
    ///
    /// # Errors
    /// `Tokenizer`: the run's tokenizer cannot be read.
    fn stops(&self, special: &SpecialTokens) -> Result<Vec<u32>, ServerError> {
        let chat = &self.manifest.chat;
        match chat.has_template() {
            false => Ok(special.stops()),
            // Only the template needs the tokenizer.
            true => {
                let vocabulary = Vocabulary::from_json(self.tokenizer.as_bytes())?;
                Ok(Stops::new(special.stops(), chat, &vocabulary).tokens)
            }
        }
    }

    fn card(&self, folder: &str) -> Result<String, ServerError> {
        let manifest = self.manifest;
        let decoder = manifest.decoder()?;
        let card = Card {
            run: &manifest.run.to_string(),
            spec: &manifest.spec,
            model: decoder.as_ref(),
            params: self.theta.len() as u64,
            merged: self.form.merged,
            gguf: matches!(self.form.format, Format::Gguf(_)).then_some(GGUF),
            text: &manifest.text,
            init: self.folder(),
            source: self.source(),
            base: self.base(),
            folder,
            course: self.course,
            licence: self.form.licence,
            date: &date(),
        };
        Ok(card.to_markdown())
    }

    /// Returns the export as one file: an uncompressed ZIP archive with entries `name/…`, since parameters hardly
    /// compress. The archive is a temporary file in `dir`, deleted when it is closed. Only the parameters are held in
    /// memory. Returns `None` if `is_cancelled` becomes true meanwhile.
    ///
    /// # Errors
    /// - `Internal`: the parameters do not fit such a model.
    /// - `Disk`: a file cannot be written, or too little disk space would be left for the run itself.
    /// - `Tokenizer`: the run's tokenizer cannot be read.
    pub(crate) fn archive(
        &self,
        dir: &Path,
        name: &str,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<File>, ServerError> {
        let needed = ARCHIVE_ROOM * size_of_val(self.theta) as u64 + self.tokenizer.len() as u64;
        if let Some(free) = free_bytes(dir).filter(|free| *free < needed) {
            let why = format!("an archive needs {} free on the disk, but {} are", Bytes(needed), Bytes(free));
            return Err(disk("write an archive in", dir)(std::io::Error::new(ErrorKind::StorageFull, why)));
        }
        let folder = temporary().tempdir_in(dir).map_err(disk("make a folder in", dir))?;
        self.write(folder.path(), name)?;
        zip(folder.path(), tempfile::tempfile_in(dir).map_err(disk("write", dir))?, name, is_cancelled)
            .map_err(disk("write an archive in", dir))
    }
}

/// Removes files from the folder `out`, as far as they exist.
fn remove(out: &Path, names: &[&str]) -> Result<(), ServerError> {
    for path in names.iter().map(|name| out.join(name)).filter(|path| path.exists()) {
        fs::remove_file(&path).map_err(disk("remove", &path))?;
    }
    Ok(())
}

/// Free disk space that an archive needs, in bytes per byte of parameters: one for the folder, one for the archive,
/// and three for the run's next snapshot.
const ARCHIVE_ROOM: u64 = 5;

/// Bytes copied into an archive between two checks for cancellation.
const COPIED_BYTES: u64 = 4 << 20;

fn zip(
    folder: &Path,
    archive: File,
    name: &str,
    is_cancelled: &dyn Fn() -> bool,
) -> std::io::Result<Option<File>> {
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
        while std::io::copy(&mut file.by_ref().take(COPIED_BYTES), &mut zip)? > 0 {
            if is_cancelled() {
                return Ok(None);
            }
        }
        // Deleted at once, so that the disk does not hold the data twice.
        fs::remove_file(&path)?;
    }
    let mut archive = zip.finish()?;
    archive.rewind()?;
    Ok(Some(archive))
}

/// Returns the parameters of `states`, `[layout.len()]`.
///
/// # Errors
/// `Internal`: the parameters belong to another model than `layout`.
pub(crate) fn flat(
    states: &[FragmentState],
    spec: &RunSpec,
    layout: &Layout,
) -> Result<Vec<f32>, ServerError> {
    let count = spec.exchange.fragments.try_into().unwrap_or(std::num::NonZeroU16::MIN);
    let fragments = Fragments::plan(layout, count);
    let fits = |(p, state): (_, &FragmentState)| fragments.len(p) == state.theta.len();
    if usize::from(fragments.count()) != states.len() || !fragments.ids().zip(states).all(fits) {
        let what = "the fragments do not fit the run's model".into();
        return Err(ServerError::Internal { what });
    }
    let mut theta = vec![0.0; layout.len()];
    for (p, state) in fragments.ids().zip(states) {
        fragments.scatter(p, &state.theta, &mut theta);
    }
    Ok(theta)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an interrupted export does not block the next one, and files of others still do.
    #[test]
    fn remains_of_an_export_are_not_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let (out, run) = (dir.path(), RunId(7));
        fs::create_dir(out.join(".archipelago-tmp-Ab12Yz")).unwrap();
        fs::write(out.join(".archipelago-tmp-README.md"), "half").unwrap();
        free(out, run).unwrap();
        fs::write(out.join("README.md"), format!("the card of run {run}")).unwrap();
        free(out, run).unwrap();
        fs::write(out.join("notes.txt"), "mine").unwrap();
        assert!(matches!(free(out, run), Err(ServerError::OutTaken { found, .. }) if found == "notes.txt"));
        let why = free(&out.join("notes.txt"), run).unwrap_err().to_string();
        assert!(why.ends_with("is a file: give --out a folder"), "{why}");
    }
}
