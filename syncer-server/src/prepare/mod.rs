//! Preparation of a run: from settings to a syncer that can be served, new or resumed.

mod ahead;
mod checks;
mod facts;
mod folder;
mod shared;

use std::path::Path;
use std::sync::Arc;

use archipelago_core::data::encode_held_out;
use archipelago_core::diloco::syncer::{Syncer, SyncerConfig};
use archipelago_core::diloco::{Layout, RunId};
use archipelago_core::model::{FrozenWeights, ModelSpec};
use archipelago_core::wire::RunSpec;
use axum::body::Bytes;

use crate::admin_token::AdminToken;
use crate::admission::{self, Admission};
use crate::clock::unix_s;
use crate::config::{
    BuiltIn, DataSource, SETTINGS_FILE, ServeConfig, StoredSettings, run_spec, syncer_config,
};
use crate::corpus::{self, Corpus, TextConventions, Vocabulary};
use crate::errors::ServerError;
use crate::evaluate::Evaluator;
use crate::initial_model::{FrozenBase, Origin, StartingPoint};
use crate::invites::InviteStore;
use crate::llama::Chat;
use crate::progress::Cancellation;
use crate::status::{AdapterFacts, RunFacts, RunStatistics};
use crate::store::{HeldOut, Initial, Manifest, Snapshot, Store, decoder, random_u64, write_private};
use crate::tape::{Writer, has_bodies, recover};

pub use ahead::{adapters, invite, owner_token, validate};
pub(crate) use ahead::{membership, to_lead};
pub(crate) use checks::alert_terms;
pub use facts::{PlanFacts, Room, TextFacts, room};
use folder::{begin, find, manifest};
pub(crate) use shared::Shared;

/// A run that is ready to be served.
pub(crate) struct Prepared {
    /// State machine of the run.
    pub(crate) syncer: Syncer,
    /// State that all processes of a cluster share, if this process is in a cluster.
    pub(crate) shared: Option<Shared>,
    /// Tokenised text.
    pub(crate) corpus: Arc<Corpus>,
    /// Folder of the run.
    pub(crate) store: Arc<Store>,
    /// Statistics of earlier starts of the same run.
    pub(crate) statistics: RunStatistics,
    /// Model, if it is the built-in decoder.
    pub(crate) decoder: Option<ModelSpec>,
    /// Frozen weights, if the run trains adapters.
    pub(crate) frozen: Option<Arc<FrozenWeights>>,
    /// Encoded held-out windows for downloads, if any text is held out.
    pub(crate) held_out: Option<Bytes>,
    /// Evaluator of the held-out loss, unless evaluation is switched off or impossible.
    pub(crate) evaluator: Option<Evaluator>,
    /// Constant facts for the status.
    pub(crate) facts: RunFacts,
    /// The owner's token, which admin requests must have.
    pub(crate) owner: AdminToken,
    /// Admission rules for learners.
    pub(crate) admission: Admission,
    /// Maximum size of a message body from an honest learner, in bytes.
    pub(crate) body_bytes_max: u32,
    /// True if the run resumes an earlier start.
    pub(crate) resumed: bool,
    /// For the first start of a fork: the original run, and its last decision before the fork.
    pub(crate) forked: Option<(RunId, u64)>,
    /// Writer of the core's decisions.
    pub(crate) tape: Writer,
    /// Number of the last decision in the snapshot that the run resumes from.
    pub(crate) snapshot_seq: Option<u64>,
}

/// A run before it is opened: checked settings, loaded data, and the content of its folder.
pub(crate) struct Plan<'a> {
    config: &'a ServeConfig,
    origin: Arc<Origin>,
    /// Initial parameters, if they had to be loaded for the checks. They may be large.
    beginning: Option<StartingPoint>,
    /// Frozen weights, if they had to be read for the checks.
    frozen: Option<Arc<FrozenWeights>>,
    syncer_config: SyncerConfig,
    store: Store,
    chat: Chat,
    corpus: Corpus,
    spec: RunSpec,
    layout: Layout,
    body_bytes_max: u32,
    found: Option<Snapshot>,
}

