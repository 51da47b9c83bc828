//! Key of a learner on disk, used by one process at a time: 32 secret bytes and their checksum.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use archipelago_core::diloco::checksum;
use archipelago_runtime::platform::{RandomError, open_private};

use super::{Address, Key};

/// Maximum number of learners of one machine at one syncer.
const INDEX_MAX: u32 = 1_024;
/// Prefix of a key in text form.
const TEXT_BEGINS: &str = "archipelago-key-1:";

/// Identity that is locked for this process until the value is dropped.
#[derive(Debug)]
pub struct IdentityLock {
    /// The key.
    pub key: Key,
    /// File with the key.
    pub path: PathBuf,
    /// Index of this learner among those of this machine at this syncer, from 0. It is 0 if the user named the file.
    pub index: u32,
    _file: File,
}

/// Reason why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Neither `XDG_STATE_HOME` nor `HOME` is set.
    #[error("there is no home folder for the identity: give --identity-dir FOLDER")]
    NoHome,
    /// The file or its folder cannot be used.
    #[error("cannot use {}: {error}; give --identity-dir FOLDER or --identity FILE", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Cause of the failure.
        error: io::Error,
    },
    /// Another process has locked the file.
    #[error("{} is in use by another learner: give each learner its own file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// All key files for the syncer are in use.
    #[error("{INDEX_MAX} learners of this machine are already connected to this syncer: stop some")]
    TooMany,
    /// The file has the wrong length or checksum.
    #[error(
        "{} holds no key, or a damaged one ({bytes} bytes): restore it from a copy, name another file, or delete it \
         to begin as a new learner",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The file with the key to show or to export does not exist.
    #[error("there is no key at {}: the first `join` creates one", path.display())]
    None {
        /// The file.
        path: PathBuf,
    },
    /// The file already has a key.
    #[error(
        "{} already holds a key, whose account would be lost: save it with `identity export`, then give --force",
        path.display()
    )]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// The text to import is not a key.
    #[error("that is not a key as `identity export` writes it: one line, {TEXT_BEGINS} and 64 hex digits")]
    NoKey,
    /// The system provides no random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
}

impl IdentityLock {
    /// Opens the identity in `path`. If the file does not exist or is empty, a key is created.
    ///
    /// # Errors
    /// [`IdentityError::Io`], [`IdentityError::InUse`], [`IdentityError::Damaged`], [`IdentityError::Random`].
    pub fn in_file(path: &Path) -> Result<Self, IdentityError> {
        Self::try_file(path, 0)?.ok_or_else(|| IdentityError::InUse { path: path.to_owned() })
    }

    /// Opens the first identity for `address` in `folder` that no other process uses.
    ///
    /// # Errors
    /// [`IdentityError::Io`], [`IdentityError::TooMany`], [`IdentityError::Damaged`], [`IdentityError::Random`].
    pub fn in_folder(folder: &Path, address: &Address) -> Result<Self, IdentityError> {
        fs::create_dir_all(folder).map_err(|error| IdentityError::Io { path: folder.to_owned(), error })?;
        let name = file_name(address);
        for index in 0..INDEX_MAX {
            if let Some(lock) = Self::try_file(&folder.join(format!("{name}.{index}.key")), index)? {
                return Ok(lock);
            }
        }
        Err(IdentityError::TooMany)
    }

    /// Opens the identity in `path`, or returns `None` if another process has locked the file.
    fn try_file(path: &Path, index: u32) -> Result<Option<Self>, IdentityError> {
        let wrong = |error| IdentityError::Io { path: path.to_owned(), error };
        let mut file = open_private(path).map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => {}
            // Network file systems may not support locks. Then two learners with the same key replace each other's
            // connections.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(wrong)?;
        let key = match &bytes[..] {
            [] => {
                let key = Key::random()?;
                file.write_all(&to_bytes(&key)).and_then(|()| file.sync_all()).map_err(wrong)?;
                key
            }
            bytes => of_bytes(path, bytes)?,
        };
        Ok(Some(Self { key, path: path.to_owned(), index, _file: file }))
    }
}

/// Returns the key file in `folder` of this machine's first learner at `address`.
#[must_use]
pub fn first_file(folder: &Path, address: &Address) -> PathBuf {
    folder.join(format!("{}.0.key", file_name(address)))
}

/// Reads the key in `path`, even if another process has locked the file.
///
/// # Errors
/// [`IdentityError::None`], [`IdentityError::Io`], [`IdentityError::Damaged`].
pub fn read(path: &Path) -> Result<Key, IdentityError> {
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => IdentityError::None { path: path.to_owned() },
        _ => IdentityError::Io { path: path.to_owned(), error },
    })?;
    of_bytes(path, &bytes)
}

/// Returns the bytes of a key file.
fn to_bytes(key: &Key) -> Vec<u8> {
    let secret = key.secret();
    [&secret[..], &checksum(&secret).to_le_bytes()].concat()
}

/// Parses the bytes of the key file `path`. Files of earlier versions without a checksum are accepted.
fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Key, IdentityError> {
    let damaged = || IdentityError::Damaged { path: path.to_owned(), bytes: bytes.len() as u64 };
    let (secret, sum) = bytes.split_first_chunk().ok_or_else(damaged)?;
    if !sum.is_empty() && sum != checksum(secret).to_le_bytes() {
        return Err(damaged());
    }
    Ok(Key::from_secret(secret))
}

