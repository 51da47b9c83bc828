//! Learner that records its receipts, for a comparison with a later syncer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use archipelago_core::diloco::{Codec, Fragments, Layout, checksum};
use archipelago_core::wire::{Fate, FragmentId, LearnerState, Message, Progress, Serial, Update, Welcome};

use crate::socket::{RawSocket, SocketData};

/// Number of the witness's identity.
const WITNESS: u8 = 9;

/// For each fragment, the serial number of the last update that a receipt to the witness called merged.
pub type LastMerged = BTreeMap<FragmentId, Serial>;

/// Joins the run at `address` as a learner that records its receipts, until its connection ends. Increments `count` for
/// each merged update. The serial numbers of its updates begin after `serial_first`. Returns the record and the last
/// serial number.
///
/// # Panics
/// In its thread, if the run has no model.
pub fn witness(
    address: SocketAddr,
    serial_first: u64,
    count: Arc<AtomicU64>,
) -> JoinHandle<(LastMerged, u64)> {
    std::thread::spawn(move || {
        let (mut socket, welcome) = RawSocket::greet(address, WITNESS);
        let Welcome { run, layout: hash, spec, .. } = *welcome;
        let fragments = NonZeroU16::new(spec.exchange.fragments).expect("a run has fragments");
        let fragments = Fragments::plan(&Layout::of(&spec.model).expect("a run has a model"), fragments);
        let codec = Codec::new(&spec.exchange).expect("a run has a code");
        let step_tokens = u64::from(spec.inner.batch * spec.model.context);
        socket.send(&Message::Ready { run, layout: hash, batch: spec.inner.batch });
        let report = |steps: u64| {
            let (step_ms, loss, state) = (5.0, 5.0, LearnerState::Training);
            let tokens = steps * step_tokens;
            Message::Progress(Progress { run, leases: vec![], steps, tokens, step_ms, loss, state })
        };
        socket.send(&report(1));
        let (mut told, mut serial) = (LastMerged::new(), serial_first);
        loop {
            let message = match socket.receive() {
                SocketData::Message(message) => *message,
                SocketData::Close(_) | SocketData::End => return (told, serial),
            };
            match message {
                Message::Collect { fragment, base, .. } => {
                    serial += 1;
                    let values = vec![1e-3; fragments.len(fragment)];
                    let segments = fragments.segments(fragment).expect("it was asked about");
                    let body = codec.encode(segments, &values);
                    let checksum = checksum(&body);
                    let (serial, steps, tokens) = (Serial(serial), 1, step_tokens);
                    let update = Update {
                        run,
                        fragment,
                        serial,
                        base,
                        steps,
                        tokens,
                        body,
                        checksum,
                        seen: Vec::new(),
                    };
                    socket.send(&Message::Update(update));
                    socket.send(&report(serial.0 - serial_first + 1));
                }
                Message::Receipt { fragment, serial, fate: Fate::Merged { .. }, .. } => {
                    told.insert(fragment, serial);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    })
}

/// Checks that the syncer at `address` knows every merged update in the record `told`.
///
/// # Panics
/// If it does not, with `when`.
pub fn assert_known(address: SocketAddr, told: &LastMerged, when: &str) {
    let (_socket, welcome) = RawSocket::greet(address, WITNESS);
    for (fragment, serial) in told {
        let known = welcome.merged[usize::from(fragment.0)];
        assert!(known >= Some(*serial), "{when}, fragment {fragment}: told {serial}, it knows {known:?}");
    }
}