impl<'a> Plan<'a> {
    /// Checks the settings, reads the data and inspects the folder. `open` opens the folder: [`Store::open`] if it will
    /// be written, [`Store::open_read_only`] if it is only read.
    ///
    /// # Errors
    /// - Those of `open`, [`corpus::read`], [`Corpus::load`], [`Store::latest`] and [`run_spec`].
    /// - `Init`: the run cannot start from the given folder.
    /// - `Preset`, `Setting`, `Config`: a setting is wrong.
    /// - `DataTooSmall`, `Memory`: the data or this machine is too small for the run.
    /// - `OtherRun`: the folder holds a run with other settings or another corpus.
    /// - `DirForeign`: the folder holds other files and no run.
    /// - `Cancelled`: the checks were cancelled.
    pub(crate) fn of(
        config: &'a ServeConfig,
        open: impl FnOnce(&Path) -> Result<Store, ServerError>,
        cancellation: &Cancellation,
    ) -> Result<Self, ServerError> {
        // Checks that read no data come first.
        checks::settings(config)?;
        let syncer_config = syncer_config(config)?;
        let store = open(&config.server.dir)?;
        let there = store.manifest()?;
        let contradiction = config.kept.as_ref().and_then(|kept| kept.contradiction.clone());
        if let Some(difference) = contradiction.filter(|_| there.is_some()) {
            return Err(ServerError::OtherRun { dir: config.server.dir.clone(), difference });
        }
        there.as_ref().map_or(Ok(()), |there| store.check_tokenizer(there))?;
        let origin = Arc::new(Origin::of(config, there.as_ref())?);
        let kept = store.tokenizer_path();
        let given = origin.tokenizer(&store).or_else(|| config.tokenizer.clone());
        let source = corpus::read(config)?;
        let chat = origin.chat(config, source.has_documents())?;
        let conventions = TextConventions {
            given: given.as_deref(),
            kept: kept.exists().then_some(kept.as_path()),
            chat: &chat,
            end: origin.end(),
            stops: &origin.stops(),
        };
        let corpus = Corpus::load(config, source, &conventions)?;
        cancellation.check()?;
        origin.check_tokens(&corpus)?;
        let model = origin.model(config, corpus.vocabulary.size())?;
        let FrozenBase { said, weights: frozen } = origin.frozen_base(config, &model)?;
        let spec = RunSpec { frozen: said, ..run_spec(config, model, corpus.spec.clone())? };
        corpus.check_size(spec.model.context, spec.inner.batch)?;
        let layout = layout(&spec)?;
        let body_bytes_max = checks::body_bytes_max(&spec, &layout)?;
        checks::memory(&config.server.cluster, &spec, &layout)?;
        // The parameters of a folder tell whether the run began with it.
        let beginning = match *origin {
            // A cluster process does not resume from a folder, and may lack memory for all parameters.
            Origin::Folder(_) | Origin::Own(_) if config.server.cluster.role.is_none() => {
                Some(origin.beginning(&store, &spec, &layout, cancellation)?)
            }
            _ => None,
        };
        let found = match there {
            Some(there) => {
                let init = match (&beginning, &*origin) {
                    (Some(beginning), _) => beginning.initial.clone(),
                    (None, Origin::Kept(_)) => there.init.clone(),
                    (None, _) => None,
                };
                find(&store, &there, init, &spec, &corpus)?
            }
            None => None,
        };
        Ok(Self {
            config,
            origin,
            beginning,
            frozen,
            syncer_config,
            store,
            chat,
            corpus,
            spec,
            layout,
            body_bytes_max,
            found,
        })
    }

    /// Returns the facts that `validate` reports about the run.
    pub(crate) fn facts(&self) -> PlanFacts {
        PlanFacts {
            params: self.layout.len() as u64,
            adapters: decoder(&self.spec.model)
                .ok()
                .flatten()
                .and_then(|it| adapter_facts(&self.spec, Some(&it))),
            text: self.text(),
            room: self.room(),
            resumes: self.found.is_some(),
            warnings: self.warnings(),
        }
    }

