//! Target for a settings file.

use archipelago_cli::from_toml;
use syncer_server::ServeConfig;

/// Parses the bytes as a settings file. A refusal is one readable sentence.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Err(why) = from_toml::<ServeConfig>(text, &["config", "runs"]) {
        assert!(!why.trim().is_empty(), "{text:?} is refused without a word");
    }
}
