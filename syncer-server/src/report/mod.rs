//! What a run was, to be kept: its curves as lines of JSON and as event files of TensorBoard, and a page that needs
//! nothing but itself.
//!
//! | file | concept |
//! |---|---|
//! | `story` | what there is to tell, from a snapshot or from a run that goes on |
//! | `lines` | `history.jsonl` |
//! | `page`, `marks` | `report.html`, and HTML in which nobody's text is more than text |
//! | `tensorboard` | event files of TensorBoard |

mod lines;
mod marks;
mod page;
mod story;
mod tensorboard;

use std::path::Path;

use crate::errors::ServerError;
use crate::store::{Store, write_file};
use crate::tape::later_figures;

pub use lines::lines;
pub(crate) use marks::{Html, count, span};
pub use page::page;
pub(crate) use page::{HEAD, curve};
pub use story::Story;
pub use tensorboard::tensorboard;

/// Where reports of a run go, and what is in them.
#[derive(Clone, Copy, Debug)]
pub struct Reports<'a> {
    /// For `history.jsonl` and `report.html`, a folder that is there.
    pub out: &'a Path,
    /// For an event file of TensorBoard, if one is asked for; the folder is made.
    pub tensorboard: Option<&'a Path>,
    /// Whether learners are numbers.
    pub hides_names: bool,
}

/// Reports on the newest snapshot in `dir`.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: there is no run, or no snapshot of it.
/// - `DirCorrupt`: there is no whole one.
/// - `Disk`: something cannot be read or written.
pub fn report(dir: &Path, reports: Reports<'_>) -> Result<(), ServerError> {
    let store = Store::look(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.begun()?;
    let snapshot = store.latest(manifest.run)?.ok_or_else(none)?;
    let params = manifest.layout()?.len() as u64;
    let carried = later_figures(&store, manifest.run, snapshot.carried)?;
    let story = Story::new(&snapshot.record, params, carried, reports.hides_names);
    write_file(&reports.out.join("history.jsonl"), lines(&story.carried).as_bytes())?;
    write_file(&reports.out.join("report.html"), page(&story).as_bytes())?;
    let written_s = modified_s(&store.dir().join("snapshots"));
    reports.tensorboard.map_or(Ok(()), |folder| tensorboard(&story, folder, written_s).map(drop))
}

/// Returns the time at which the last file was written to `folder`, in seconds since 1970; 0 if the system does not
/// know it.
fn modified_s(folder: &Path) -> f64 {
    let modified = std::fs::metadata(folder).and_then(|metadata| metadata.modified());
    let since = modified.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
