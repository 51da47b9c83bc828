//! Files that a new run can begin with: tensors of a model of one's own, and a tokenizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use archipelago_cli::defaults;
use syncer_server::{ServeConfig, ServerError, validate};
use tempfile::TempDir;

use crate::script::Script;

/// The two, in the golden model.
const FILES: [&str; 2] = ["model-00001-of-00002.safetensors", "tokenizer.json"];

/// Changes one of the files, or takes the bytes for it, and asks whether a run could begin with it. A refusal says what
/// is wrong, and is no failure of the system's.
pub fn run(data: &[u8]) {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(Stage::new()));
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    let mut script = Script(data);
    let which = script.below(FILES.len());
    let bytes = match script.byte().is_multiple_of(4) {
        true => script.0.to_vec(),
        false => script.edited(&stage.files[which]),
    };
    let file = stage.dir.path().join(FILES[which]);
    fs::write(&file, bytes).unwrap();
    let mut config: ServeConfig = defaults(&[]);
    config.preset = "tiny".into();
    config.data = Some(stage.dir.path().join("text.txt").into());
    config.dir = stage.dir.path().join("run");
    let to: &mut Option<PathBuf> = if which == 0 { &mut config.params } else { &mut config.tokenizer };
    *to = Some(file);
    if let Err(error) = validate(&config) {
        let is_of_the_system = matches!(error, ServerError::System { .. } | ServerError::Disk { .. });
        assert!(!is_of_the_system, "a damaged file is no failure of the system: {error}");
        assert!(!error.to_string().trim().is_empty());
    }
}

/// The files as they are when nothing is wrong, a text, and a place for a run.
struct Stage {
    dir: TempDir,
    files: [Vec<u8>; FILES.len()],
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/init");
        let files = FILES.map(|name| fs::read(golden.join("model").join(name)).unwrap());
        fs::copy(golden.join("text.txt"), dir.path().join("text.txt")).unwrap();
        Self { dir, files }
    }
}