    /// Returns warnings for the owner, one sentence each.
    fn warnings(&self) -> Vec<String> {
        let of_text = self.corpus.warnings(self.spec.model.context, self.spec.inner.batch);
        // The required disk space includes files that a resumed run already has, so only a new run gets this warning.
        let of_room = self.found.is_none().then(|| self.room().warning()).flatten();
        of_text.into_iter().chain(of_room).collect()
    }

    fn text(&self) -> TextFacts {
        TextFacts::of(&self.corpus, &self.spec, self.config.live.stop_at_tokens)
    }

    fn room(&self) -> Room {
        let frozen = self.spec.frozen.as_ref().map_or(0, |frozen| frozen.bytes);
        Room::of(self.config, self.layout.len() as u64, frozen)
    }

    /// Creates the run in its folder, or resumes it.
    ///
    /// # Errors
    /// - `Disk`: the folder cannot be written or read.
    /// - `DirCorrupt`: the tape or the snapshots are missing or damaged.
    /// - `Config`: the syncer refuses the settings.
    /// - `Internal`, `System`: the program or the system fails.
    /// - `Cancelled`: the files of a new run were removed.
    pub(crate) fn open(mut self, cancellation: &Cancellation) -> Result<Prepared, ServerError> {
        cancellation.check()?;
        let shared = Shared::of(&self);
        self.log();
        if let Some(text) = self.config.kept.as_ref().and_then(StoredSettings::text) {
            write_private(&self.config.server.dir.join(SETTINGS_FILE), &text)?;
        }
        let frozen = self.frozen.take();
        let frozen = cancellation.writing(|| self.store.frozen_or(&self.spec, frozen))?;
        let snapshot_seq = self.found.as_ref().map(|found| found.seq);
        let has_tape = self.store.has_tape();
        let resumed = self.found.is_some() || has_tape;
        let manifest = self.store.manifest()?;
        let forked = manifest.as_ref().and_then(|manifest| manifest.forked).filter(|_| !has_tape);
        let (syncer, statistics, tape) = match self.start(manifest)? {
            Start::Resume(manifest, snapshot) => {
                self.resume(&manifest, snapshot.map(|snapshot| *snapshot))?
            }
            Start::Fork(snapshot) => self.begin_fork(*snapshot)?,
            Start::New => match &shared {
                Some(shared) => self.begin_process(shared)?,
                None => self.begin_run(cancellation)?,
            },
        };

        let Self { config, origin, store, corpus, spec, layout, body_bytes_max, .. } = self;
        ahead::check_stop(config, &syncer)?;
        let (held_out, decoder) = (held_out(&store, &corpus, &spec)?, decoder(&spec.model)?);
        let measured = decoder.map(|decoder| (decoder, frozen.clone()));
        let evaluator = evaluator(config, measured, held_out.clone(), &corpus, &layout)?;
        Ok(Prepared {
            body_bytes_max,
            admission: admission(config, &store, syncer.run())?,
            facts: facts(config, &origin, &corpus, &spec, decoder.as_ref()),
            owner: AdminToken::open(&store, config.start.admin_token.as_deref())?,
            syncer,
            shared,
            corpus: Arc::new(corpus),
            store: Arc::new(store),
            statistics,
            evaluator,
            decoder,
            frozen,
            held_out: held_out.map(|held_out| encode_held_out(&held_out.tokens).into()),
            resumed,
            forked,
            tape,
            snapshot_seq,
        })
    }

    /// Logs the settings, facts about text and disk space, and warnings.
    fn log(&self) {
        self.config.log_effective();
        let [read, pass] = self.text().describe();
        tracing::info!("{read}; {pass}; {}", self.room().describe());
        self.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    }

