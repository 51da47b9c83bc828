//! The learner's secret on disk: 16 random bytes, used by one process at a time.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use archipelago::platform::{RandomError, open_private, random_bytes};
use archipelago::run::Address;
use archipelago::wire::Identity;

/// The most learners that one machine may have on one syncer.
const INDEX_MAX: u32 = 1_024;

/// An identity that nobody else uses while this value lives.
#[derive(Debug)]
pub struct IdentityLock {
    /// The secret.
    pub identity: Identity,
    /// The file that holds it.
    pub path: PathBuf,
    /// Which of this machine's learners on this syncer this is, from 0. It is 0 if the user named the file.
    pub index: u32,
    _file: File,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Neither `XDG_STATE_HOME` nor `HOME` is set.
    #[error("there is no home folder to keep the identity in: give --identity-dir FOLDER")]
    NoHome,
    /// The file or its folder cannot be used.
    #[error("cannot use {}: {error}; give --identity-dir FOLDER or --identity FILE", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What failed.
        error: io::Error,
    },
    /// Another process holds the file.
    #[error("{} is in use by another learner: give each learner its own file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Every file is in use.
    #[error("{INDEX_MAX} learners of this machine are on this syncer already: stop some")]
    TooMany,
    /// The file does not have 16 bytes.
    #[error(
        "{} has {bytes} bytes and not the 16 of an identity: name another file, or delete it to begin as a new learner",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The system gives no random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
}

impl IdentityLock {
    /// The identity in `path`, made if the file is not there.
    ///
    /// # Errors
    /// [`IdentityError::Io`], [`IdentityError::InUse`], [`IdentityError::Damaged`], [`IdentityError::Random`].
    pub fn in_file(path: &Path) -> Result<Self, IdentityError> {
        Self::try_file(path, 0)?.ok_or_else(|| IdentityError::InUse { path: path.to_owned() })
    }

    /// The first identity for `address` in `folder` that no other process uses.
    ///
    /// # Errors
    /// [`IdentityError::Io`], [`IdentityError::TooMany`], [`IdentityError::Damaged`], [`IdentityError::Random`].
    pub fn in_folder(folder: &Path, address: &Address) -> Result<Self, IdentityError> {
        fs::create_dir_all(folder).map_err(|error| IdentityError::Io { path: folder.to_owned(), error })?;
        let name: String = address
            .to_string()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' })
            .collect();
        for index in 0..INDEX_MAX {
            if let Some(lock) = Self::try_file(&folder.join(format!("{name}.{index}.id")), index)? {
                return Ok(lock);
            }
        }
        Err(IdentityError::TooMany)
    }

    /// `None` if another process holds the file.
    fn try_file(path: &Path, index: u32) -> Result<Option<Self>, IdentityError> {
        let wrong = |error| IdentityError::Io { path: path.to_owned(), error };
        let mut file = open_private(path).map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
        let bytes = file.metadata().map_err(wrong)?.len();
        let mut secret = [0; 16];
        match bytes {
            0 => {
                secret = random_bytes()?;
                file.write_all(&secret).and_then(|()| file.sync_all()).map_err(wrong)?;
                file.rewind().map_err(wrong)?;
            }
            16 => file.read_exact(&mut secret).map_err(wrong)?,
            _ => return Err(IdentityError::Damaged { path: path.to_owned(), bytes }),
        }
        Ok(Some(Self { identity: Identity(secret), path: path.to_owned(), index, _file: file }))
    }
}

/// Where identities are kept unless told otherwise, by the XDG base directory specification.
pub(crate) fn default_folder(env: impl Fn(&str) -> Option<String>) -> Result<PathBuf, IdentityError> {
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
        assert_ne!(first.identity, second.identity);
        assert_eq!((first.index, second.index), (0, 1));
        let (identity, path) = (first.identity, first.path.clone());
        assert!(matches!(IdentityLock::in_file(&path), Err(IdentityError::InUse { .. })));
        drop(first);
        let again = IdentityLock::in_folder(folder.path(), &address).unwrap();
        assert_eq!(again.identity, identity, "the lock ends with its holder");
        let other = IdentityLock::in_folder(folder.path(), &"ws://a:2".parse().unwrap()).unwrap();
        assert_ne!(other.identity, identity, "another syncer, another name");
    }

    #[test]
    fn a_damaged_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.id");
        fs::write(&path, "too short").unwrap();
        assert!(matches!(IdentityLock::in_file(&path), Err(IdentityError::Damaged { bytes: 9, .. })));
        assert_eq!(fs::read(&path).unwrap(), b"too short");
        let nowhere = folder.path().join("none/x.id");
        assert!(matches!(IdentityLock::in_file(&nowhere), Err(IdentityError::Io { .. })));
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
