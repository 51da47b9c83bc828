//! From settings to a syncer that is ready to serve: begun anew, or gone on with.

use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;

use archipelago::diloco::syncer::{Syncer, SyncerConfig};
use archipelago::diloco::{Codec, Fragments, Layout, RunId};
use archipelago::model::{self, Preset};
use archipelago::wire::{Invite, RunSpec};
use archipelago_cli::Bytes;

use crate::clock::unix_s;
use crate::config::{self, ServeConfig, preset, run_spec, syncer_config};
use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::evaluate::Evaluator;
use crate::links::origin;
use crate::memory::available_bytes;
use crate::status::{Carried, Facts};
use crate::store::{FORMAT, Manifest, Snapshot, Store, random_u64};

/// Everything that a server needs before it answers.
pub(crate) struct Prepared {
    /// The core.
    pub(crate) syncer: Syncer,
    /// The text.
    pub(crate) corpus: Arc<Corpus>,
    /// The run's folder.
    pub(crate) store: Arc<Store>,
    /// Totals of earlier starts of the same run.
    pub(crate) carried: Carried,
    /// What measures the held-out loss, unless that is switched off.
    pub(crate) evaluator: Option<Evaluator>,
    /// What the status tells and what never changes.
    pub(crate) facts: Facts,
    /// What admin requests must show.
    pub(crate) admin_token: String,
    /// What learners must show, if anything.
    pub(crate) invite: Option<Invite>,
    /// Largest body that a learner has reason to send.
    pub(crate) body_bytes_max: u32,
    /// Whether an earlier start is gone on with.
    pub(crate) resumed: bool,
}

/// Copies of the parameters in memory at most: Θ, Θ̂, momentum, two of them in a snapshot under way, and Θ
/// once more to be measured.
const COPIES: u64 = 6;

/// Bytes of an update beside its body, and of any short message, with room to spare.
const SHORT_BODY_BYTES_MAX: usize = 32 << 10;

/// What a run with some settings would be: the settings checked, the data read, and what its folder holds already.
pub(crate) struct Plan<'a> {
    config: &'a ServeConfig,
    preset: Preset,
    syncer_config: SyncerConfig,
    store: Store,
    corpus: Corpus,
    spec: RunSpec,
    layout: Layout,
    body_bytes_max: u32,
    found: Option<Snapshot>,
}

impl<'a> Plan<'a> {
    /// Checks the settings, reads the data, and looks into the folder, which `open` opens: [`Store::open`] to work in
    /// it afterwards, [`Store::look`] to leave it to others.
    ///
    /// # Errors
    /// - Those of `open`, [`Corpus::load`], [`Store::latest`] and [`run_spec`].
    /// - `Preset`, `Setting`, `Config`: a setting is wrong.
    /// - `DataTooSmall`, `Memory`: the data or this machine is too small for the run.
    /// - `OtherRun`: the folder holds a run with other settings or another corpus.
    pub(crate) fn of(
        config: &'a ServeConfig,
        open: impl FnOnce(&Path) -> Result<Store, ServerError>,
    ) -> Result<Self, ServerError> {
        // What costs nothing is checked first.
        let preset = preset(config)?;
        let syncer_config = syncer_config(config)?;
        config::invite(config)?;
        public_origin(config)?;
        let store = open(&config.dir)?;
        let kept = store.tokenizer_path();
        let corpus = Corpus::load(config, kept.exists().then_some(kept.as_path()))?;
        let spec = run_spec(config, corpus.vocabulary.size(), corpus.spec.clone())?;
        corpus.check_size(spec.model.context, spec.inner.batch)?;
        let layout = layout(&spec)?;
        let body_bytes_max = body_bytes_max(&spec, &layout)?;
        check_memory(&layout)?;
        let found = find(&store, &spec, &corpus, &config.dir)?;
        Ok(Self { config, preset, syncer_config, store, corpus, spec, layout, body_bytes_max, found })
    }

    /// What `validate` tells of it.
    pub(crate) fn facts(&self) -> PlanFacts {
        PlanFacts {
            params: self.layout.len() as u64,
            tokens: self.corpus.tokens(),
            held_out: self.corpus.held_out.len() as u64,
            resumes: self.found.is_some(),
        }
    }

    /// Begins the run in its folder, or goes on with it.
    ///
    /// A snapshot is written before this returns: what learners are told from now on must never be told
    /// again with another meaning.
    ///
    /// # Errors
    /// - `Disk`: the folder cannot be written.
    /// - `Config`: the syncer refuses the settings.
    /// - `Internal`, `System`: the program or the system fails.
    pub(crate) fn open(self) -> Result<Prepared, ServerError> {
        let Self { config, preset, syncer_config, store, corpus, spec, layout, body_bytes_max, found } = self;
        let resumed = found.is_some();
        let (syncer, carried) = match found {
            Some(Snapshot { record, states, carried }) => {
                let syncer = Syncer::restore(record, &layout, syncer_config, states, unix_s());
                (syncer.map_err(internal)?, carried)
            }
            None => (begin(&store, &corpus, &spec, &layout, syncer_config)?, Carried::default()),
        };
        let record = syncer.record().expect("nothing is being merged yet");
        let states = syncer.states().cloned().collect();
        store.save(&Snapshot { record, states, carried: carried.clone() })?;

        let evaluator = match config.no_eval {
            true => None,
            false => Evaluator::new(&spec.model, layout.len() as u64, &corpus, spec.seed)?,
        };
        Ok(Prepared {
            body_bytes_max,
            facts: facts(config, preset.name(), &corpus, &spec),
            admin_token: store.admin_token(config.admin_token.as_deref())?,
            invite: store.invite(config.invite.as_deref())?,
            syncer,
            corpus: Arc::new(corpus),
            store: Arc::new(store),
            carried,
            evaluator,
            resumed,
        })
    }
}

