//! Target for the model folder of a new run.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use archipelago_cli::defaults;
use syncer_server::{ServeConfig, validate};
use tempfile::TempDir;

use crate::golden;
use crate::script::Script;

const FILES: [&str; 4] =
    ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"];

/// Changes one file of a valid model, and checks whether a run could begin with it.
pub fn run(data: &[u8]) {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(Stage::new()));
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    let (which, bytes) = golden::damaged(&mut Script(data), &stage.files);
    let file = stage.model().join(FILES[which]);
    fs::write(&file, bytes).unwrap();
    let found = validate(&stage.config());
    fs::write(&file, &stage.files[which]).unwrap();
    golden::judge(found);
}

/// Valid model, and a folder for a run.
struct Stage {
    dir: TempDir,
    files: [Vec<u8>; FILES.len()],
}

impl Stage {
    fn new() -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap(), files: golden::read(FILES) };
        fs::create_dir(stage.model()).unwrap();
        for entry in fs::read_dir(golden::model()).unwrap().flatten() {
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
        config.init = Some(self.model());
        config.data = Some(golden::text().into());
        config.dir = self.dir.path().join("run");
        config
    }
}
