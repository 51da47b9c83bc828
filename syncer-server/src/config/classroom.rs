//! Defaults for a classroom.

use archipelago_cli::Sources;

use super::{BuiltIn, DataSource, INVITE_SHORT, ServeConfig};

/// Address of every interface of this machine, so that phones and laptops in the same network can connect.
const LISTEN: &str = "0.0.0.0:7700";

/// Preset of a model that phones can train.
const PRESET: &str = "tiny";

/// Text for a class. Samples of a model that learns it are pleasant to read.
const DATA: DataSource = DataSource::BuiltIn(BuiltIn::Austen);

/// Sets the defaults of `--classroom`, except for settings that `sources` contains.
pub fn imply(config: &mut ServeConfig, sources: &Sources) {
    if !config.server.classroom {
        return;
    }
    if sources.is_default("listen") {
        LISTEN.clone_into(&mut config.server.listen);
    }
    if sources.is_default("preset") {
        PRESET.clone_into(&mut config.identity.preset);
    }
    // An existing run keeps its text. A user who sets the size of the grammar's text wants the grammar.
    let is_begun = config.server.dir.join("run.json").exists();
    if !is_begun && sources.is_default("data") && sources.is_default("corpus_bytes") {
        config.data = Some(DATA);
    }
    config.invite.get_or_insert_with(|| INVITE_SHORT.to_owned());
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use archipelago_cli::CliError;

    use super::super::{Verb, parse};
    use super::*;

    fn serve(arguments: &[&str]) -> Result<ServeConfig, CliError> {
        let arguments = ["syncer-server", "serve"].iter().chain(arguments).map(OsString::from);
        match parse(arguments)?.verb {
            Verb::Serve(config) => Ok(*config),
            verb => panic!("{verb:?}"),
        }
    }

    #[test]
    fn a_class_trains_on_a_real_text_unless_it_asked_for_another() {
        let data = |arguments: &[&str]| {
            let config = serve(&[&["--classroom"], arguments].concat()).unwrap();
            let kept = config.kept.clone().unwrap().text();
            (config.data.map(|data| data.to_string()), kept.unwrap_or_default())
        };
        let dir = tempfile::tempdir().unwrap();
        let place = ["--dir", dir.path().to_str().unwrap()];
        let (found, kept) = data(&place);
        assert_eq!(found.as_deref(), Some("builtin:austen"));
        assert!(kept.contains("data = \"builtin:austen\"\n"), "{kept}");
        assert_eq!(
            data(&[&place[..], &["--data", "builtin:grammar"]].concat()).0.as_deref(),
            Some("builtin:grammar")
        );
        assert_eq!(data(&[&place[..], &["--data", "my.txt"]].concat()).0.as_deref(), Some("my.txt"));
        assert_eq!(data(&[&place[..], &["--corpus-bytes", "60kB"]].concat()).0, None);
        assert_eq!(serve(&place).unwrap().data, None, "the default text has a known entropy");
        let Err(CliError::Usage(error)) = serve(&["--data", "builtin:bronte"]) else { panic!("it is taken") };
        assert!(error.to_string().contains("give one of builtin:grammar, builtin:austen"), "{error}");
        // An existing run keeps its text.
        std::fs::write(dir.path().join("run.json"), "{}").unwrap();
        assert_eq!(data(&place).0, None);
    }
}
