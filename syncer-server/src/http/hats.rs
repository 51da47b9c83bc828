//! The bytes of Θ̂: made once for everyone who fetches the same version, a few versions of each fragment at most, and
//! to not too many at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::diloco::{FragmentId, Version, halves};
use axum::body::Bytes;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Versions of one fragment at once: the newest for who comes now, the others for transfers under way and for who
/// resumes one. With 2 bytes a parameter all of them together take no more than Θ and Θ̂ do.
const VERSIONS_MAX: usize = 4;

/// Answers under way at once. More would not come sooner, since they share one line.
const ANSWERS_MAX: usize = 64;

/// Requests that wait for their turn at once, and for how long each does.
const WAITING_MAX: usize = 512;
const WAIT: Duration = Duration::from_secs(4);

/// How long an answer takes up a turn.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Who gets parameters, and when.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Answers under way at once.
    pub answers_max: usize,
    /// Requests that wait for their turn at once.
    pub waiting_max: usize,
    /// How long a request waits for its turn before it is sent away.
    pub wait: Duration,
    /// How long an answer takes up a turn at most: who reads slowly must not keep out everybody else. What it holds is
    /// shared, so that nothing grows by those that read on.
    pub turn: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { answers_max: ANSWERS_MAX, waiting_max: WAITING_MAX, wait: WAIT, turn: TURN_MAX }
    }
}

/// Each fragment's bytes, and who gets some.
pub struct Hats {
    slots: Vec<Mutex<VecDeque<Hat>>>,
    terms: Terms,
    turns: Arc<Semaphore>,
    waiting: Semaphore,
}

/// One version of a fragment. It never changes, so all answers may share it.
struct Hat {
    version: Version,
    bytes: Arc<Vec<u8>>,
}

/// The right to send one answer. Dropped, or held for [`Terms::turn`], it goes to the next.
pub struct Turn {
    _ends: oneshot::Sender<()>,
}

