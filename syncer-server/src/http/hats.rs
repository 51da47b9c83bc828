//! Cache of encoded Θ̂. Each version of a fragment is encoded once for all peers, and a few versions are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use archipelago_core::diloco::{FragmentId, Version, binary16};
use axum::body::Bytes;

/// Maximum number of kept versions per fragment: the newest for new requests, the others for running and resumed
/// transfers. At 2 bytes a parameter, all of them together take as much memory as Θ and Θ̂.
const VERSIONS_MAX: usize = 4;

/// Encoded versions of all fragments.
pub struct Hats {
    slots: Vec<Mutex<VecDeque<Hat>>>,
}

/// One encoded version of a fragment. It never changes, so all answers share it.
struct Hat {
    version: Version,
    bytes: Arc<Vec<u8>>,
}

/// Bytes of a version that stay in memory while an answer sends them.
struct Sent(Arc<Vec<u8>>);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Hats {
    /// Creates an empty cache for `fragments` fragments.
    pub fn new(fragments: usize) -> Self {
        Self { slots: (0..fragments).map(|_| Mutex::default()).collect() }
    }

    /// Returns the bytes of `version` of `fragment`, if they are still kept.
    pub fn kept(&self, fragment: FragmentId, version: Version) -> Option<Arc<Vec<u8>>> {
        let slot = self.slots.get(usize::from(fragment.0))?.lock().unwrap_or_else(PoisonError::into_inner);
        slot.iter().find(|hat| hat.version == version).map(|hat| Arc::clone(&hat.bytes))
    }

    /// Returns `version` and its bytes, encoded from `hat`, the values of `fragment`. If answers are still sending
    /// every kept version, it returns the newest kept one instead; the peer then needs the changes since that version.
    pub fn newest(&self, fragment: FragmentId, version: Version, hat: &[f32]) -> (Version, Arc<Vec<u8>>) {
        let make = || Arc::new(binary16::to_bytes(hat));
        let Some(slot) = self.slots.get(usize::from(fragment.0)) else { return (version, make()) };
        // Encoded under the lock, so that other requests wait for these bytes instead of encoding them again.
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

/// Wraps the bytes of a version for an answer.
pub fn sent(version: Arc<Vec<u8>>) -> Bytes {
    Bytes::from_owner(Sent(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: FragmentId = FragmentId(0);

    fn two(value: f32) -> Vec<u8> {
        binary16::to_bytes(&[value])
    }

    #[test]
    fn answers_share_one_version() {
        let hats = Hats::new(2);
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
    fn few_versions_are_kept_at_once() {
        let hats = Hats::new(1);
        let newest = |version: u64| hats.newest(P0, Version(version), &[version as f32]);
        // No answer uses a version, so the oldest is replaced.
        (1..=9).for_each(|version| assert_eq!(newest(version).0, Version(version)));
        assert!(hats.kept(P0, Version(5)).is_none() && hats.kept(P0, Version(6)).is_some());
        let held: Vec<_> = (10..14).map(newest).collect();
        let (version, bytes) = newest(14);
        assert_eq!((version, &*bytes), (Version(13), &two(13.0)), "all are under way");
        drop((bytes, held));
        assert_eq!(newest(14).0, Version(14));
    }
}
