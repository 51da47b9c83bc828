//! Fuzz targets. Those of a learner and of peers have their own files.

pub mod learner;
pub mod peer;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use archipelago_cli::{defaults, from_toml};
use archipelago_core::data::{ShardForm, ShardTokens, encode_shard, shard_spec};
use archipelago_core::diloco::tape::{Chain, Place, link};
use archipelago_core::diloco::{Codec, MergeClass, Segment};
use archipelago_core::token;
use archipelago_core::wire::{
    ApplyPolicy, Assembler, BODY_BYTES_MAX, Code, ExchangeSpec, PARTIALS_MAX, decode, encode,
};
use archipelago_sim::world::{Ailment, Damage, Fault, Loss, Poison};
use archipelago_tests::swarm::Swarm;
use rusqlite::{Connection, params};
use syncer_server::{
    PlaceArgs, ReplayArgs, ServeConfig, ServerError, TableArgs, inspect, replayed, validate,
};
use tempfile::TempDir;

use crate::script::{self, Script};

/// Largest magnitude that a code accepts.
const LARGEST: f32 = (1_u64 << 60) as f32;

/// Decodes the bytes as a body. A valid body has finite values of bounded size, and its norms match its values. Those
/// values, coded again, give a valid body.
pub fn codec(data: &[u8]) {
    let mut script = Script(data);
    let code = [Code::Int4, Code::E3m0, Code::F32, Code::Int2, Code::Int1][script.below(5)];
    let block = 8 * (1 + script.below(32) as u32);
    let apply = ApplyPolicy::Keep { residue: true };
    let spec = ExchangeSpec { fragments: 1, sync_every: 1, block, code, apply };
    let Ok(codec) = Codec::new(&spec) else { return };
    let (mut start, mut segments) = (0, Vec::new());
    for _ in 0..=script.below(3) {
        let len = 1 + script.below(200) as u32;
        segments.push(Segment { start, len, merge: MergeClass::Mean, cols: 0, expert: None });
        start += len;
    }
    let mut body = script.0.to_vec();
    let is_cut = body.len() != codec.body_bytes(&segments);
    let Ok(values) = codec.decode(&segments, &body) else {
        // Most bodies have the wrong length, and their content would never be decoded.
        if is_cut {
            body.resize(codec.body_bytes(&segments), 0);
            let _ = codec.decode(&segments, &body);
        }
        return;
    };
    assert_eq!(values.len(), start as usize);
    assert!(values.iter().all(|value| value.abs() <= 8.0 * LARGEST), "{values:?}");
    let checked = codec.check(&segments, body).expect("what can be decoded passes");
    let squares: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let norm = checked.norm();
    assert!((norm - squares.sqrt()).abs() <= 1e-6 * norm, "{norm} and {}", squares.sqrt());
    codec.decode(&segments, &codec.encode(&segments, &values)).expect("what we code we can read");
}

/// Names of the two files in the golden model.
const IMPORT_FILES: [&str; 2] = ["model-00001-of-00002.safetensors", "tokenizer.json"];

/// Changes or replaces one of [`IMPORT_FILES`], and checks whether a run could begin with it.
pub fn import(data: &[u8]) {
    static STAGE: OnceLock<Mutex<ImportStage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(ImportStage::new()));
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    let (which, bytes) = script::damaged(&mut Script(data), &stage.files);
    script::judge(validate(&stage.config(which, &bytes)));
}

/// Valid files, and a folder for a run.
struct ImportStage {
    dir: TempDir,
    files: [Vec<u8>; IMPORT_FILES.len()],
}

impl ImportStage {
    fn new() -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap(), files: script::read(IMPORT_FILES) };
        for (which, bytes) in stage.files.iter().enumerate() {
            validate(&stage.config(which, bytes)).expect("the files are fine as they are");
        }
        stage
    }

    /// Writes `bytes` to file `which`, and returns the settings of a new run that uses this file.
    fn config(&self, which: usize, bytes: &[u8]) -> ServeConfig {
        let file = self.dir.path().join(IMPORT_FILES[which]);
        fs::write(&file, bytes).unwrap();
        let mut config: ServeConfig = defaults(&[]);
        config.identity.preset = "tiny".into();
        config.data = Some(script::text().into());
        config.server.dir = self.dir.path().join("run");
        let to: &mut Option<PathBuf> =
            if which == 0 { &mut config.initial.params } else { &mut config.tokenizer };
        *to = Some(file);
        config
    }
}

const MODEL_FILES: [&str; 4] =
    ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"];