/// What `validate` tells of a run.
#[derive(Clone, Copy, Debug)]
pub struct PlanFacts {
    /// Parameters of the model.
    pub params: u64,
    /// Tokens to train on.
    pub tokens: u64,
    /// Tokens held out.
    pub held_out: u64,
    /// Whether the folder holds this run already.
    pub resumes: bool,
}

/// Checks settings, data and the run's folder, and changes nothing.
///
/// # Errors
/// - `Preset`, `Setting`, `Config`: a setting is wrong.
/// - `DataUnreadable`, `DataEmpty`, `DataBinary`, `Tokenizer`: the data or the tokenizer cannot be used.
/// - `DataTooSmall`, `Memory`: the data or this machine is too small for the run.
/// - `DirCorrupt`, `Disk`, `OtherRun`: the folder cannot be read, or holds another run.
pub fn validate(config: &ServeConfig) -> Result<PlanFacts, ServerError> {
    Plan::of(config, |dir| Ok(Store::look(dir))).map(|plan| plan.facts())
}

/// What learners of the run must show, if anything; it is made now if `config` asks for that.
///
/// # Errors
/// - `Config`: the invite asked for is none.
/// - `Disk`, `System`: it cannot be made or kept.
pub fn invite(config: &ServeConfig) -> Result<Option<Invite>, ServerError> {
    config::invite(config)?;
    Store::look(&config.dir).invite(config.invite.as_deref())
}

/// A new run in the folder of `store`.
fn begin(
    store: &Store,
    corpus: &Corpus,
    spec: &RunSpec,
    layout: &Layout,
    config: SyncerConfig,
) -> Result<Syncer, ServerError> {
    let run = RunId(random_u64()?);
    let manifest = Manifest { format: FORMAT, run, corpus: corpus.hash.clone(), spec: spec.clone() };
    let theta = model::init(&spec.model, spec.seed).map_err(internal)?;
    let syncer = Syncer::new(run, spec.clone(), config, layout, &theta);
    let syncer = syncer.map_err(|error| ServerError::Config { why: error.to_string() })?;
    store.begin(&manifest, &corpus.vocabulary.to_json())?;
    Ok(syncer)
}

/// The snapshot to go on from, if the folder holds this run.
fn find(store: &Store, spec: &RunSpec, corpus: &Corpus, dir: &Path) -> Result<Option<Snapshot>, ServerError> {
    let Some(there) = store.manifest()? else { return Ok(None) };
    let here = Manifest { format: FORMAT, run: there.run, corpus: corpus.hash.clone(), spec: spec.clone() };
    if let Some(difference) = there.difference(&here) {
        return Err(ServerError::OtherRun { dir: dir.to_owned(), difference });
    }
    store.latest(there.run)
}

/// Better to refuse than to be killed for memory in the middle of a run.
fn check_memory(layout: &Layout) -> Result<(), ServerError> {
    let needed = COPIES * size_of::<f32>() as u64 * layout.len() as u64;
    match available_bytes() {
        Some(available) if needed > available => {
            Err(ServerError::Memory { needed: Bytes(needed), available: Bytes(available) })
        }
        _ => Ok(()),
    }
}

fn body_bytes_max(spec: &RunSpec, layout: &Layout) -> Result<u32, ServerError> {
    let codec = Codec::new(&spec.exchange).map_err(internal)?;
    let count = NonZeroU16::new(spec.exchange.fragments).unwrap_or(NonZeroU16::MIN);
    let fragments = Fragments::plan(layout, count);
    let body = |p| codec.body_bytes(fragments.segments(p).unwrap_or_default());
    let largest = fragments.ids().map(body).max().unwrap_or(0) + SHORT_BODY_BYTES_MAX;
    let most = archipelago::wire::BODY_BYTES_MAX;
    match u32::try_from(largest).ok().filter(|largest| *largest <= most) {
        Some(largest) => Ok(largest),
        None => {
            let why = format!(
                "a fragment takes {largest} bytes on the wire, at most {most} fit: raise --fragments"
            );
            Err(ServerError::Config { why })
        }
    }
}

/// Checks the link that the owner gave, if one was given.
fn public_origin(config: &ServeConfig) -> Result<(), ServerError> {
    config.public_url.as_deref().map_or(Ok(()), |link| origin(link).map(drop))
}

fn facts(config: &ServeConfig, preset: &str, corpus: &Corpus, spec: &RunSpec) -> Facts {
    let source = config.data.as_deref().and_then(Path::file_name);
    Facts {
        preset: preset.to_owned(),
        corpus: source.map_or_else(|| "built-in grammar".into(), |name| name.to_string_lossy().into_owned()),
        corpus_tokens: corpus.tokens(),
        bytes_per_token: corpus.bytes_per_token,
        entropy_floor: corpus.entropy_floor.map(|floor| floor * corpus.bytes_per_token),
        total_tokens: spec.inner.total_tokens,
        invite_required: config.invite.is_some(),
        classroom: config.classroom,
        links: Vec::new(),
    }
}

/// The layout of a spec.
///
/// # Errors
/// `Internal`: the spec is no model.
pub fn layout(spec: &RunSpec) -> Result<Layout, ServerError> {
    model::layout(&spec.model).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> ServerError {
    ServerError::Internal { what: format!("the run cannot be set up: {error}") }
}
