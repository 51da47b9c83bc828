//! Round trips of every message, and their frozen bytes.

use super::*;
use crate::wire::codec::Header;
use proptest::prelude::*;

/// Fixed bits, because Rust does not define those of `f32::NAN`.
const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// Returns samples of all messages, with their names in the golden file.
pub(super) fn samples() -> Vec<(&'static str, Message)> {
    let (run, serial, fragment) = (RunId(0x0123_4567_89ab_cdef), Serial(300), FragmentId(7));
    let grant = LeaseGrant { lease: LeaseId(9), epoch: 1, shard: 2, start: 4_000, windows: 64 };
    let receipt = |fate| Message::Receipt { run, fragment, serial, fate };
    let merged = Fate::Merged { version: Version(43), weight: 0.25, tokens: 8_192 };
    vec![
        ("challenge", Message::Challenge(challenge())),
        ("hello", Message::Hello(hello())),
        ("welcome", Message::Welcome(Box::new(welcome()))),
        ("welcome-experts", Message::Welcome(Box::new(mixture()))),
        ("welcome-masks", Message::Welcome(Box::new(with_masks()))),
        ("welcome-muon", Message::Welcome(Box::new(with_muon()))),
        ("welcome-frozen", Message::Welcome(Box::new(with_frozen()))),
        ("ready", Message::Ready { run, layout: LayoutHash(0xfeed), batch: 32 }),
        ("collect", Message::Collect { run, fragment, base: Version(42) }),
        ("update", Message::Update(update(vec![1, 2, 3]))),
        ("pass", Message::NoUpdate { run, fragment }),
        ("receipt-merged", receipt(merged)),
        ("receipt-late", receipt(Fate::Late(LateReason::RoundOver))),
        ("receipt-refused", receipt(Fate::Refused(Refusal::Norm))),
        ("merged", Message::Merged(change(vec![4, 5]))),
        ("arrived", Message::UpdateReceived { run, fragment, serial }),
        ("holds", Message::VersionAck { run, fragment, version: Version(43) }),
        ("behind", Message::Resync { run, fragment, version: Version(43) }),
        ("lease", Message::Lease { run, grant }),
        ("progress", Message::Progress(progress(NAN))),
        ("bye", Message::Bye(Bye { wait_ms: 12_000, ..Bye::new(CloseCode::Dropped, "back in a while") })),
        ("hold", Message::SetPaused { run, held: true }),
        ("measure", Message::Measure { run, number: 3, versions: vec![Version(42), Version(300)] }),
        ("measured", Message::Measured { run, number: 3, loss: Some(2.5) }),
        ("measured-not", Message::Measured { run, number: 3, loss: None }),
        ("pace", Message::SetDutyCycle { run, share: Share::new(0.25).unwrap() }),
    ]
}

pub(super) fn update(body: Vec<u8>) -> Update {
    Update {
        run: RunId(u64::MAX),
        fragment: FragmentId(7),
        serial: Serial(300),
        base: Version(42),
        steps: 24,
        tokens: 24_576,
        body,
        checksum: 0x0102_0304_0506_0708,
        seen: Vec::new(),
    }
}

pub(super) fn change(body: Vec<u8>) -> Merged {
    Merged {
        run: RunId(u64::MAX),
        fragment: FragmentId(7),
        base: Version(42),
        version: Version(43),
        clock_tokens: 1_000_000,
        body,
        checksum: 0x0102_0304_0506_0708,
        digest: 0x1112_1314_1516_1718,
    }
}

fn challenge() -> Challenge {
    Challenge { run: RunId(3), nonce: [0xa5; 32] }
}

fn hello() -> Hello {
    Hello {
        run: None,
        layout: Some(LayoutHash(5)),
        identity: Identity(*b"\x000123456789abcdefghijklmnopqrst\xff"),
        signature: Signature([0xc3; 64]),
        name: "lab 3".into(),
        device: "cpu avx512 2 threads".into(),
        invite: Some(Invite::new("come-in")),
    }
}

