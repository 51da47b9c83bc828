//! Bodies of updates, in append-only segment files.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Place;
use crate::store::sync_folder;

/// First bytes of a segment, which identify the kind of file and its layout.
const MAGIC: &[u8; 8] = b"ARCHBOD1";

/// Size of the length prefix of each body, in bytes.
pub(super) const LENGTH_BYTES: u64 = 4;

/// Size at which a segment is closed and the next one starts, in bytes.
pub(super) const SEGMENT_BYTES: u64 = 64 << 20;

/// Folder of segments, open for appending.
#[derive(Debug)]
pub struct Bodies {
    dir: PathBuf,
    /// Open segment: its file, number and length in bytes.
    open: Option<(File, u32, u64)>,
    /// True if appended bytes have not been synced.
    dirty: bool,
    /// True until the folder entry of the open segment has been synced.
    is_new: bool,
    next: u32,
    /// Total size of all segments, in bytes.
    total: u64,
}

impl Bodies {
    /// Opens the folder, and creates it if it is missing. Segments of earlier processes are never appended to, because
    /// a crash may have cut off their ends. `named` are the segments that rows refer to. Their numbers are not reused
    /// even if they are missing, because those rows would then refer to other bodies.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &Path, named: &[u32]) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let there = segments(dir)?;
        let last = there.last().map(|(number, _)| *number).max(named.last().copied());
        let next = last.map_or(1, |last| last + 1);
        let total = there.iter().map(|(_, len)| len).sum();
        if let Some(first) = first_missing(&there, named) {
            tracing::warn!(
                "{} and perhaps more of that folder are missing: the run resumes from its snapshot, but merges before \
                 it cannot be replayed, forked or rolled back; restore the folder from a copy before the next start",
                path(dir, first).display()
            );
        }
        Ok(Self { dir: dir.to_owned(), open: None, dirty: false, is_new: false, next, total })
    }

    /// Appends `bodies` in order. They are on disk after [`Self::sync`]. After an error none of them is appended, and
    /// the call can be repeated.
    ///
    /// # Errors
    /// The system's error.
    pub fn append(&mut self, bodies: &[Arc<Vec<u8>>]) -> io::Result<Place> {
        if self.open.as_ref().is_some_and(|(_, _, len)| *len >= SEGMENT_BYTES) {
            self.sync()?;
            self.abandon();
        }
        let (file, segment, len) = match &mut self.open {
            Some(open) => open,
            None => {
                let number = self.next;
                let mut file = File::options().write(true).create_new(true).open(path(&self.dir, number))?;
                self.next += 1;
                file.write_all(MAGIC)?;
                self.total += MAGIC.len() as u64;
                self.is_new = true;
                self.open.insert((file, number, MAGIC.len() as u64))
            }
        };
        let place = Place { segment: *segment, offset: *len };
        file.seek(SeekFrom::Start(*len))?;
        let mut bytes = Vec::with_capacity(bodies.iter().map(|body| 4 + body.len()).sum());
        for body in bodies {
            let len = u32::try_from(body.len()).map_err(io::Error::other)?;
            bytes.extend(len.to_le_bytes());
            bytes.extend_from_slice(body);
        }
        self.dirty = true;
        file.write_all(&bytes)?;
        *len += bytes.len() as u64;
        self.total += bytes.len() as u64;
        Ok(place)
    }

    /// Syncs all appended bytes to disk.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.dirty) {
            return Ok(());
        }
        let Some((file, ..)) = &self.open else { return Ok(()) };
        file.sync_data()?;
        if std::mem::take(&mut self.is_new) { sync_folder(&self.dir) } else { Ok(()) }
    }

    /// Closes the open segment, so that the next append starts a new one. After a failed sync the content on disk is
    /// unknown, and a second sync would wrongly succeed.
    pub fn abandon(&mut self) {
        (self.open, self.dirty) = (None, false);
    }

    /// Removes the oldest segments until the total size is at most `bytes`, except those numbered `until` or higher.
    /// Returns the number of the oldest remaining segment.
    ///
    /// # Errors
    /// The system's error.
    pub fn forget(&mut self, until: u32, bytes: u64) -> io::Result<u32> {
        let mut all = segments(&self.dir)?;
        let mut total: u64 = all.iter().map(|(_, len)| len).sum();
        let current = self.open.as_ref().map_or(self.next, |(_, number, _)| *number);
        while let Some(&(number, len)) = all.first().filter(|(number, _)| *number < until.min(current)) {
            if total <= bytes {
                break;
            }
            fs::remove_file(path(&self.dir, number))?;
            total -= len;
            all.remove(0);
        }
        self.total = total;
        Ok(all.first().map_or(current, |(number, _)| *number))
    }

    /// Returns the total size of all segments, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.total
    }
}

