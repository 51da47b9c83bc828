//! Selections of GPU kernels, stored in a file, so that each is measured once.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use archipelago::run::identity::default_folder;
use archipelago_runtime::engine::gpu::Tuning;

/// Maximum number of stored selections. The newest stay.
const COUNT_MAX: usize = 64;

/// Reason why the file cannot be used. The program then works without it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TuningsError {
    #[error("{} is ignored, and kernels are chosen again: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is damaged or of another version, ignored; kernels are chosen again: {error}", path.display())]
    Damaged { path: PathBuf, error: serde_json::Error },
    #[error("the kernels will be chosen again next time, because {} cannot be written: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
}

/// Returns the path of the file, next to the identities; `None` without a home folder.
pub(crate) fn default_file() -> Option<PathBuf> {
    let folder = default_folder(|name| std::env::var(name).ok()).ok()?;
    Some(folder.join("kernels.json"))
}

/// Returns the selections in the file; empty if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Vec<Tuning>, TuningsError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| TuningsError::Damaged { path: path.to_owned(), error }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(TuningsError::Read { path: path.to_owned(), error }),
    }
}

/// Adds `newer` to the file, in place of older selections for the same devices and shapes. Selections that other
/// processes added meanwhile are kept.
pub(crate) fn add(path: &Path, newer: &[Tuning]) -> Result<(), TuningsError> {
    let mut all = read(path).unwrap_or_default();
    all.retain(|old| !newer.iter().any(|newer| old.is_replaced_by(newer)));
    all.extend_from_slice(newer);
    let kept = &all[all.len().saturating_sub(COUNT_MAX)..];
    let wrong = |error| TuningsError::Write { path: path.to_owned(), error };
    let bytes = serde_json::to_vec(kept).map_err(|error| wrong(error.into()))?;
    // The file is renamed into place, so a reader sees the old content or the new one, never a part.
    let draft = path.with_extension(format!("{}.tmp", process::id()));
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(&draft, bytes)).and_then(|()| fs::rename(&draft, path)).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use archipelago_runtime::engine::gpu::{Best, Choice, Variant};

    use super::*;

    fn tuning(adapter: &str, rows: u32, nt: Variant) -> Tuning {
        let (adapter, driver) = (adapter.to_owned(), "1.0".to_owned());
        let best = |variant| vec![Best { area: 4096, variant }];
        let (nt, nn, tn) = (best(nt), best(Variant::Tile64), best(Variant::Register4));
        let choice = Choice { adapter, driver, nt, nn, tn, matrices: false, strips: false, gflops: 7 };
        Tuning { rows, width: 64, ff: 176, choice }
    }

    #[test]
    fn the_newest_of_each_shape_and_device_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/kernels.json");
        assert!(read(&path).unwrap().is_empty(), "no file is no error");
        let (a, b) = (tuning("A", 512, Variant::Tile64), tuning("B", 512, Variant::Tile64));
        let (wide, newer) = (tuning("A", 1024, Variant::Tile64), tuning("A", 512, Variant::Tile128));
        add(&path, &[a, b.clone()]).unwrap();
        add(&path, &[wide.clone(), newer.clone()]).unwrap();
        assert_eq!(read(&path).unwrap(), [b, wide, newer.clone()]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no drafts are left");

        let many: Vec<Tuning> =
            (0..2 * COUNT_MAX as u32).map(|rows| tuning("C", rows, Variant::Tile64)).collect();
        add(&path, &many).unwrap();
        assert_eq!(read(&path).unwrap(), many[COUNT_MAX..]);
    }

    #[test]
    fn a_damaged_file_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.json");
        let whole = serde_json::to_string(&[tuning("A", 1, Variant::Tile64)]).unwrap();
        for text in
            [&whole[..40], "", "{}", &whole.replace("tile64", "tile7"), &whole.replace("width", "girth")]
        {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("kernels.json is damaged or of another version, ignored"), "{error}");
        }
        let newer = [tuning("B", 1, Variant::Tile64)];
        add(&path, &newer).unwrap();
        assert_eq!(read(&path).unwrap(), newer);
        assert!(matches!(read(folder.path()), Err(TuningsError::Read { .. })));
        assert!(matches!(add(&path.join("x.json"), &newer), Err(TuningsError::Write { .. })));
    }
}
