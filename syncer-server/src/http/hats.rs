//! The bytes of Θ̂, made once for everyone who fetches the same version at the same time.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use archipelago::bytes::from_f32s;
use archipelago::diloco::{FragmentId, Version};
use axum::body::Bytes;

/// Each fragment's bytes, for as long as an answer with them is under way.
pub struct Hats(Vec<Mutex<Weak<Hat>>>);

/// One version of a fragment. It never changes, so all answers may share it.
struct Hat {
    version: Version,
    bytes: Vec<u8>,
}

/// Keeps a [`Hat`] alive while an answer is sent.
struct Held(Arc<Hat>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Hats {
    /// Nothing of `fragments` fragments.
    pub fn new(fragments: usize) -> Self {
        Self((0..fragments).map(|_| Mutex::default()).collect())
    }

    /// `hat`, which is `version` of `fragment`, as little-endian `f32`.
    pub fn bytes(&self, fragment: FragmentId, version: Version, hat: &[f32]) -> Bytes {
        let make = || Hat { version, bytes: from_f32s(hat) };
        let Some(slot) = self.0.get(usize::from(fragment.0)) else { return Bytes::from(make().bytes) };
        // Under the lock, so that others wait for these bytes and do not make them again.
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let known = slot.upgrade().filter(|hat| hat.version == version);
        let hat = known.unwrap_or_else(|| Arc::new(make()));
        *slot = Arc::downgrade(&hat);
        Bytes::from_owner(Held(hat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_under_way_share_one_version() {
        let hats = Hats::new(2);
        let bytes =
            |fragment, version, value: f32| hats.bytes(FragmentId(fragment), Version(version), &[value]);
        let first = bytes(0, 1, 1.5);
        assert_eq!(first, 1.5_f32.to_le_bytes().to_vec());
        let again = bytes(0, 1, 9.0);
        assert_eq!(again.as_ptr(), first.as_ptr(), "the bytes are not made again");
        assert_eq!(first.slice(1..3), &1.5_f32.to_le_bytes()[1..3]);

        assert_eq!(bytes(1, 1, 2.5), 2.5_f32.to_le_bytes().to_vec(), "another fragment");
        assert_eq!(bytes(0, 2, 3.5), 3.5_f32.to_le_bytes().to_vec(), "another version");
        assert_eq!(first, 1.5_f32.to_le_bytes().to_vec(), "whoever has the old one keeps it");
        drop((first, again));
        assert!(hats.0[0].lock().unwrap().upgrade().is_none(), "nothing is kept for nobody");
    }
}