/// Reader of bodies, also while another process appends to the segments.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    open: Option<(File, u32)>,
}

impl Reader {
    /// Creates a reader of the folder `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), open: None }
    }

    /// Returns the path of a segment.
    #[must_use]
    pub fn path(&self, segment: u32) -> PathBuf {
        path(&self.dir, segment)
    }

    /// Returns the body at `place`, whose length must be `len`, and advances `place` to the next one.
    ///
    /// # Errors
    /// A description of the fault, with the file's name.
    pub fn next(&mut self, place: &mut Place, len: usize) -> Result<Vec<u8>, String> {
        let path = self.path(place.segment);
        let wrong = |error: io::Error| format!("{} at byte {}: {error}", path.display(), place.offset);
        let file = match &mut self.open {
            Some((file, number)) if *number == place.segment => file,
            open => {
                let mut file = File::open(&path).map_err(wrong)?;
                let mut magic = [0; MAGIC.len()];
                file.read_exact(&mut magic).map_err(wrong)?;
                if magic != *MAGIC {
                    return Err(format!("{} is not a segment of bodies", path.display()));
                }
                &mut open.insert((file, place.segment)).0
            }
        };
        file.seek(SeekFrom::Start(place.offset)).map_err(wrong)?;
        let mut there = [0; 4];
        file.read_exact(&mut there).map_err(wrong)?;
        let there = u32::from_le_bytes(there) as usize;
        if there != len {
            let at = place.offset;
            return Err(format!("{} at byte {at}: a body of {there} bytes, expected {len}", path.display()));
        }
        let mut body = vec![0; len];
        file.read_exact(&mut body).map_err(wrong)?;
        place.offset += LENGTH_BYTES + len as u64;
        Ok(body)
    }
}

fn path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:08}.bodies"))
}

/// Returns the first segment in `named` that is missing from `there`. Segments older than all of `there` are not
/// missing: they were removed, and the rows that refer to them are removed later.
fn first_missing(there: &[(u32, u64)], named: &[u32]) -> Option<u32> {
    let is_there = |number: u32| there.iter().any(|(found, _)| *found == number);
    let oldest = there.first().map_or(0, |(number, _)| *number);
    named.iter().copied().find(|number| *number > oldest && !is_there(*number))
}

/// Returns number and length of each segment, oldest first.
pub(super) fn segments(dir: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let Some(number) = number.filter(|_| path.extension().is_some_and(|ending| ending == "bodies")) {
            found.push((number, entry.metadata()?.len()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a start notices missing bodies of recorded merges, and never reuses the numbers of their segments.
    #[test]
    fn segments_that_are_gone_are_noticed_and_their_numbers_are_not_used_again() {
        let missing = |there: &[u32], named: &[u32]| {
            first_missing(&there.iter().map(|number| (*number, 1)).collect::<Vec<_>>(), named)
        };
        assert_eq!(missing(&[], &[1, 2]), Some(1), "the folder was removed");
        assert_eq!(missing(&[1, 3], &[1, 2, 3]), Some(2));
        assert_eq!(missing(&[2, 3], &[1, 2, 3]), None, "the oldest one was removed to make room");
        assert_eq!(missing(&[1, 2], &[1]), None);

        let dir = tempfile::tempdir().unwrap();
        let mut bodies = Bodies::open(dir.path(), &[3, 7]).unwrap();
        assert_eq!(bodies.append(&[Arc::new(vec![1])]).unwrap().segment, 8);
        assert_eq!(Bodies::open(dir.path(), &[3, 7]).unwrap().next, 9);
    }
}
