//! Facts about a run before it starts, as reported by `validate` and at the start of `serve`.

use std::path::{Path, PathBuf};

use archipelago_cli::Bytes;
use archipelago_core::data::BYTE_VOCAB;
use archipelago_core::diloco::Layout;
use archipelago_core::model::FrozenWeights;
use archipelago_core::wire::RunSpec;

use super::internal;
use crate::config::ServeConfig;
use crate::corpus::{Corpus, Vocabulary};
use crate::errors::ServerError;
use crate::initial_model::Origin;
use crate::status::AdapterFacts;
use crate::store::{Store, free_bytes};

/// Size of a snapshot, in bytes per parameter.
const SNAPSHOT_BYTES: u64 = 12;
/// Maximum number of snapshots in the folder: two kept ones, and one in progress.
const SNAPSHOTS: u64 = 3;
/// Disk space for the initial model that the run's folder keeps, in bytes per parameter.
const INITIAL_BYTES: u64 = 4;
/// Disk space of the tape beyond the limit `--keep`, in bytes, for its segments and its log.
const TAPE_BYTES: u64 = 68 << 20;
/// Disk space for decisions that are kept even if `--keep` is lower, in bytes.
const ROWS_BYTES_MIN: u64 = 64 << 20;

/// Facts about a run that `validate` reports.
#[derive(Clone, Debug)]
pub struct PlanFacts {
    /// Number of trained parameters.
    pub params: u64,
    /// Facts about the adapters; `None` if the run trains all weights.
    pub adapters: Option<AdapterFacts>,
    /// Facts about the text.
    pub text: TextFacts,
    /// Disk space that the run needs.
    pub room: Room,
    /// True if the folder already holds this run.
    pub resumes: bool,
    /// Warnings for the owner, one sentence each.
    pub warnings: Vec<String>,
}

/// Facts about the text of a run.
#[derive(Clone, Debug)]
pub struct TextFacts {
    /// Description of how the files were read.
    pub read_as: String,
    /// Number of documents; `None` for plain text.
    pub documents: Option<u64>,
    /// Number of documents that are longer than a window.
    pub longer: u64,
    /// Number of training tokens.
    pub tokens: u64,
    /// Number of training tokens that are targets of the loss. Others are masked and serve as context only.
    pub targets: u64,
    /// Number of held-out tokens.
    pub held_out: u64,
    /// Tokens in a window.
    pub context: u32,
    /// Number of steps that one learner needs for a pass over the text.
    pub steps: u64,
    /// Number of passes over the text until the run stops; `None` if no stop is set.
    pub passes: Option<f64>,
}

impl TextFacts {
    pub(super) fn of(corpus: &Corpus, spec: &RunSpec, stop_tokens: u64) -> Self {
        let (context, batch) = (spec.model.context, spec.inner.batch);
        let pass = corpus.windows(context) * u64::from(context);
        Self {
            read_as: corpus.read_as.clone(),
            documents: corpus.documents(),
            longer: corpus.documents_longer(context),
            tokens: corpus.tokens(),
            targets: corpus.targets,
            held_out: corpus.held_out.len() as u64,
            context,
            steps: corpus.steps(context, batch),
            passes: (stop_tokens > 0 && pass > 0).then(|| stop_tokens as f64 / pass as f64),
        }
    }

    /// Returns the facts as two sentences.
    #[must_use]
    pub fn describe(&self) -> [String; 2] {
        let Self { read_as, tokens, targets, longer, context, steps, .. } = self;
        let read = match self.documents {
            Some(_) => format!(
                "{read_as}, {targets} of {tokens} tokens learnt, {longer} of the documents longer than a window of \
                 {context} tokens"
            ),
            None => format!("{read_as}, windows of {context} tokens"),
        };
        let steps = if *steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        let pass = match self.passes {
            Some(passes) => format!(
                "a pass over the text is {steps} of one learner; the run stops after {passes:.1} passes"
            ),
            None => format!("a pass over the text is {steps} of one learner; no stop is set"),
        };
        [read, pass]
    }
}

/// Disk space that a run needs, and that its disk has, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    dir: PathBuf,
    /// Disk space that the run may eventually need. Updates merged between two snapshots are not included.
    pub needed: u64,
    /// Disk space that the run needs in any case, for its snapshots, its initial model and its frozen weights.
    pub least: u64,
    /// Free space on the disk; `None` if the system does not report it.
    pub free: Option<u64>,
}