fn progress(loss: f32) -> Progress {
    Progress {
        run: RunId(3),
        leases: vec![(LeaseId(8), 64), (LeaseId(9), 12)],
        steps: 1_000,
        tokens: 1_024_000,
        step_ms: 31.5,
        loss,
        state: LearnerState::Training,
    }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        run: RunId(3),
        learner: LearnerId(2),
        spec: spec(),
        layout: LayoutHash(5),
        versions: vec![Version(42), Version(41)],
        clock_tokens: 1_000_000,
        merged: vec![Some(Serial(300)), None],
        unsettled: vec![None, Some(Serial(301))],
        leases: vec![LeaseId(9)],
        tokens_trained: 65_536,
        tokens_merged: 60_000,
        held: false,
        share: Share::new(0.125).unwrap(),
    }
}

/// Welcome to a run whose model has experts.
fn mixture() -> Welcome {
    let Welcome { mut spec, .. } = welcome();
    spec.model.experts = Some(Mixture { count: 8, per_token: 2 });
    Welcome { spec, ..welcome() }
}

/// Welcome to a run with masked tokens.
fn with_masks() -> Welcome {
    let Welcome { mut spec, .. } = welcome();
    spec.data.masks = true;
    Welcome { spec, ..welcome() }
}

/// Welcome to a run with another inner optimiser.
fn with_muon() -> Welcome {
    let Welcome { mut spec, .. } = welcome();
    spec.inner.optimiser = Optimiser::Muon;
    Welcome { spec, ..welcome() }
}

/// Welcome to a run with frozen weights.
fn with_frozen() -> Welcome {
    let Welcome { mut spec, .. } = welcome();
    let (form, part_bytes, sha256) = (FrozenForm::Int8, 4 << 20, [[0xcd; 32], [0xce; 32]].concat());
    spec.frozen = Some(Frozen { form, bytes: 5 << 20, part_bytes, sha256 });
    Welcome { spec, ..welcome() }
}

