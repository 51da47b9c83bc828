//! A fragment that is to be something else than its merges made it.

use std::sync::Arc;

use super::merge::send;
use super::quant::fragment_len;
use super::{
    Codec, FragmentId, FragmentState, MergeError, MergeFailure, MergeOutcome, Round, Segment, Version,
};
use super::{checksum, halves};
use crate::bytes;

/// What a fragment is to be from now on, and all that it takes to lead learners there.
#[derive(Clone, Debug)]
pub struct Correction {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Its state before.
    pub state: FragmentState,
    /// Θ as it is to be, `[fragment_len]`.
    pub theta: Arc<Vec<f32>>,
    /// The outer momentum as it is to be, `[fragment_len]`.
    pub momentum: Arc<Vec<f32>>,
    /// The fragment's segments.
    pub segments: Vec<Segment>,
    /// How bodies are coded.
    pub codec: Codec,
    /// The version that results.
    pub next: Version,
}

impl Correction {
    /// Takes Θ and momentum as they are to be, and codes what learners lack of that: `body = encode(Θ − Θ̂)`, and
    /// `Θ̂ = nearest(Θ̂ + decode(body))`, as a merge does. What rounding leaves over stays in Θ − Θ̂ and goes out with
    /// the merges that follow. The norm of the outcome is the distance from the former Θ.
    ///
    /// # Errors
    /// [`MergeFailure`] with [`MergeError::State`] if anything is not as long as the segments together.
    pub fn run(self) -> Result<MergeOutcome, Box<MergeFailure>> {
        let Self { round, fragment, mut state, theta, momentum, segments, codec, next } = self;
        let expected = fragment_len(&segments);
        let lens = [state.theta.len(), state.hat.len(), theta.len(), momentum.len()];
        if let Some(&actual) = lens.iter().find(|&&len| len != expected) {
            let error = MergeError::State { expected, actual };
            return Err(Box::new(MergeFailure { round, fragment, state, error }));
        }
        let square: f64 = theta
            .iter()
            .zip(&*state.theta)
            .map(|(to, from)| (f64::from(*to) - f64::from(*from)).powi(2))
            .sum();
        let mut body = vec![0; codec.body_bytes(&segments)];
        let hat = Arc::make_mut(&mut state.hat);
        let mut lack = vec![0.0; codec.block_len()];
        for span in codec.spans(&segments) {
            for block in codec.blocks(span) {
                let (theta, hat) = (&theta[block.values.clone()], &mut hat[block.values.clone()]);
                let lack = &mut lack[..theta.len()];
                for ((lack, theta), hat) in lack.iter_mut().zip(theta).zip(&*hat) {
                    *lack = theta - hat;
                }
                send(&codec, &block, lack, hat, &mut body);
            }
        }
        (state.theta, state.momentum, state.version) = (theta, momentum, next);
        let (checksum, digest) = (checksum(&body), halves::digest(&state.hat));
        Ok(MergeOutcome { round, fragment, state, body, checksum, digest, norm: square.sqrt() })
    }
}

/// Bytes of a value of [`kept`].
pub const KEPT_BYTES: usize = 2 * size_of::<f32>();

/// Θ and the momentum of `state`, one after the other, as the tape keeps them: [`KEPT_BYTES`] for each value.
#[must_use]
pub fn kept(state: &FragmentState) -> Vec<u8> {
    [bytes::from_f32s(&state.theta), bytes::from_f32s(&state.momentum)].concat()
}

/// The Θ and the momentum that [`kept`] made `bytes` of.
#[must_use]
pub fn unkept(bytes: &[u8]) -> [Arc<Vec<f32>>; 2] {
    let (theta, momentum) = bytes.split_at(bytes.len() / 2);
    [theta, momentum].map(|part| Arc::new(bytes::to_f32s(part)))
}