impl Room {
    pub(super) fn of(config: &ServeConfig, params: u64, frozen: u64) -> Self {
        let initial = if config.initial.init.is_some() || config.initial.params.is_some() {
            INITIAL_BYTES * params
        } else {
            0
        };
        let least = SNAPSHOTS * SNAPSHOT_BYTES * params + initial + frozen;
        let keep = config.keep.0;
        let tape = keep.saturating_add(keep.max(ROWS_BYTES_MIN)).saturating_add(TAPE_BYTES);
        Self {
            dir: config.server.dir.clone(),
            needed: least.saturating_add(tape),
            least,
            free: free_near(&config.server.dir),
        }
    }

    /// Describes the disk space in a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        let free = self.free.map_or_else(|| "unknown".to_owned(), |free| Bytes(free).to_string());
        let (least, needed) = (Bytes(self.least), Bytes(self.needed));
        format!(
            "{} takes {least} for snapshots and up to {needed} with its tape; {free} free",
            self.dir.display()
        )
    }

    /// Returns true if the disk has enough space for the run's snapshots and models.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.free.is_none_or(|free| free >= self.least)
    }

    /// Returns a warning if the run may fill the disk.
    pub(super) fn warning(&self) -> Option<String> {
        let free = self.free.filter(|free| *free < self.needed)?;
        Some(format!(
            "{} may come to take {}, but {} is free on its disk: lower --keep, free some space, or give --dir a \
             folder on another disk",
            self.dir.display(),
            Bytes(self.needed),
            Bytes(free)
        ))
    }
}

/// Returns the disk space for a run with `config`, as far as its settings and its folder determine it.
///
/// # Errors
/// - `Preset`, `Setting`, `Config`, `Init`, `Tokenizer`: the settings describe no valid run.
/// - `DirCorrupt`, `Disk`: the run's folder cannot be read.
pub fn room(config: &ServeConfig) -> Result<Room, ServerError> {
    let there = Store::open_read_only(&config.server.dir).manifest()?;
    let origin = Origin::of(config, there.as_ref())?;
    let tokens = match &config.tokenizer {
        Some(path) => Vocabulary::read(path)?.size(),
        None => config.identity.vocab.unwrap_or(0).max(BYTE_VOCAB),
    };
    let layout = Layout::of(&origin.model(config, tokens)?).map_err(internal)?;
    let frozen = match origin.adapters(config)? {
        Some(decoder) => FrozenWeights::bytes_len(&decoder, config.lora.frozen).map_err(internal)?,
        None => 0,
    };
    Ok(Room::of(config, layout.len() as u64, frozen))
}

/// Returns the free bytes on the disk of `dir`, or of its nearest existing ancestor.
fn free_near(dir: &Path) -> Option<u64> {
    let is_there = |dir: &&Path| dir.is_dir();
    let there = dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()).find(is_there);
    free_bytes(there.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_too_small_for_snapshots_or_for_the_tape() {
        let room = |free| Room { dir: "runs/a".into(), needed: 3 << 30, least: 1 << 30, free };
        assert!(
            !room(Some(1 << 29)).is_enough() && room(Some(1 << 30)).is_enough() && room(None).is_enough()
        );
        assert_eq!(room(Some(3 << 30)).warning(), None);
        let warning = room(Some(1 << 31)).warning().unwrap();
        assert!(
            warning.contains("runs/a may come to take 3") && warning.contains("lower --keep"),
            "{warning}"
        );
    }

    /// Goal: the initial parameters that the run's folder stores count, wherever they come from.
    #[test]
    fn given_parameters_take_room() {
        let least = |config: &ServeConfig| Room::of(config, 1_000, 7).least;
        let seeded = ServeConfig::default();
        let init = ServeConfig::default().with(|it| it.initial.init = Some("folder".into()));
        let params = ServeConfig::default().with(|it| it.initial.params = Some("file.safetensors".into()));
        assert_eq!([&seeded, &init, &params].map(least), [36_007, 40_007, 40_007]);
    }

    #[test]
    fn a_text_is_described_by_documents_and_passes() {
        let facts = TextFacts {
            read_as: "9 documents (\"text\")".into(),
            documents: Some(9),
            longer: 2,
            tokens: 1_000,
            targets: 600,
            held_out: 50,
            context: 64,
            steps: 1,
            passes: Some(12.34),
        };
        let [read, pass] = facts.describe();
        assert_eq!(
            read,
            "9 documents (\"text\"), 600 of 1000 tokens learnt, 2 of the documents longer than a window of 64 tokens"
        );
        assert_eq!(pass, "a pass over the text is 1 step of one learner; the run stops after 12.3 passes");
    }
}
