//! From settings to a syncer that is ready to serve: begun anew, or gone on with.

use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;

use archipelago::diloco::syncer::Syncer;
use archipelago::diloco::{Codec, Fragments, Layout, RunId};
use archipelago::model;
use archipelago::wire::{Invite, RunSpec};
use archipelago_cli::Bytes;

use crate::config::{ServeConfig, invite, preset, run_spec, syncer_config};
use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::evaluate::Evaluator;
use crate::links::origin;
use crate::memory::available_bytes;
use crate::status::{Carried, Facts};
use crate::store::{FORMAT, Manifest, Snapshot, Store, random_u64};

/// Everything that a server needs before it answers.
pub struct Prepared {
    /// The core.
    pub syncer: Syncer,
    /// The text.
    pub corpus: Arc<Corpus>,
    /// The run's folder.
    pub store: Arc<Store>,
    /// What earlier starts added up.
    pub carried: Carried,
    /// What measures the held-out loss, unless that is switched off.
    pub evaluator: Option<Evaluator>,
    /// What never changes.
    pub facts: Facts,
    /// What admin requests must show.
    pub admin_token: String,
    /// What learners must show, if anything.
    pub invite: Option<Invite>,
    /// Largest body that a learner has reason to send.
    pub body_bytes_max: u32,
    /// Whether an earlier start is gone on with.
    pub resumed: bool,
}

/// Copies of the parameters in memory at most: Θ, Θ̂, momentum, two of them in a snapshot under way, and Θ
/// once more to be measured.
const COPIES: u64 = 6;

/// Bytes of an update beside its body, and of any short message, with room to spare.
const SHORT_BODY_BYTES_MAX: usize = 32 << 10;

/// Reads the data, opens the run's folder, and begins the run there or goes on with it.
///
/// A snapshot is written before this returns: what learners are told from now on must never be told
/// again with another meaning.
///
/// # Errors
/// Those of [`Corpus::load`], [`Store::open`], [`Store::latest`], [`run_spec`]; `DataTooSmall`; and
/// `OtherRun` if the folder holds a run with other settings or another corpus.
pub fn prepare(config: &ServeConfig) -> Result<Prepared, ServerError> {
    // What costs nothing is checked first.
    let preset = preset(config)?;
    let syncer_config = syncer_config(config)?;
    invite(config)?;
    public_origin(config)?;
    let store = Store::open(&config.dir)?;
    let kept = store.tokenizer_path();
    let corpus = Corpus::load(config, kept.exists().then_some(kept.as_path()))?;
    let spec = run_spec(config, corpus.vocabulary.size(), corpus.spec.clone())?;
    corpus.check_size(spec.model.context, spec.inner.batch)?;
    let layout = model::layout(&spec.model).map_err(internal)?;
    let body_bytes_max = body_bytes_max(&spec, &layout)?;
    check_memory(&layout)?;

    let found = find(&store, &spec, &corpus, &config.dir)?;
    let resumed = found.is_some();
    let (syncer, carried) = match found {
        Some(Snapshot { record, states, carried }) => {
            let syncer = Syncer::restore(record, &layout, syncer_config, states).map_err(internal)?;
            (syncer, carried)
        }
        None => {
            let manifest = Manifest {
                format: FORMAT,
                run: RunId(random_u64()?),
                corpus: corpus.hash.clone(),
                spec: spec.clone(),
            };
            let theta = model::init(&spec.model, spec.seed).map_err(internal)?;
            let syncer = Syncer::new(manifest.run, spec.clone(), syncer_config, &layout, &theta);
            let syncer = syncer.map_err(|error| ServerError::Config { why: error.to_string() })?;
            store.begin(&manifest, &corpus.vocabulary.to_json())?;
            (syncer, Carried::default())
        }
    };
    let record = syncer.record().expect("nothing is being merged yet");
    store.save(&Snapshot { record, states: syncer.states().cloned().collect(), carried: carried.clone() })?;

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

/// What `validate` found.
#[derive(Debug)]
pub struct Checked {
    /// Parameters of the model.
    pub params: u64,
    /// Tokens to train on.
    pub tokens: u64,
    /// Tokens held out.
    pub held_out: u64,
    /// Whether the folder holds this run already.
    pub resumes: bool,
}

/// Checks all that [`prepare`] does, and changes nothing.
///
/// # Errors
/// As [`prepare`].
pub fn check(config: &ServeConfig) -> Result<Checked, ServerError> {
    preset(config)?;
    syncer_config(config)?;
    invite(config)?;
    public_origin(config)?;
    let store = Store::look(&config.dir);
    let kept = store.tokenizer_path();
    let corpus = Corpus::load(config, kept.exists().then_some(kept.as_path()))?;
    let spec = run_spec(config, corpus.vocabulary.size(), corpus.spec.clone())?;
    corpus.check_size(spec.model.context, spec.inner.batch)?;
    let layout = model::layout(&spec.model).map_err(internal)?;
    body_bytes_max(&spec, &layout)?;
    check_memory(&layout)?;
    let found = find(&store, &spec, &corpus, &config.dir)?;
    Ok(Checked {
        params: layout.len() as u64,
        tokens: corpus.tokens(),
        held_out: corpus.held_out.len() as u64,
        resumes: found.is_some(),
    })
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

/// The layout of a spec, for `export`.
///
/// # Errors
/// `Internal`: the spec is no model.
pub fn layout(spec: &RunSpec) -> Result<Layout, ServerError> {
    model::layout(&spec.model).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> ServerError {
    ServerError::Internal { what: format!("the run cannot be set up: {error}") }
}
