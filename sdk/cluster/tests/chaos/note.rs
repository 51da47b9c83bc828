//! Log of an owner's inputs and outputs in a file that survives it. Each note is written before it takes effect.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use archipelago_cluster::{Answer, Bus, Inbox, Services, Tape};
use archipelago_core::cluster::{Notice, Record, Reply};
use archipelago_core::wire::FragmentId;

use crate::support::check::Told;
use crate::support::door::frame;

/// Service with a log file of its answers.
struct Noting<T: ?Sized> {
    service: Arc<T>,
    file: Arc<Mutex<File>>,
}

impl<T: ?Sized> Noting<T> {
    fn note(&self, told: &Told) {
        self.file.lock().unwrap().write_all(&frame(told)).expect("notes can be written");
    }
}

/// Returns the services of an owner with a log.
pub fn noting(services: Services, notes: &Path) -> Services {
    let file = Arc::new(Mutex::new(File::create(notes).expect("a file for notes")));
    let Services { tape, bus, .. } = services.clone();
    let tape = Arc::new(Noting { service: tape, file: Arc::clone(&file) });
    Services { tape, bus: Arc::new(Noting { service: bus, file }), ..services }
}

/// Reads the notes. The last note may be incomplete.
pub fn read(notes: &Path) -> Vec<Told> {
    let bytes = std::fs::read(notes).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut told = Vec::new();
    while let Some((len, more)) = rest.split_first_chunk::<4>() {
        let Some((body, more)) = more.split_at_checked(u32::from_le_bytes(*len) as usize) else { break };
        told.push(rmp_serde::from_slice(body).expect("a note"));
        rest = more;
    }
    told
}

impl Tape for Noting<dyn Tape> {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> Answer<'a, Option<u64>> {
        Box::pin(async move {
            let appended = self.service.append(fragment, expect, record).await?;
            if let Some(seq) = appended {
                self.note(&Told::Appended(fragment, seq, record.clone()));
            }
            Ok(appended)
        })
    }

    fn read(&self, fragment: FragmentId, after: u64) -> Answer<'_, Vec<Record>> {
        self.service.read(fragment, after)
    }

    fn newest(&self, fragment: FragmentId) -> Answer<'_, u64> {
        self.service.newest(fragment)
    }
}

impl Bus for Noting<dyn Bus> {
    fn tell<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> Answer<'a, ()> {
        if let Notice::Ended(round) = notice {
            self.note(&Told::Ended(fragment, *round));
        }
        self.service.tell(fragment, notice)
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> Answer<'a, ()> {
        self.service.reply(fragment, reply)
    }

    fn notices(&self, fragment: FragmentId) -> Answer<'_, Inbox<Notice>> {
        self.service.notices(fragment)
    }

    fn replies(&self, fragment: FragmentId) -> Answer<'_, Inbox<Reply>> {
        self.service.replies(fragment)
    }
}