/// Changes one file of a valid model, and checks whether a run could begin with it.
pub fn model(data: &[u8]) {
    static STAGE: OnceLock<Mutex<ModelStage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(ModelStage::new()));
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    let (which, bytes) = script::damaged(&mut Script(data), &stage.files);
    let file = stage.model().join(MODEL_FILES[which]);
    fs::write(&file, bytes).unwrap();
    let found = validate(&stage.config());
    fs::write(&file, &stage.files[which]).unwrap();
    script::judge(found);
}

/// Valid model, and a folder for a run.
struct ModelStage {
    dir: TempDir,
    files: [Vec<u8>; MODEL_FILES.len()],
}

impl ModelStage {
    fn new() -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap(), files: script::read(MODEL_FILES) };
        fs::create_dir(stage.model()).unwrap();
        for entry in fs::read_dir(script::model()).unwrap().flatten() {
            fs::copy(entry.path(), stage.model().join(entry.file_name())).unwrap();
        }
        validate(&stage.config()).expect("the model is fine as it is");
        stage
    }

    fn model(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    fn config(&self) -> ServeConfig {
        let mut config: ServeConfig = defaults(&[]);
        config.initial.init = Some(self.model());
        config.data = Some(script::text().into());
        config.server.dir = self.dir.path().join("run");
        config
    }
}

/// Parses the bytes as a settings file. A refusal is one readable sentence.
pub fn settings(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Err(why) = from_toml::<ServeConfig>(text, &["runs".to_owned()]) {
        assert!(!why.trim().is_empty(), "{text:?} is refused without a word");
    }
}

/// Reads the bytes as a shard with a matching spec, and with a wrong one.
pub fn shard(data: &[u8]) {
    let mut script = Script(data);
    let first = script.byte();
    // High values of the first byte select masks.
    let form = ShardForm { token_bytes: first % 6, masks: first >= 240 };
    let vocab = u32::from(script.short()) << script.below(16);
    let extra = script.below(2) as u64;
    let bytes = script.0.to_vec();
    let Ok(mut spec) = shard_spec(&bytes, form) else { return };
    spec.tokens = spec.tokens.saturating_add(extra);
    let Ok(shard) = ShardTokens::parse(bytes.clone(), &spec, form, vocab) else { return };
    assert_eq!(shard.len(), spec.tokens as usize);
    let tokens: Vec<u32> = shard.iter(0).collect();
    assert!(tokens.len() == shard.len() && tokens.iter().all(|&token| token::id(token) < vocab));
    assert_eq!(encode_shard(&tokens, form).expect("tokens of a shard"), bytes);
}

/// Files of a run. [`tape`] changes bytes in one of them.
const RUN_FILES: [&str; 5] =
    ["run.json", "held-out.json", "tokenizer.json", "tape.sqlite", "bodies/00000001.bodies"];

/// Changes a file of a stored run, or a decision on its tape together with all later checksums, and replays the run.
/// The result is a run, or a refusal in a sentence.
pub fn tape(data: &[u8]) {
    let mut script = Script(data);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    copy_run(&golden_run(), dir);
    if script.byte().is_multiple_of(3) {
        let file = dir.join(RUN_FILES[script.below(RUN_FILES.len())]);
        let bytes = script.edited(&fs::read(&file).unwrap());
        fs::write(&file, bytes).unwrap();
    } else {
        rewrite(&mut script, &dir.join("tape.sqlite"));
    }
    let args = ReplayArgs {
        folder: dir.to_owned().into(),
        until: u64::MAX,
        merges: true,
        losses: false,
        points: 1,
        plot: None,
        out: None,
        overwrite: false,
        json: false,
    };
    refused(replayed(&args, |_| {}).err());
    let place = PlaceArgs { url: String::new(), ca: None, dir: Some(dir.to_owned()) };
    refused(inspect::status(&TableArgs { place, json: true, csv: false }).err());
}

/// Checks that a refusal has a text and is not an internal error.
fn refused(error: Option<ServerError>) {
    if let Some(error) = error {
        assert!(!matches!(error, ServerError::Internal { .. }), "{error}");
        assert!(!error.to_string().trim().is_empty());
    }
}