/// Writes `key` to `path`. An existing key is overwritten only with `force`.
///
/// # Errors
/// [`IdentityError::Taken`], [`IdentityError::InUse`], [`IdentityError::Io`].
pub fn write(path: &Path, key: &Key, force: bool) -> Result<(), IdentityError> {
    let wrong = |error| IdentityError::Io { path: path.to_owned(), error };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(wrong)?;
    }
    let mut file = open_private(path).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(IdentityError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(wrong(error)),
    }
    if !force && file.metadata().map_err(wrong)?.len() > 0 {
        return Err(IdentityError::Taken { path: path.to_owned() });
    }
    file.set_len(0).map_err(wrong)?;
    file.write_all(&to_bytes(key)).and_then(|()| file.sync_all()).map_err(wrong)
}

/// Returns the text form of `key`. It is secret: any person who has it can act as the learner.
#[must_use]
pub fn to_text(key: &Key) -> String {
    key.secret().iter().fold(TEXT_BEGINS.to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Parses the text form of a key.
///
/// # Errors
/// [`IdentityError::NoKey`].
pub fn of_text(text: &str) -> Result<Key, IdentityError> {
    let digits = text.trim().strip_prefix(TEXT_BEGINS).ok_or(IdentityError::NoKey)?;
    let mut secret = [0; Key::SECRET_BYTES];
    if digits.len() != 2 * secret.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(IdentityError::NoKey);
    }
    for (i, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| IdentityError::NoKey)?;
    }
    Ok(Key::from_secret(&secret))
}

/// Returns `address` with all characters replaced that are unusual in file names.
fn file_name(address: &Address) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    address.to_string().chars().map(plain).collect()
}

/// Returns the default folder for identities, according to the XDG base directory specification. `env` returns the
/// value of an environment variable.
///
/// # Errors
/// [`IdentityError::NoHome`].
pub fn default_folder(env: impl Fn(&str) -> Option<String>) -> Result<PathBuf, IdentityError> {
    let set = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(set("HOME")?.join(".local/state"))).ok_or(IdentityError::NoHome)?;
    Ok(state.join("archipelago/learners"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_the_same_and_is_never_shared() {
        let folder = tempfile::tempdir().unwrap();
        let address: Address = "ws://a:1".parse().unwrap();
        let first = IdentityLock::in_folder(folder.path(), &address).unwrap();
        let second = IdentityLock::in_folder(folder.path(), &address).unwrap();
        assert_ne!(first.key.secret(), second.key.secret());
        assert_eq!((first.index, second.index), (0, 1));
        let (secret, path) = (first.key.secret(), first.path.clone());
        assert_eq!(path, first_file(folder.path(), &address));
        assert!(matches!(IdentityLock::in_file(&path), Err(IdentityError::InUse { .. })));
        drop(first);
        let again = IdentityLock::in_folder(folder.path(), &address).unwrap();
        assert_eq!(again.key.secret(), secret, "the lock ends with its holder");
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600, "its owner alone may read it");
        }
        let other = IdentityLock::in_folder(folder.path(), &"ws://a:2".parse().unwrap()).unwrap();
        assert_ne!(other.key.secret(), secret, "another syncer, another key");
    }

    #[test]
    fn a_damaged_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.id");
        fs::write(&path, "too short").unwrap();
        assert!(matches!(IdentityLock::in_file(&path), Err(IdentityError::Damaged { bytes: 9, .. })));
        assert_eq!(fs::read(&path).unwrap(), b"too short");
        let whole = IdentityLock::in_file(&folder.path().join("y.id")).unwrap();
        let (secret, bytes) = (whole.key.secret(), to_bytes(&whole.key));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            let error = IdentityLock::in_file(&path).unwrap_err();
            assert!(matches!(error, IdentityError::Damaged { bytes: 40, .. }), "byte {at}: {error}");
            assert!(error.to_string().contains("x.id"), "{error}");
        }
        fs::write(&path, secret).unwrap();
        assert_eq!(IdentityLock::in_file(&path).unwrap().key.secret(), secret, "as former versions wrote it");
        let nowhere = folder.path().join("none/x.id");
        assert!(matches!(IdentityLock::in_file(&nowhere), Err(IdentityError::Io { .. })));
    }

    #[test]
    fn key_survives_export_and_import() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a.key"), folder.path().join("sub/b.key"));
        assert!(matches!(read(&from), Err(IdentityError::None { .. })));
        let lock = IdentityLock::in_file(&from).unwrap();
        let text = to_text(&read(&from).unwrap());
        let key = of_text(&format!(" {text}\n")).unwrap();
        assert_eq!(key.secret(), lock.key.secret());
        write(&to, &key, false).unwrap();
        assert_eq!(read(&to).unwrap().secret(), key.secret());
        assert!(matches!(write(&to, &key, false), Err(IdentityError::Taken { .. })));
        let other = Key::from_secret(&[1; 32]);
        write(&to, &other, true).unwrap();
        assert_eq!(read(&to).unwrap().secret(), [1; 32]);
        assert!(matches!(write(&from, &other, true), Err(IdentityError::InUse { .. })), "a learner has it");
        for wrong in ["", &text[1..], &text[..text.len() - 1], &text.replace("key-1:", "key-1:+"), "é"] {
            assert!(matches!(of_text(wrong), Err(IdentityError::NoKey)), "{wrong}");
        }
    }

    #[test]
    fn default_folder_follows_the_environment() {
        let folder = |xdg: &str, home: &str| {
            default_folder(|name| Some(if name == "HOME" { home } else { xdg }.to_owned()))
        };
        assert_eq!(folder("/x", "/h").unwrap(), Path::new("/x/archipelago/learners"));
        assert_eq!(folder("", "/h").unwrap(), Path::new("/h/.local/state/archipelago/learners"));
        assert_eq!(folder("relative", "/h").unwrap(), Path::new("/h/.local/state/archipelago/learners"));
        assert!(matches!(folder("", ""), Err(IdentityError::NoHome)));
    }
}
