//! Settings of one run on a server of several runs: a file in the run's folder.

use std::fs;
use std::path::Path;

use archipelago_cli::{FileError, from_toml, key_of, keys, with_key};

use crate::config::{SETTINGS_FILE, ServeConfig, ServerSettings, absolute_path, is_path, run_flags};
use crate::errors::ServerError;
use crate::store::{make_private, write_private};

/// Name of the settings file.
pub(super) const FILE: &str = SETTINGS_FILE;

/// Size limit of the settings file, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// Reads the settings in `dir`, for a run on the server with the settings `server`.
///
/// # Errors
/// - `Disk`: the file cannot be read.
/// - `ConfigFile`: it is too long, or a key or a value in it is wrong.
pub(super) fn read(dir: &Path, server: &ServerSettings) -> Result<ServeConfig, ServerError> {
    let path = dir.join(FILE);
    let failed = |source| ServerError::Disk { what: "read", path: path.clone(), source };
    let bytes = path.metadata().map_err(failed)?.len();
    let text = if bytes > BYTES_MAX {
        Err(format!("it has {bytes} bytes, but at most {BYTES_MAX} are read"))
    } else {
        Ok(fs::read_to_string(&path).map_err(failed)?)
    };
    let config = text.and_then(|text| of_run(&text, dir, server));
    config.map_err(|why| FileError { file: path.clone(), why }.into())
}

/// Returns the settings in the TOML `text` for a run in `dir`, completed by those that the run shares with `server`.
fn of_run(text: &str, dir: &Path, server: &ServerSettings) -> Result<ServeConfig, String> {
    let config: ServeConfig = from_toml(text, &keys::<ServerSettings>())?;
    let ServerSettings { pages, public_url, allow_origin, .. } = server.clone();
    let server = ServerSettings { dir: dir.to_owned(), pages, public_url, allow_origin, ..config.server };
    Ok(ServeConfig { server, ..config })
}

/// Checks settings from a client, which may not name files of the server's machine.
///
/// # Errors
/// A sentence: a key or a value is wrong, or names a file.
pub(super) fn check_sent(text: &str, server: &ServerSettings) -> Result<(), String> {
    of_run(text, Path::new(""), server)?;
    match names_file(text) {
        None => Ok(()),
        Some(key) => Err(format!(
            "`{key}` names a file of the server: create the run on that machine, with --runs and the folder of the runs"
        )),
    }
}

/// Returns the first setting in the TOML `text` that names a file.
pub(super) fn names_file(text: &str) -> Option<String> {
    files(text).next().map(|(key, _)| key)
}

/// Returns the settings in the TOML `text` that name files, with absolute paths.
fn files(text: &str) -> impl Iterator<Item = (String, String)> {
    run_flags().filter(is_path).filter_map(move |flag| {
        let key = flag.get_long()?;
        Some((key.to_owned(), absolute_path(&flag, &key_of(text, key)?)?))
    })
}

/// Returns the settings of a run in the TOML `text`, with absolute file names.
///
/// # Errors
/// A sentence: a key or a value is wrong.
pub(super) fn with_absolute_paths(text: &str) -> Result<String, String> {
    from_toml::<ServeConfig>(text, &keys::<ServerSettings>())?;
    Ok(files(text).fold(text.to_owned(), |text, (key, path)| with_key(&text, &key, &path)))
}

/// Writes `text` as the settings in `dir`, which must not exist yet.
///
/// # Errors
/// `Disk`: the file cannot be written, or `dir` exists already.
pub(super) fn write(dir: &Path, text: &str) -> Result<(), ServerError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ServerError::Disk { what: "make", path, source }
    };
    if dir.exists() {
        return Err(failed(dir)(std::io::ErrorKind::AlreadyExists.into()));
    }
    make_private(dir)?;
    write_private(&dir.join(FILE), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_settings_are_refused_for_a_run() {
        let defaults = ServeConfig::default().server;
        let server = ServerSettings { public_url: Some("https://a.example".into()), ..defaults };
        let read = |text: &str| of_run(text, Path::new("runs/a"), &server);
        let config = read("preset = \"tiny\"\nmin-quorum = 2").unwrap();
        assert_eq!((&*config.identity.preset, config.live.min_quorum.get()), ("tiny", 2));
        let ServerSettings { dir, public_url, .. } = config.server;
        assert_eq!((dir.to_str(), &public_url), (Some("runs/a"), &server.public_url));
        for key in keys::<ServerSettings>() {
            let error = read(&format!("{key} = \"x\"")).unwrap_err();
            assert_eq!(error, format!("the key `{key}` does not belong here"));
        }
        assert_eq!(
            read("presett = \"tiny\"").unwrap_err(),
            "line 1: unknown key `presett`, did you mean `preset`?"
        );
        assert!(read("seed = \"many\"").unwrap_err().contains("--seed"));
        assert!(read("seed = ").is_err());
    }

    #[test]
    fn file_names_become_absolute() {
        let text = with_absolute_paths("data = \"poems.txt\"\nseed = 3\ninit = \"/srv/model\"").unwrap();
        let here = std::path::absolute("poems.txt").unwrap();
        assert_eq!(key_of(&text, "data"), Some(here.to_string_lossy().into_owned()));
        assert!(text.contains("seed = 3") && text.contains("init = \"/srv/model\""), "{text}");
        assert!(with_absolute_paths("data = \"a\"\nsed = 3").unwrap_err().contains("did you mean `seed`?"));
        assert!(with_absolute_paths("listen = \"x\"").is_err());
    }

    #[test]
    fn remote_settings_name_no_files() {
        let server = ServeConfig::default().server;
        assert_eq!(check_sent("preset = \"tiny\"", &server), Ok(()));
        for key in ["chat-template", "data", "init", "params", "tokenizer"] {
            let error = check_sent(&format!("{key} = \"/etc/passwd\""), &server).unwrap_err();
            assert!(error.starts_with(&format!("`{key}` names a file")), "{error}");
        }
        assert_eq!(check_sent("data = \"builtin:austen\"", &server), Ok(()));
        assert_eq!(names_file("data = \"builtin:austen\"\nseed = 3"), None);
        // The folder of pages belongs to the server.
        assert!(check_sent("pages = \"/\"", &server).is_err());
    }
}
