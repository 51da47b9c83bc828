//! Valid and damaged bytes of every kind: decoding never panics.

use proptest::prelude::*;

use super::super::header::Header;
use super::*;

fn any_message() -> impl Strategy<Value = Message> {
    let float = any::<u32>().prop_map(f32::from_bits);
    let ids = (any::<u64>(), any::<u64>(), any::<u16>(), any::<u64>());
    let ids =
        ids.prop_map(|(run, round, fragment, base)| (RunId(run), Serial(round), FragmentId(fragment), base));
    let body = prop::collection::vec(any::<u8>(), 0..300);
    let state =
        prop::sample::select(vec![LearnerState::Joining, LearnerState::Paused, LearnerState::Starved]);
    prop_oneof![
        (any::<Option<u64>>(), any::<[u8; 32]>(), "\\PC{0,16}", "\\PC{0,16}").prop_map(
            |(run, identity, name, device)| Message::Hello(Hello {
                invite: run.map(|_| Invite::new(name.clone())),
                run: run.map(RunId),
                layout: run.map(LayoutHash),
                identity: Identity(identity),
                signature: Signature([identity[0]; 64]),
                name,
                device
            })
        ),
        (any::<u64>(), prop::collection::vec(any::<Option<u64>>(), 0..40), float.clone()).prop_map(
            |(run, rounds, lr_max)| {
                let mut welcome = welcome();
                welcome.run = RunId(run);
                welcome.versions = rounds.iter().map(|round| Version(round.unwrap_or(7))).collect();
                welcome.merged = rounds.iter().map(|round| round.map(Serial)).collect();
                welcome.unsettled = rounds.into_iter().map(|round| round.map(Serial)).collect();
                welcome.spec.inner.lr_max = lr_max;
                welcome.spec.exchange.apply = ApplyPolicy::Blend { alpha: lr_max };
                Message::Welcome(Box::new(welcome))
            }
        ),
        (ids.clone(), any::<u32>(), any::<u64>(), body.clone()).prop_map(
            |((run, serial, fragment, base), steps, tokens, body)| Message::Update(Update {
                run,
                fragment,
                serial,
                base: Version(base),
                steps,
                tokens,
                body,
                checksum: base,
                seen: vec![tokens; steps as usize % 3],
            })
        ),
        (ids.clone(), any::<u64>(), body).prop_map(|((run, _, fragment, base), checksum, body)| {
            let (digest, base, version, clock_tokens) = (base, Version(base), Version(checksum), checksum);
            Message::Merged(Merged { run, fragment, base, version, clock_tokens, body, checksum, digest })
        }),
        any::<(u64, bool)>().prop_map(|(run, held)| Message::SetPaused { run: RunId(run), held }),
        (any::<u64>(), 0.001..=1.0).prop_map(|(run, share)| Message::SetDutyCycle {
            run: RunId(run),
            share: Share::new(share).unwrap()
        }),
        (ids, float.clone()).prop_map(|((run, serial, fragment, tokens), weight)| {
            let fate = Fate::Merged { version: Version(tokens), weight, tokens };
            Message::Receipt { run, fragment, serial, fate }
        }),
        (prop::collection::vec(any::<(u64, u32)>(), 0..64), any::<u64>(), float, state).prop_map(
            |(leases, steps, loss, state)| Message::Progress(Progress {
                run: RunId(steps),
                leases: leases.into_iter().map(|(lease, windows)| (LeaseId(lease), windows)).collect(),
                steps,
                tokens: steps,
                step_ms: loss,
                loss,
                state
            })
        ),
    ]
}

proptest! {
    #[test]
    fn messages_come_back(message in any_message()) {
        let bytes = encode(&message);
        let back = decode(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(encode(&back), bytes);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), tag in 1_u8..14) {
        let _ = decode(&bytes);
        let mut framed = Header { tag: Tag::Hello, body_bytes: bytes.len() as u32 }.encode().to_vec();
        framed[6] = tag;
        framed.extend(bytes);
        let _ = decode(&framed);
    }

    #[test]
    fn damaged_messages_never_panic(message in any_message(), hits in prop::collection::vec(any::<(u16, u8)>(), 1..4)) {
        let mut bytes = encode(&message);
        for (place, flip) in hits {
            let place = 12 + usize::from(place) % (bytes.len() - 12);
            bytes[place] ^= flip;
        }
        if let Ok(message) = decode(&bytes) {
            prop_assert!(decode(&encode(&message)).is_ok());
        }
    }

    #[test]
    fn every_shortened_message_is_refused(message in any_message()) {
        let mut bytes = encode(&message);
        while bytes.pop().is_some() {
            let truncated = matches!(decode(&bytes), Err(DecodeError::Truncated { .. }));
            prop_assert!(truncated, "{} bytes", bytes.len());
        }
    }
}
