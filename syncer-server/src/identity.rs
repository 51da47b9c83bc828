//! Verification of the identity in a `Hello`.

use archipelago_core::wire::{Challenge, Hello};
use ed25519_dalek::{Signature, VerifyingKey};

/// Reasons to reject the identity in a `Hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityFault {
    /// The identity is not a point of the curve, or is a weak key for which anyone could sign.
    #[error("the identity is not an Ed25519 key: begin with a new one")]
    Key,
    /// The key did not sign this connection's challenge.
    #[error("Hello is not signed with its key for this connection: sign the challenge that came with it")]
    Signature,
}

/// Verifies the signature of `hello` strictly. Keys and points of small order and non-canonical encodings are refused,
/// so that each key has one encoding and one signature.
///
/// # Errors
/// Each of [`IdentityFault`].
pub fn verify(challenge: &Challenge, hello: &Hello) -> Result<(), IdentityFault> {
    let key = VerifyingKey::from_bytes(&hello.identity.0).map_err(|_| IdentityFault::Key)?;
    // A non-canonical encoding decodes to a point with another encoding.
    if key.is_weak() || key.to_edwards().compress().to_bytes() != hello.identity.0 {
        return Err(IdentityFault::Key);
    }
    let signature = Signature::from_bytes(&hello.signature.0);
    key.verify_strict(&challenge.text(), &signature).map_err(|_| IdentityFault::Signature)
}

#[cfg(test)]
mod tests {
    use archipelago_core::wire::{Identity, RunId, Signature as Signed};
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    const CHALLENGE: Challenge = Challenge { run: RunId(7), nonce: [3; 32] };

    fn hello(identity: Identity, signature: Signed) -> Hello {
        let (name, device) = (String::new(), String::new());
        Hello { run: None, layout: None, identity, signature, name, device, invite: None }
    }

    #[test]
    fn a_signature_serves_one_challenge_and_one_key() {
        let key = SigningKey::from_bytes(&[1; 32]);
        let identity = Identity(key.verifying_key().to_bytes());
        let signed = Signed(key.sign(&CHALLENGE.text()).to_bytes());
        let check = |challenge: Challenge, identity, signature, expected| {
            assert_eq!(verify(&challenge, &hello(identity, signature)), expected);
        };
        check(CHALLENGE, identity, signed, Ok(()));
        let wrong = Err(IdentityFault::Signature);
        check(Challenge { nonce: [4; 32], ..CHALLENGE }, identity, signed, wrong);
        check(Challenge { run: RunId(8), ..CHALLENGE }, identity, signed, wrong);
        check(
            CHALLENGE,
            Identity(SigningKey::from_bytes(&[2; 32]).verifying_key().to_bytes()),
            signed,
            wrong,
        );
        for place in [0, 31, 32, 63] {
            let mut forged = signed;
            forged.0[place] ^= 1;
            check(CHALLENGE, identity, forged, wrong);
        }
        // The same number, not reduced: s + L, which RFC 8032 forbids.
        let order =
            [0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14];
        let mut malleable = signed;
        let mut carry = 0_u16;
        for (i, byte) in malleable.0[32..].iter_mut().enumerate() {
            let term = order.get(i).copied().unwrap_or(if i == 31 { 0x10 } else { 0 });
            let sum = u16::from(*byte) + term + carry;
            (*byte, carry) = (sum as u8, sum >> 8);
        }
        check(CHALLENGE, identity, malleable, wrong);
    }

    /// Goal: keys for which anyone can sign, and malformed keys, are distinguished from wrong signatures.
    #[test]
    fn weak_and_malformed_keys_are_refused() {
        // The points of order 1, 2, 4 and 8, and other encodings that decode to them (Cofactor explained, section 4).
        let small = [
            "0100000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000080",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        ];
        let bytes = |hex: &str| -> [u8; 32] {
            std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        };
        // Values from the prime on: non-canonical encodings of 0 to 18.
        let long =
            (0xed..=0xff_u8).flat_map(|low| [0x7f, 0xff].map(|high| (low, high))).map(|(low, high)| {
                let mut bytes = [0xff; 32];
                (bytes[0], bytes[31]) = (low, high);
                bytes
            });
        // With the neutral element as key, lax verifiers accept this signature for any text.
        let mut trivial = [0; 64];
        trivial[0] = 1;
        let mut points = 0;
        for identity in small.iter().copied().map(bytes).chain(long).chain([[2; 32]]) {
            points += u32::from(VerifyingKey::from_bytes(&identity).is_ok());
            let fault = verify(&CHALLENGE, &hello(Identity(identity), Signed(trivial)));
            assert_eq!(fault, Err(IdentityFault::Key), "{identity:02x?}");
        }
        assert!(points > 20, "most of them decode: {points}");
    }
}