/// Changes one decision, and recomputes the checksums of its row and of all later ones.
fn rewrite(script: &mut Script<'_>, file: &Path) {
    let db = Connection::open(file).unwrap();
    let mut rows = db.prepare("SELECT seq, at_ms, data, segment, offset FROM tape ORDER BY seq").unwrap();
    let rows = rows.query_map([], |row| {
        let place: (Option<u32>, Option<u64>) =
            (row.get(3)?, row.get::<_, Option<i64>>(4)?.map(|at| at as u64));
        Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64, row.get::<_, String>(2)?, place))
    });
    let rows: Vec<_> = rows.unwrap().collect::<Result<_, _>>().unwrap();
    let which = script.below(rows.len().clamp(1, 256));
    let mut chain = Chain::default();
    for (number, (seq, at_ms, data, (segment, offset))) in rows.into_iter().enumerate() {
        let data = match number == which {
            true => String::from_utf8_lossy(&script.edited(data.as_bytes())).into_owned(),
            false => data,
        };
        let place = segment.zip(offset).map(|(segment, offset)| Place { segment, offset });
        chain = link(&chain, seq, at_ms, data.as_bytes(), place);
        let change = "UPDATE tape SET data = ?1, chain = ?2 WHERE seq = ?3";
        db.execute(change, params![data, chain, seq as i64]).unwrap();
    }
}

/// Returns the path of the stored run.
fn golden_run() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/tape/6")
}

fn copy_run(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("bodies")).unwrap();
    for name in RUN_FILES {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// Decodes the bytes as one message, and then as a stream of frames. A valid message is unchanged after encoding and
/// decoding. Invalid bytes take no more memory than their own size.
pub fn wire(data: &[u8]) {
    if let Ok(message) = decode(data) {
        let coded = encode(&message);
        let again = decode(&coded).expect("what we code we can read");
        assert_eq!(coded, encode(&again), "{message:?}");
        assert!(coded.len() as u64 <= u64::from(BODY_BYTES_MAX) + 64);
    }
    let (mut assembler, mut script, mut came) = (Assembler::new(1 << 16), Script(data), 0);
    while !script.is_over() {
        let frame = script.bytes(255);
        came += frame.len() as u64;
        if assembler.push(&frame).is_err() {
            break;
        }
        assert!(assembler.held_bytes() <= came.min(u64::from(PARTIALS_MAX) << 16));
    }
}

/// Largest number of machines in a world.
const MACHINES_MAX: u64 = 4;
/// Largest number of faults in a world.
const FAULTS_MAX: usize = 60;
/// Longest time between two faults, in milliseconds.
const GAP_MS_MAX: u64 = 4_000;

/// Runs a script of faults in a world. Every invariant of the world must hold after each fault.
pub fn world(data: &[u8]) {
    let mut script = Script(data);
    let seed = u64::from(script.short());
    let swarm = Swarm::of(seed, MACHINES_MAX);
    let mut world = swarm.world(seed);
    for _ in 0..FAULTS_MAX {
        if script.is_over() {
            break;
        }
        world.run_for(u64::from(script.short()) % GAP_MS_MAX);
        world.inject(fault(&mut script));
        if let Err(violation) = world.check() {
            panic!("seed {seed} at {} ms: {violation}", world.now());
        }
    }
    world.run_for(GAP_MS_MAX);
    if let Err(violation) = world.check() {
        panic!("seed {seed} in the end: {violation}");
    }
}

fn fault(script: &mut Script<'_>) -> Fault {
    let machine = script.below(MACHINES_MAX as usize) as u32;
    let value = script.byte();
    let is_on = value % 2 == 1;
    let losses = [Loss::Kept, Loss::Lost, Loss::Torn, Loss::Stale, Loss::Flipped];
    let faults = [
        Fault::Kill(machine),
        Fault::Vanish(machine),
        Fault::Restart(machine),
        Fault::Restart(machine),
        Fault::Freeze(machine),
        Fault::Thaw(machine),
        Fault::Crawl(machine, f64::from(value) / 16.0 + 0.1),
        Fault::Move(machine, u64::from(value) * 8),
        Fault::Break(machine),
        Fault::Partition(machine),
        Fault::Heal(machine),
        Fault::Swallow(machine),
        Fault::Pause(machine, is_on),
        Fault::Leave(machine),
        Fault::Poison(machine, Poison::ALL.get(usize::from(value) % 12).copied()),
        Fault::CrashSyncer,
        Fault::LosePower(losses[usize::from(value) % losses.len()]),
        Fault::RestartSyncer,
        Fault::RestartSyncer,
        Fault::Damage(Damage::ALL[usize::from(value) % Damage::ALL.len()]),
        Fault::Mend,
        Fault::DiskFails(is_on.then_some(Ailment::ALL[usize::from(value) % Ailment::ALL.len()])),
        Fault::TearSnapshot,
        Fault::BackUp,
        Fault::PutBack,
        Fault::Hide(machine, is_on),
        Fault::Hold(is_on),
        Fault::Pace(machine, (f64::from(value) / 255.0).max(0.001)),
        Fault::Drop(machine, u32::from(value) * 40),
        Fault::Finish,
    ];
    faults[script.below(faults.len())]
}