fn spec() -> RunSpec {
    RunSpec {
        model: Model {
            context: 128,
            vocab: 256,
            tensors: vec![
                Tensor { name: "scores".into(), rows: 256, cols: 32, merge: MergeClass::Mean },
                Tensor { name: "bias".into(), rows: 1, cols: 32, merge: MergeClass::Radial },
            ],
            architecture: Architecture { name: "bigrams".into(), settings: b"width 32".to_vec() },
            experts: None,
        },
        inner: InnerSpec {
            batch: 8,
            lr_max: 2e-3,
            lr_min_ratio: 0.1,
            warmup_tokens: 100_000,
            total_tokens: 3_000_000,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
            optimiser: Optimiser::AdamW,
        },
        exchange: ExchangeSpec {
            fragments: 2,
            sync_every: 24,
            block: 256,
            code: Code::Int4,
            apply: ApplyPolicy::Keep { residue: true },
        },
        data: DataSpec {
            token_bytes: 2,
            masks: false,
            shards: vec![ShardSpec { tokens: 1 << 20, sha256: [0xab; 32] }],
        },
        seed: 17,
        frozen: None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// If this test fails, either undo the change, or raise `VERSION` and rewrite the file.
#[test]
fn bytes_are_frozen() {
    let golden = include_str!("../../../../tests/golden/wire/bytes.txt");
    let found: String =
        samples().iter().map(|(name, message)| format!("{name} {}\n", hex(&encode(message)))).collect();
    assert_eq!(found, golden, "\n{found}");
}

/// Goal: deployed learners sign exactly these bytes.
#[test]
fn the_signed_text_is_frozen() {
    let text = challenge().text();
    assert_eq!(text.len(), 64);
    let expected = [&b"archipelago hello v1\0\0\x08\0\x03\0\0\0\0\0\0\0"[..], &[0xa5; 32]].concat();
    assert_eq!(text, expected);
}

#[test]
fn samples_come_back() {
    for (name, message) in samples() {
        let bytes = encode(&message);
        let back = decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Compared as bytes, because a NaN differs from itself.
        assert_eq!(encode(&back), bytes, "{name}");
        assert_eq!(back.tag(), message.tag(), "{name}");
    }
    let Ok(Message::Welcome(back)) = decode(&encode(&Message::Welcome(Box::new(mixture())))) else {
        panic!("no welcome");
    };
    assert_eq!(back.spec, mixture().spec);
    let Ok(Message::Welcome(back)) = decode(&encode(&Message::Welcome(Box::new(with_masks())))) else {
        panic!("no welcome");
    };
    assert!(back.spec.data.masks);
    let Ok(Message::Welcome(back)) = decode(&encode(&Message::Welcome(Box::new(with_muon())))) else {
        panic!("no welcome");
    };
    assert_eq!(back.spec, with_muon().spec);
    let Ok(Message::Welcome(back)) = decode(&encode(&Message::Welcome(Box::new(with_frozen())))) else {
        panic!("no welcome");
    };
    assert_eq!(back.spec, with_frozen().spec);
    let Ok(Message::Progress(back)) = decode(&encode(&Message::Progress(progress(NAN)))) else {
        panic!("no progress");
    };
    assert_eq!(back.loss.to_bits(), NAN.to_bits());
}

#[test]
fn covers_every_tag() {
    let mut tags: Vec<Tag> = samples().iter().map(|(_, message)| message.tag()).collect();
    tags.dedup();
    tags.push(Tag::Chunk);
    assert_eq!(tags, Tag::ALL, "one sample of each message, in the order of the table");
    let bulk: Vec<Tag> = samples().iter().filter(|(_, m)| m.is_bulk()).map(|(_, m)| m.tag()).collect();
    assert_eq!(bulk, [Tag::Update, Tag::Merged]);
    let outside: Vec<Tag> =
        samples().iter().filter(|(_, m)| m.run().is_none()).map(|(_, m)| m.tag()).collect();
    assert_eq!(outside, [Tag::Hello, Tag::Bye], "all others name the run that they belong to");
}

#[test]
fn largest_control_messages_keep_their_limits() {
    let (run, serial, fragment) = (RunId(u64::MAX), Serial(u64::MAX), FragmentId(u16::MAX));
    let grant = LeaseGrant {
        lease: LeaseId(u64::MAX),
        epoch: u32::MAX,
        shard: u32::MAX,
        start: u32::MAX,
        windows: u32::MAX,
    };
    let fate = Fate::Merged { version: Version(u64::MAX), weight: 1.0, tokens: u64::MAX };
    let text = |bytes: u32| "x".repeat(bytes as usize);
    let mut long = hello();
    (long.run, long.layout) = (Some(run), Some(LayoutHash(u64::MAX)));
    (long.name, long.device) = (text(NAME_BYTES_MAX), text(NAME_BYTES_MAX));
    long.invite = Some(Invite::new(text(INVITE_BYTES_MAX)));
    let mut busy = progress(0.0);
    busy.leases = vec![(LeaseId(u64::MAX), u32::MAX); crate::data::LEASES_MAX as usize];
    let mut hard = challenge();
    hard.run = run;
    for message in [
        Message::Challenge(hard),
        Message::Hello(long),
        Message::Ready { run, layout: LayoutHash(u64::MAX), batch: u32::MAX },
        Message::Collect { run, fragment, base: Version(u64::MAX) },
        Message::UpdateReceived { run, fragment, serial },
        Message::VersionAck { run, fragment, version: Version(u64::MAX) },
        Message::Resync { run, fragment, version: Version(u64::MAX) },
        Message::NoUpdate { run, fragment },
        Message::Receipt { run, fragment, serial, fate },
        Message::Lease { run, grant },
        Message::SetPaused { run, held: true },
        Message::SetDutyCycle { run, share: Share::FULL },
        Message::Progress(busy),
        Message::Bye(Bye { wait_ms: u32::MAX, ..Bye::new(CloseCode::Done, text(REASON_BYTES_MAX)) }),
    ] {
        assert_eq!(decode(&encode(&message)).as_ref(), Ok(&message));
    }
}

#[test]
fn framing_of_parameters_costs_what_is_stated() {
    let overhead = |message: &Message, body: usize| encode(message).len() - body;
    // A body of this length needs the longest length field.
    let body = vec![0; 1 << 16];
    let typical = [Message::Update(update(body.clone())), Message::Merged(change(body.clone()))];
    assert_eq!(typical.map(|message| overhead(&message, body.len())), [45, 53]);

    let mut widest = (update(body.clone()), change(body.clone()));
    widest.0.serial = Serial(u64::MAX);
    (widest.0.fragment, widest.1.fragment) = (FragmentId(u16::MAX), FragmentId(u16::MAX));
    (widest.0.base, widest.1.base) = (Version(u64::MAX), Version(u64::MAX));
    (widest.0.steps, widest.1.version) = (u32::MAX, Version(u64::MAX));
    (widest.0.tokens, widest.1.clock_tokens) = (u64::MAX, u64::MAX);
    let widest = [Message::Update(widest.0), Message::Merged(widest.1)];
    assert_eq!(widest.map(|message| overhead(&message, body.len())), [71, 75]);
}

/// Goal: 12,000 values at 4.0625 bits take at most 4.25 bits each on the socket, in both directions.
#[test]
fn a_fragment_keeps_the_budget() {
    let values = 12_000.0;
    let body = vec![0; (values * 4.0625_f64 / 8.0).ceil() as usize];
    for message in [Message::Update(update(body.clone())), Message::Merged(change(body.clone()))] {
        // A WebSocket frame of this size has a header of 4 bytes, and a mask of 4 bytes if it comes from the client.
        let bytes: usize = frames(encode(&message), 1).map(|frame| frame.len() + 8).sum();
        let bits = bytes as f64 * 8.0 / values;
        assert!(bits <= 4.25, "{bits}");
    }
}

#[test]
fn says_what_is_wrong_with_a_body() {
    let framed = |tag: Tag, body: &[u8]| {
        let header = Header { tag, body_bytes: body.len() as u32 };
        decode(&[&header.encode(), body].concat())
    };
    let fault = |tag, at, fault| Err(DecodeError::Body { tag, at, fault });
    assert_eq!(framed(Tag::NoUpdate, &[]), fault(Tag::NoUpdate, 0, BodyFault::Overrun));
    assert_eq!(framed(Tag::NoUpdate, &[0x92, 1, 2, 3]), fault(Tag::NoUpdate, 3, BodyFault::Trailing));
    assert_eq!(framed(Tag::Chunk, &[0x90]), Err(DecodeError::StrayChunk));
    assert!(framed(Tag::NoUpdate, &[0x92, 1, 2]).is_ok());
    for body in [
        &[0x91, 1][..],
        &[0x93, 1, 2, 3],
        &[0x92, 1, 0xc0],
        &[0x92, 1, 0xff],
        &[0x92, 1, 0xce, 0, 1, 0, 0],
        &[0xc0],
    ] {
        let found = framed(Tag::NoUpdate, body);
        assert!(
            matches!(found, Err(DecodeError::Shape { tag: Tag::NoUpdate, .. })),
            "{body:02x?}: {found:?}"
        );
    }
    let unknown_code = framed(Tag::Bye, &[0x93, 0xcd, 0x0f, 0x9f, 0xa0, 0]);
    assert!(matches!(unknown_code, Err(DecodeError::Shape { tag: Tag::Bye, .. })), "{unknown_code:?}");
}

#[test]
fn a_share_is_above_nothing_and_at_most_all() {
    for (ratio, permille) in [(0.001, 1), (0.25, 250), (0.9996, 1_000), (1.0, 1_000)] {
        assert_eq!(Share::new(ratio).map(Share::permille), Ok(permille), "{ratio}");
    }
    for ratio in [0.0, 0.000_9, -0.5, 1.01, f64::NAN, f64::INFINITY] {
        assert!(Share::new(ratio).is_err(), "{ratio}");
    }
    let pace = encode(&Message::SetDutyCycle { run: RunId(3), share: Share::FULL });
    for (permille, taken) in [(1_u16, true), (1_000, true), (0, false), (1_001, false), (u16::MAX, false)] {
        let mut bytes = pace.clone();
        let at = bytes.len() - 2;
        bytes[at..].copy_from_slice(&permille.to_be_bytes());
        assert_eq!(decode(&bytes).is_ok(), taken, "{permille}");
    }
}

#[test]
fn refuses_long_texts() {
    let mut long = hello();
    long.name = "é".repeat(33);
    let expected = DecodeError::TextTooLong { field: "name", bytes: 66, bytes_max: 64 };
    assert_eq!(decode(&encode(&Message::Hello(long.clone()))), Err(expected));
    long.name = clip(&long.name, NAME_BYTES_MAX).into();
    assert_eq!(long.name.len(), 64);
    long.device = "x".repeat(65);
    let expected = DecodeError::TextTooLong { field: "device", bytes: 65, bytes_max: 64 };
    assert_eq!(decode(&encode(&Message::Hello(long.clone()))), Err(expected));
    (long.device, long.invite) = (String::new(), Some(Invite::new("x".repeat(65))));
    let expected = DecodeError::TextTooLong { field: "invite", bytes: 65, bytes_max: 64 };
    assert_eq!(decode(&encode(&Message::Hello(long))), Err(expected));
    let bye = Message::Bye(Bye::new(CloseCode::Done, "x".repeat(513)));
    let expected = DecodeError::TextTooLong { field: "reason", bytes: 513, bytes_max: 512 };
    assert_eq!(decode(&encode(&bye)), Err(expected));
    assert_eq!(clip("aé", 2), "a");
    assert_eq!(clip("aé", 9), "aé");
}

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

/// Goal: the tables in `WIRE.md` agree with the code.
#[test]
fn the_document_agrees() {
    // Line breaks may change, except in tables.
    let source = include_str!("WIRE.md");
    let prose = source.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, message) in samples() {
        let tag = message.tag();
        let fields = format!("`{}`", message.field_names().join("`, `"));
        let row = document_row(source, tag);
        assert_eq!(without_notes(row[3]), fields, "the fields of {tag:?}");
    }
    for &tag in Tag::ALL {
        let row = document_row(source, tag);
        assert_eq!(row[2], format!("{:?}", tag.sender()).to_lowercase(), "who sends {tag:?}");
        assert_eq!(row[4], tag.body_bytes_max().to_string(), "the limit of {tag:?}");
    }
    for code in (4_000..4_100).filter_map(|code| CloseCode::try_from(code).ok()) {
        assert!(source.contains(&format!("| {} | `{code:?}` |", u16::from(code))), "no row for {code:?}");
    }
    for fact in [
        format!("| 4 | 2 | version | {VERSION} |"),
        format!("subprotocol `{SUBPROTOCOL}`"),
        format!("A frame has at most {CHUNK_BYTES} bytes"),
        format!("At most {PARTIALS_MAX} messages"),
        format!("at most {GREETING_BYTES_MAX} bytes before `Hello`"),
        format!("at most {NAME_BYTES_MAX} bytes each"),
        format!("the invite at most {INVITE_BYTES_MAX}"),
        format!("at most {REASON_BYTES_MAX} bytes"),
        format!("at least every {PROGRESS_MS} ms"),
        format!("in parts of `part_bytes` (at most {FROZEN_PART_BYTES_MAX})"),
        format!("at most {FROZEN_PARTS_MAX} of them"),
        "`Update`, header included, adds 71 bytes to its body at most, a `Merged` 75".into(),
    ] {
        assert!(prose.contains(&fact), "not in the document: {fact}");
    }
}

/// Returns the cells of the row of `tag` in the table of messages: number, name, sender, fields, limit.
fn document_row(source: &str, tag: Tag) -> Vec<&str> {
    let start = format!("| {} | `{tag:?}` |", tag as u8);
    let row = source.lines().find(|line| line.starts_with(&start));
    let row = row.unwrap_or_else(|| panic!("no row in WIRE.md begins with {start}"));
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns `cell` without its notes in parentheses.
fn without_notes(cell: &str) -> String {
    let mut rest = cell;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once(" (") {
        kept += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    kept + rest
}

/// Returns the names of the fields of `body` in order.
pub(in crate::wire) fn field_names(body: &impl serde::Serialize) -> Vec<String> {
    /// Keys of a map without their values.
    struct Keys(Vec<String>);

    impl<'de> serde::Deserialize<'de> for Keys {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Self(Vec::new()))
        }
    }

    impl<'de> serde::de::Visitor<'de> for Keys {
        type Value = Self;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a struct")
        }

        fn visit_map<M: serde::de::MapAccess<'de>>(mut self, mut map: M) -> Result<Self, M::Error> {
            while let Some((key, serde::de::IgnoredAny)) = map.next_entry()? {
                self.0.push(key);
            }
            Ok(self)
        }
    }

    let named = rmp_serde::to_vec_named(body).unwrap();
    rmp_serde::from_slice::<Keys>(&named).unwrap().0
}
