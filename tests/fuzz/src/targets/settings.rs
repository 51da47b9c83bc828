//! A settings file.

use archipelago_cli::from_toml;
use syncer_server::ServeConfig;

/// Takes the bytes for a file of settings. A refusal is one sentence for people.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Err(why) = from_toml::<ServeConfig>(text, &["config", "runs"]) {
        assert!(!why.trim().is_empty(), "{text:?} is refused without a word");
    }
}
