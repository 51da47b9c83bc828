//! Target for files that a new run can begin with: tensors of a custom model, and a tokenizer.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use archipelago_cli::defaults;
use syncer_server::{ServeConfig, validate};
use tempfile::TempDir;

use crate::golden;
use crate::script::Script;

/// Names of the two files in the golden model.
const FILES: [&str; 2] = ["model-00001-of-00002.safetensors", "tokenizer.json"];

/// Changes or replaces one of the files, and checks whether a run could begin with it.
pub fn run(data: &[u8]) {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(Stage::new()));
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    let (which, bytes) = golden::damaged(&mut Script(data), &stage.files);
    golden::judge(validate(&stage.config(which, &bytes)));
}

/// Valid files, and a folder for a run.
struct Stage {
    dir: TempDir,
    files: [Vec<u8>; FILES.len()],
}

impl Stage {
    fn new() -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap(), files: golden::read(FILES) };
        for (which, bytes) in stage.files.iter().enumerate() {
            validate(&stage.config(which, bytes)).expect("the files are fine as they are");
        }
        stage
    }

    /// Returns the settings of a run that begins with these bytes in place of a file.
    fn config(&self, which: usize, bytes: &[u8]) -> ServeConfig {
        let file = self.dir.path().join(FILES[which]);
        fs::write(&file, bytes).unwrap();
        let mut config: ServeConfig = defaults(&[]);
        config.preset = "tiny".into();
        config.data = Some(golden::text().into());
        config.dir = self.dir.path().join("run");
        let to: &mut Option<PathBuf> = if which == 0 { &mut config.params } else { &mut config.tokenizer };
        *to = Some(file);
        config
    }
}