    /// Decides how the run starts, by the content of its folder. Takes the snapshot out of the plan.
    ///
    /// # Errors
    /// - `Config`: a run without a tape must be new.
    /// - `DirCorrupt`: the tape is missing.
    fn start(&mut self, manifest: Option<Manifest>) -> Result<Start, ServerError> {
        let tape_is_missing = |why: &str| ServerError::DirCorrupt {
            path: self.store.tape_path(),
            why: format!("it is missing, {why}: restore it"),
        };
        let is_new = manifest.is_none() && self.found.is_none();
        if self.config.server.without_tape_for_benchmarks && !is_new {
            let why = "a run without a tape is for benchmarks, and for an empty --dir".to_owned();
            return Err(ServerError::Config { why });
        }
        match (manifest, self.found.take()) {
            (Some(manifest), snapshot) if self.store.has_tape() => {
                Ok(Start::Resume(Box::new(manifest), snapshot.map(Box::new)))
            }
            (_, Some(Snapshot { seq: 1.., .. })) => {
                Err(tape_is_missing("with all decisions after the last snapshot"))
            }
            (_, Some(snapshot)) => Ok(Start::Fork(Box::new(snapshot))),
            (_, None) if has_bodies(&self.store) => {
                Err(tape_is_missing("and the files in bodies/ cannot be read without it"))
            }
            (_, None) => Ok(Start::New),
        }
    }

    /// Resumes the run after the last decision on its tape.
    fn resume(&self, manifest: &Manifest, snapshot: Option<Snapshot>) -> Result<Opened, ServerError> {
        // From here on, no other program can write to the tape.
        let mut tape = self.tape(manifest.run, false)?;
        let (recovered, _) = recover(&self.store, manifest, snapshot.as_ref())?;
        let syncer = Syncer::resume(recovered, &self.layout, self.syncer_config, unix_s());
        let saved = snapshot.map(|snapshot| snapshot.statistics).unwrap_or_default();
        let statistics = saved.later(tape.take_figures().unwrap_or_default());
        Ok((syncer.map_err(internal)?, statistics, tape))
    }

    /// Starts a fork, which has a snapshot and no tape.
    fn begin_fork(&self, snapshot: Snapshot) -> Result<Opened, ServerError> {
        let Snapshot { record, states, statistics, .. } = snapshot;
        let tape = self.tape(record.run, false)?;
        let syncer = Syncer::restore(record, &self.layout, self.syncer_config, states, unix_s());
        Ok((syncer.map_err(internal)?, statistics, tape))
    }

    /// Starts a process of a cluster. It never resumes from its folder. So the folder gets neither parameters nor their
    /// checksum, and this process writes no tape.
    fn begin_process(&self, shared: &Shared) -> Result<Opened, ServerError> {
        let init = self.origin.named(String::new);
        let manifest = self.manifest(shared.run, init);
        self.store.begin(&manifest, &self.corpus.tokenizer, None)?;
        Ok((shared.syncer()?, RunStatistics::default(), Writer::none()))
    }

    /// Creates a new run in an empty folder.
    fn begin_run(&mut self, cancellation: &Cancellation) -> Result<Opened, ServerError> {
        let StartingPoint { theta, initial } = match self.beginning.take() {
            Some(beginning) => beginning,
            None => self.origin.beginning(&self.store, &self.spec, &self.layout, cancellation)?,
        };
        let manifest = self.manifest(random_u64().map(RunId)?, initial);
        let (layout, config) = (&self.layout, self.syncer_config);
        let syncer = begin(&self.store, &self.corpus, &manifest, layout, config, &theta, cancellation)?;
        let tape = if self.config.server.without_tape_for_benchmarks {
            tracing::warn!("nothing is stored: this run is for benchmarks, and cannot be resumed");
            Writer::none()
        } else {
            self.tape(syncer.run(), true)?
        };
        Ok((syncer, RunStatistics::default(), tape))
    }

    fn tape(&self, run: RunId, is_new: bool) -> Result<Writer, ServerError> {
        Writer::start(&self.store, run, random_u64()?, is_new, self.config.keep.0)
    }

