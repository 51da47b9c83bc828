//! Settings that a classroom has unless told otherwise.

use super::{INVITE_SHORT, ServeConfig};

/// Every interface of this machine: phones and laptops of the same network reach it.
const LISTEN: &str = "0.0.0.0:7700";

/// A model that phones can train.
const PRESET: &str = "tiny";

/// Sets what `--classroom` implies, where `is_default` says that a flag was given nowhere.
pub fn imply(config: &mut ServeConfig, is_default: impl Fn(&str) -> bool) {
    if !config.classroom {
        return;
    }
    if is_default("listen") {
        LISTEN.clone_into(&mut config.listen);
    }
    if is_default("preset") {
        PRESET.clone_into(&mut config.preset);
    }
    config.invite.get_or_insert_with(|| INVITE_SHORT.to_owned());
}
