//! Settings that a classroom has unless told otherwise.

use archipelago_cli::Sources;

use super::{INVITE_SHORT, ServeConfig};

/// Every interface of this machine: phones and laptops of the same network reach it.
const LISTEN: &str = "0.0.0.0:7700";

/// A model that phones can train.
const PRESET: &str = "tiny";

/// Sets what `--classroom` implies, unless `sources` says that it was given.
pub fn imply(config: &mut ServeConfig, sources: &Sources) {
    if !config.classroom {
        return;
    }
    if sources.is_default("listen") {
        LISTEN.clone_into(&mut config.listen);
    }
    if sources.is_default("preset") {
        PRESET.clone_into(&mut config.preset);
    }
    config.invite.get_or_insert_with(|| INVITE_SHORT.to_owned());
}
