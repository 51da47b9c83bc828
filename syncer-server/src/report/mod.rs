//! Report files of a run: its curves as lines of JSON and as TensorBoard event files, and a self-contained page.
//!
//! | file | concept |
//! |---|---|
//! | `story` | the data of a report, from a snapshot or from a served run |
//! | `lines` | `history.jsonl` |
//! | `page`, `marks` | `report.html`, and HTML that escapes all foreign text |
//! | `tensorboard` | event files of TensorBoard |

mod html;
mod lines;
mod page;
mod run_report;
mod tensorboard;

use std::path::Path;

use crate::errors::ServerError;
use crate::store::{Store, write_file};
use crate::tape::later_figures;

pub(crate) use html::{Html, count, span};
pub use lines::lines;
pub use page::page;
pub(crate) use page::{HEAD, curve};
pub use run_report::RunReport;
pub use tensorboard::tensorboard;

/// Destinations and options of reports.
#[derive(Clone, Copy, Debug)]
pub struct Reports<'a> {
    /// Existing folder for `history.jsonl` and `report.html`.
    pub out: &'a Path,
    /// Folder for a TensorBoard event file, if one is asked for; created if missing.
    pub tensorboard: Option<&'a Path>,
    /// Whether numbers replace the names of learners.
    pub hides_names: bool,
}

/// Writes reports on the newest snapshot in `dir`.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: there is no run, or no snapshot of it.
/// - `DirCorrupt`: no snapshot is intact.
/// - `Disk`: a file cannot be read or written.
pub fn report(dir: &Path, reports: Reports<'_>) -> Result<(), ServerError> {
    let store = Store::look(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.begun()?;
    let snapshot = store.latest(manifest.run)?.ok_or_else(none)?;
    let params = manifest.layout()?.len() as u64;
    let carried = later_figures(&store, manifest.run, snapshot.carried)?;
    let story = RunReport::new(&snapshot.record, params, carried, reports.hides_names);
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