/// Keeps a version and a turn while an answer is sent.
struct Held {
    bytes: Arc<Vec<u8>>,
    _turn: Turn,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Hats {
    /// Nothing of `fragments` fragments.
    pub fn new(fragments: usize, terms: Terms) -> Self {
        Self {
            slots: (0..fragments).map(|_| Mutex::default()).collect(),
            terms,
            turns: Arc::new(Semaphore::new(terms.answers_max)),
            waiting: Semaphore::new(terms.waiting_max),
        }
    }

    /// Waits for a turn; `None` if too many others do, or it takes too long.
    pub async fn turn(&self) -> Option<Turn> {
        let _waits = self.waiting.try_acquire().ok()?;
        let permit = Arc::clone(&self.turns).acquire_owned();
        let permit = timeout(self.terms.wait, permit).await.ok()?.ok()?;
        let (ends, ended) = oneshot::channel::<()>();
        let time = self.terms.turn;
        tokio::spawn(async move {
            // It ends either way: the answer was sent and its sender is gone, or its time is up.
            timeout(time, ended).await.ok();
            drop(permit);
        });
        Some(Turn { _ends: ends })
    }

    /// `version` of `fragment`, if it is still there.
    pub fn kept(&self, fragment: FragmentId, version: Version) -> Option<Arc<Vec<u8>>> {
        let slot = self.slots.get(usize::from(fragment.0))?.lock().unwrap_or_else(PoisonError::into_inner);
        slot.iter().find(|hat| hat.version == version).map(|hat| Arc::clone(&hat.bytes))
    }

    /// `hat`, which is `version` of `fragment`, two bytes a value. If all versions that may be there are under way,
    /// the newest of them, for which the changes since follow.
    pub fn newest(&self, fragment: FragmentId, version: Version, hat: &[f32]) -> (Version, Arc<Vec<u8>>) {
        let make = || Arc::new(halves::to_bytes(hat));
        let Some(slot) = self.slots.get(usize::from(fragment.0)) else { return (version, make()) };
        // Under the lock, so that others wait for these bytes and do not make them again.
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = slot.iter().find(|hat| hat.version == version) {
            return (version, Arc::clone(&known.bytes));
        }
        if slot.len() >= VERSIONS_MAX {
            match slot.iter().position(|hat| Arc::strong_count(&hat.bytes) == 1) {
                Some(idle) => drop(slot.remove(idle)),
                None => {
                    let newest = slot.back().expect("some are there");
                    return (newest.version, Arc::clone(&newest.bytes));
                }
            }
        }
        let bytes = make();
        slot.push_back(Hat { version, bytes: Arc::clone(&bytes) });
        (version, bytes)
    }
}

/// What an answer sends: `bytes`, which stay, and the turn, until it is sent.
pub fn held(bytes: Arc<Vec<u8>>, turn: Turn) -> Bytes {
    Bytes::from_owner(Held { bytes, _turn: turn })
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: FragmentId = FragmentId(0);

    fn two(value: f32) -> Vec<u8> {
        halves::to_bytes(&[value])
    }

    #[test]
    fn answers_share_one_version() {
        let hats = Hats::new(2, Terms::default());
        let bytes =
            |fragment, version, value: f32| hats.newest(FragmentId(fragment), Version(version), &[value]).1;
        let first = bytes(0, 1, 1.5);
        assert_eq!(*first, two(1.5));
        assert!(Arc::ptr_eq(&bytes(0, 1, 9.0), &first), "the bytes are not made again");
        assert_eq!(*bytes(1, 1, 2.5), two(2.5), "another fragment");
        assert_eq!(*bytes(0, 2, 3.5), two(3.5), "another version");
        assert!(
            Arc::ptr_eq(&hats.kept(P0, Version(1)).unwrap(), &first),
            "the old one stays for who resumes"
        );
        assert!(hats.kept(P0, Version(3)).is_none() && hats.kept(FragmentId(2), Version(1)).is_none());
    }

    #[test]
    fn few_versions_are_there_at_once() {
        let hats = Hats::new(1, Terms::default());
        let newest = |version: u64| hats.newest(P0, Version(version), &[version as f32]);
        // Nobody holds any: the oldest makes room.
        (1..=9).for_each(|version| assert_eq!(newest(version).0, Version(version)));
        assert!(hats.kept(P0, Version(5)).is_none() && hats.kept(P0, Version(6)).is_some());
        let held: Vec<_> = (10..14).map(newest).collect();
        let (version, bytes) = newest(14);
        assert_eq!((version, &*bytes), (Version(13), &two(13.0)), "all are under way");
        drop((bytes, held));
        assert_eq!(newest(14).0, Version(14));
    }

    const LONG: Duration = Duration::from_secs(3_600);

    fn terms(wait: Duration, turn: Duration) -> Hats {
        Hats::new(1, Terms { answers_max: 2, waiting_max: 1, wait, turn })
    }

    #[tokio::test]
    async fn turns_are_few() {
        let hats = terms(Duration::ZERO, LONG);
        let _turns = (hats.turn().await.unwrap(), hats.turn().await.unwrap());
        assert!(hats.turn().await.is_none(), "it does not wait");

        let hats = terms(LONG, LONG);
        let (first, _second) = (hats.turn().await.unwrap(), hats.turn().await.unwrap());
        let (third, fourth) = futures::join!(hats.turn(), async {
            let fourth = hats.turn().await;
            drop(first);
            fourth
        });
        assert!(fourth.is_none(), "one waits, and no more");
        assert!(third.is_some(), "an answer that was sent makes room");
    }

    #[tokio::test]
    async fn who_reads_slowly_keeps_nobody_out() {
        let hats = terms(LONG, Duration::ZERO);
        let mut turns = Vec::new();
        for _ in 0..10 {
            turns.push(hats.turn().await.unwrap());
        }
        assert_eq!(turns.len(), 10);
    }
}