    fn manifest(&self, run: RunId, init: Option<Initial>) -> Manifest {
        manifest(&self.corpus, &self.spec, run, init, (self.chat.clone(), text_name(self.config)))
    }
}

/// Way in which a run starts.
enum Start {
    /// From its tape, and its newest snapshot if there is one.
    Resume(Box<Manifest>, Option<Box<Snapshot>>),
    /// From the snapshot that a fork copied from its original run.
    Fork(Box<Snapshot>),
    /// From initial parameters.
    New,
}

/// A syncer that can be served, statistics of earlier starts, and the writer of its tape.
type Opened = (Syncer, RunStatistics, Writer);

/// Returns the held-out windows, if any text is held out, and stores them in the run's folder.
fn held_out(store: &Store, corpus: &Corpus, spec: &RunSpec) -> Result<Option<HeldOut>, ServerError> {
    let held_out = HeldOut::of(&corpus.held_out, spec.model.context);
    held_out.as_ref().map_or(Ok(()), |held_out| store.keep_held_out(held_out))?;
    Ok(held_out)
}

/// Returns the evaluator of the held-out loss; `None` if it is switched off or no text is held out. Only the built-in
/// decoder can be evaluated.
fn evaluator(
    config: &ServeConfig,
    decoder: Option<(ModelSpec, Option<Arc<FrozenWeights>>)>,
    held_out: Option<HeldOut>,
    corpus: &Corpus,
    layout: &Layout,
) -> Result<Option<Evaluator>, ServerError> {
    let Some(((decoder, frozen), held_out)) = decoder.zip(held_out).filter(|_| !config.no_eval) else {
        return Ok(None);
    };
    let parameters = frozen.as_ref().map_or(layout.len(), |frozen| frozen.layout().len()) as u64;
    Evaluator::new(&decoder, frozen, parameters, held_out, corpus, config.identity.seed).map(Some)
}

/// Returns the admission rules of the run `run`, whose folder is that of `store`.
fn admission(config: &ServeConfig, store: &Store, run: RunId) -> Result<Admission, ServerError> {
    let terms = admission::Terms {
        run,
        by_invite: config.invite.is_some(),
        invite: store.invite(config.invite.as_deref())?,
    };
    Admission::new(terms, Arc::new(InviteStore::open(store.dir())?))
}

/// Returns the display name of the training text.
fn text_name(config: &ServeConfig) -> String {
    config.data.as_ref().map_or_else(|| BuiltIn::Grammar.title().to_owned(), DataSource::title)
}

fn facts(
    config: &ServeConfig,
    origin: &Origin,
    corpus: &Corpus,
    spec: &RunSpec,
    decoder: Option<&ModelSpec>,
) -> RunFacts {
    RunFacts {
        preset: config.identity.preset.clone(),
        init: origin.folder(),
        adapters: adapter_facts(spec, decoder),
        corpus: text_name(config),
        corpus_tokens: corpus.tokens(),
        bytes_per_token: corpus.bytes_per_token,
        token_is_byte: matches!(corpus.vocabulary, Vocabulary::Bytes),
        entropy_floor: corpus.entropy_floor.map(|floor| floor * corpus.bytes_per_token),
        total_tokens: spec.inner.total_tokens,
        invite_required: config.invite.is_some(),
        classroom: config.server.classroom,
        names_hidden: config.agreed.hide_names,
        links: Vec::new(),
    }
}

/// Returns facts about the adapters that a run with `spec` trains; `None` if it trains all weights.
fn adapter_facts(spec: &RunSpec, decoder: Option<&ModelSpec>) -> Option<AdapterFacts> {
    spec.frozen
        .as_ref()
        .zip(decoder)
        .and_then(|(said, decoder)| AdapterFacts::of(decoder, said.form, said.bytes))
}

/// Returns the layout of the model in `spec`.
///
/// # Errors
/// `Internal`: the spec has no valid model.
pub fn layout(spec: &RunSpec) -> Result<Layout, ServerError> {
    Layout::of(&spec.model).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> ServerError {
    ServerError::Internal { what: format!("the run cannot be set up: {error}") }
}
