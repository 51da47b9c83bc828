//! A folder of a model to begin a run with.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use archipelago_cli::defaults;
use syncer_server::{ServeConfig, ServerError, validate};
use tempfile::TempDir;

use crate::script::Script;

const FILES: [&str; 4] =
    ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"];

/// Changes one file of a model that is fine, and asks whether a run could begin with it. A refusal names what is wrong
/// with the folder, and is no failure of the program's own.
pub fn run(data: &[u8]) {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(Stage::new()));
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    let mut script = Script(data);
    let (which, is_whole) = (script.below(FILES.len()), script.byte().is_multiple_of(4));
    let bytes = if is_whole { script.0.to_vec() } else { script.edited(&stage.files[which]) };
    let file = stage.model().join(FILES[which]);
    fs::write(&file, bytes).unwrap();
    let found = validate(&stage.config());
    fs::write(&file, &stage.files[which]).unwrap();
    if let Err(error) = found {
        assert!(
            !matches!(error, ServerError::System { .. } | ServerError::Disk { .. }),
            "a damaged model is no failure of the system: {error}"
        );
        assert!(!error.to_string().trim().is_empty());
    }
}

/// A model, a text, and a place for a run.
struct Stage {
    dir: TempDir,
    files: [Vec<u8>; FILES.len()],
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/init");
        let files = FILES.map(|name| fs::read(golden.join("model").join(name)).unwrap());
        fs::create_dir(dir.path().join("model")).unwrap();
        for entry in fs::read_dir(golden.join("model")).unwrap().flatten() {
            fs::copy(entry.path(), dir.path().join("model").join(entry.file_name())).unwrap();
        }
        fs::copy(golden.join("text.txt"), dir.path().join("text.txt")).unwrap();
        let stage = Self { dir, files };
        validate(&stage.config()).expect("the model is fine as it is");
        stage
    }

    fn model(&self) -> std::path::PathBuf {
        self.dir.path().join("model")
    }

    fn config(&self) -> ServeConfig {
        let mut config: ServeConfig = defaults(&[]);
        config.init = Some(self.model());
        config.data = Some(self.dir.path().join("text.txt").into());
        config.dir = self.dir.path().join("run");
        config
    }
}
