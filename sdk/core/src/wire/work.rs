//! Work that a newcomer shows, so that many identities cost somebody many times as much: hashcash over SHA-256.
//!
//! The number `work` solves a challenge for an identity if
//! `SHA-256("archipelago work v1\0" ‖ nonce ‖ identity ‖ work)` begins with `work_bits` zero bits, the bits of each
//! byte counted from its highest; `work` is 64 bits, little endian. It holds for one connection and one key.

use sha2::{Digest, Sha256};

use super::{Challenge, Identity};

/// Whether `work` solves `challenge` for `identity`. Anything does if nothing is asked.
#[must_use]
pub fn is_work(challenge: &Challenge, identity: &Identity, work: u64) -> bool {
    zero_bits(&begun(challenge, identity), work) >= u32::from(challenge.work_bits)
}

/// A search for what solves a challenge, a while at a time.
#[derive(Clone, Debug)]
pub struct Search {
    begun: Sha256,
    bits: u32,
    next: u64,
}

impl Search {
    /// A search that has not begun; it takes `2^work_bits` tries on average.
    #[must_use]
    pub fn new(challenge: &Challenge, identity: &Identity) -> Self {
        Self { begun: begun(challenge, identity), bits: challenge.work_bits.into(), next: 0 }
    }

    /// Tries the next `count` numbers; the first that solves it.
    pub fn go_on(&mut self, count: u32) -> Option<u64> {
        let from = self.next;
        self.next = from.saturating_add(count.into());
        (from..self.next).find(|&work| zero_bits(&self.begun, work) >= self.bits)
    }
}

fn begun(challenge: &Challenge, identity: &Identity) -> Sha256 {
    Sha256::new()
        .chain_update(b"archipelago work v1\0")
        .chain_update(challenge.nonce)
        .chain_update(identity.0)
}

fn zero_bits(begun: &Sha256, work: u64) -> u32 {
    let digest = begun.clone().chain_update(work.to_le_bytes()).finalize();
    let head: [u8; 8] = digest[..8].try_into().expect("SHA-256 has 32 bytes");
    u64::from_be_bytes(head).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RunId;

    #[test]
    fn what_is_found_holds_for_its_challenge_and_key_alone() {
        let challenge = Challenge { run: RunId(3), nonce: [5; 32], work_bits: 10 };
        let (identity, other) = (Identity([1; 32]), Identity([2; 32]));
        let mut search = Search::new(&challenge, &identity);
        let work = std::iter::repeat_with(|| search.go_on(64)).take(1_000).flatten().next().unwrap();
        assert_eq!(work, 1_061, "frozen: peers out there know it");
        assert!(is_work(&challenge, &identity, work));
        assert!(!is_work(&challenge, &identity, work + 1));
        assert!(!is_work(&challenge, &other, work));
        assert!(!is_work(&Challenge { nonce: [6; 32], ..challenge }, &identity, work));
        assert!(!is_work(&Challenge { work_bits: 40, ..challenge }, &identity, work));
        assert!(is_work(&Challenge { work_bits: 0, ..challenge }, &other, 0), "nothing is asked");
    }
}
