//! Commands of the owner of the run, given at any gateway, on a separate tape that every process reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_core::cluster::{AdminCommand, OF_THE_RUN, Record};
use tokio::time::{Instant, sleep};

use crate::retry::{persist, wait_for};
use crate::service::{ServiceError, Services, Tape};

/// Interval at which the tape is polled. A command is in force everywhere after little more than this time.
const POLL_EVERY: Duration = Duration::from_millis(300);
/// Time limit for a starting process while the tape does not answer.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of attempts to append a command. An attempt fails if another command is appended first.
const TRIES: u32 = 32;

/// Access to the commands of a run.
#[derive(Clone)]
pub struct AdminCommandLog {
    tape: Arc<dyn Tape>,
    /// Number of the newest command read by any clone.
    known: Arc<AtomicU64>,
}

impl AdminCommandLog {
    /// Returns access over these services.
    #[must_use]
    pub fn of(services: &Services) -> Self {
        Self { tape: Arc::clone(&services.tape), known: Arc::default() }
    }

    /// Reads all commands after number `after`, in order.
    ///
    /// # Errors
    /// Those of [`Tape::read`]; [`ServiceError::Damaged`] if the tape has other records.
    pub async fn read(&self, after: u64) -> Result<Vec<AdminCommand>, ServiceError> {
        let records = self.tape.read(OF_THE_RUN, after).await?;
        self.known.fetch_max(after + records.len() as u64, Ordering::Relaxed);
        let command = |record| match record {
            Record::Decreed(command) => Ok(command),
            other => Err(ServiceError::Damaged {
                place: "the tape of the owner's orders".to_owned(),
                detail: format!("{other:?} is not an order"),
            }),
        };
        records.into_iter().map(command).collect()
    }

    /// Appends a command. Returns its number.
    ///
    /// # Errors
    /// Those of [`Tape::append`] and [`Self::read`], and [`ServiceError::Silent`] if all attempts fail. After
    /// [`ServiceError::Silent`] the command may be on the tape.
    pub async fn append(&self, command: AdminCommand) -> Result<u64, ServiceError> {
        let record = Record::Decreed(command);
        for _ in 0..TRIES {
            let known = self.known.load(Ordering::Relaxed);
            let last = known + self.read(known).await?.len() as u64;
            match self.tape.append(OF_THE_RUN, last, &record).await {
                Ok(Some(seq)) => return Ok(seq),
                // Another command was appended just before.
                Ok(None) => {}
                // The command may be on the tape. If it is not there, the first error is returned.
                Err(silent @ ServiceError::Silent { .. }) => {
                    return match self.tape.read(OF_THE_RUN, last).await?.first() {
                        Some(first) if *first == record => Ok(last + 1),
                        _ => Err(silent),
                    };
                }
                Err(error) => return Err(error),
            }
        }
        let (place, detail) =
            ("the tape of the owner's orders".to_owned(), "too many concurrent writers".to_owned());
        Err(ServiceError::Silent { place, detail })
    }

    /// Returns the settings that the processes of the run share: those of the first process. If the tape is empty,
    /// this process is the first one, with the settings `ours`. Waits for a tape that does not answer yet.
    ///
    /// # Errors
    /// Those of [`Self::read`] and [`Tape::append`].
    pub async fn agree(&self, ours: &[(String, String)]) -> Result<Vec<(String, String)>, ServiceError> {
        wait_for(Instant::now() + BEGIN_WITHIN, || self.agree_at_once(ours)).await
    }

    /// Reads all commands so far, in order. Waits for a tape that does not answer yet.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub async fn past(&self) -> Result<Vec<AdminCommand>, ServiceError> {
        wait_for(Instant::now() + BEGIN_WITHIN, || self.read(0)).await
    }

    async fn agree_at_once(&self, ours: &[(String, String)]) -> Result<Vec<(String, String)>, ServiceError> {
        let record = Record::Decreed(AdminCommand::Agreed(ours.to_vec()));
        loop {
            if let Some(first) = self.read(0).await?.into_iter().next() {
                return match first {
                    AdminCommand::Agreed(settings) => Ok(settings),
                    // No command may precede the settings.
                    _ => Ok(Vec::new()),
                };
            }
            // Another starting process may have appended first; the next iteration then reads its settings.
            self.tape.append(OF_THE_RUN, 0, &record).await?;
        }
    }

    /// Orders the last round of each fragment, unless that was ordered before. Retries until it succeeds.
    pub async fn finish(&self) {
        let finish = || async {
            if !self.read(0).await?.contains(&AdminCommand::Finish) {
                self.append(AdminCommand::Finish).await?;
            }
            Ok(())
        };
        persist(finish).await;
    }

    /// Returns a reader of the commands after number `last`.
    #[must_use]
    pub fn after(&self, last: u64) -> Reader {
        Reader { commands: self.clone(), last, waiting: VecDeque::new() }
    }
}

/// Reader of commands as they are appended.
pub struct Reader {
    commands: AdminCommandLog,
    /// Number of the newest command that was read from the tape.
    last: u64,
    waiting: VecDeque<AdminCommand>,
}

impl Reader {
    /// Returns the next command and its number. It is cancel safe.
    pub async fn next(&mut self) -> (u64, AdminCommand) {
        loop {
            if let Some(command) = self.waiting.pop_front() {
                return (self.last - self.waiting.len() as u64, command);
            }
            let more = persist(|| self.commands.read(self.last)).await;
            if more.is_empty() {
                sleep(POLL_EVERY).await;
            }
            self.last += more.len() as u64;
            self.waiting = more.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Local;

    /// Goal: all processes read the same commands in the same order, each once, regardless of the process that gave
    /// them.
    #[tokio::test]
    async fn all_read_the_same() {
        let services = Local::services();
        let [one, other] = [AdminCommandLog::of(&services), AdminCommandLog::of(&services)];
        let ours = [("merge".to_owned(), "mean".to_owned())];
        assert_eq!(one.agree(&ours).await.unwrap(), ours);
        assert_eq!(other.agree(&[]).await.unwrap(), ours, "the first one says what holds");
        let mut reader = other.after(1);
        let given = futures_of(&[&one, &other]).await;
        assert_eq!(given, (2..=21).collect::<Vec<u64>>(), "each has a number of its own");
        one.finish().await;
        other.finish().await;
        let mut read = Vec::new();
        while read.last().is_none_or(|(_, command)| *command != AdminCommand::Finish) {
            read.push(reader.next().await);
        }
        assert_eq!(read.len(), 21);
        assert!(read.iter().zip(2..).all(|((seq, _), expected)| *seq == expected), "{read:?}");
        assert_eq!(one.read(22).await.unwrap(), [], "the end is ordered once");
        let after = one.read(10).await.unwrap();
        assert_eq!(after.len(), 12);
    }

    /// Gives ten commands through each handle, all at the same time. Returns their numbers.
    async fn futures_of(all: &[&AdminCommandLog]) -> Vec<u64> {
        let mut giving = tokio::task::JoinSet::new();
        for held in [true, false].repeat(5) {
            for commands in all {
                let commands = (*commands).clone();
                giving.spawn(async move { commands.append(AdminCommand::Hold(held)).await.unwrap() });
            }
        }
        let mut numbers = giving.join_all().await;
        numbers.sort_unstable();
        numbers
    }
}
