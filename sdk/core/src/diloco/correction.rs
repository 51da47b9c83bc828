//! Change of a fragment to a state that its merges did not produce, as after a rollback.

use std::sync::Arc;

use super::merge::send;
use super::quant::fragment_len;
use super::{
    Codec, FragmentId, FragmentState, MergeError, MergeFailure, MergeOutcome, Round, Segment, Version,
};
use super::{binary16, checksum};
use crate::bytes;

/// Job that sets the Θ and momentum of a fragment, and codes the change for learners.
#[derive(Clone, Debug)]
pub struct Correction {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// State before the correction.
    pub state: FragmentState,
    /// Target Θ, `[fragment_len]`.
    pub theta: Arc<Vec<f32>>,
    /// Target outer momentum, `[fragment_len]`.
    pub momentum: Arc<Vec<f32>>,
    /// Segments of the fragment.
    pub segments: Vec<Segment>,
    /// Codec of the change.
    pub codec: Codec,
    /// Version after the correction.
    pub next: Version,
}

impl Correction {
    /// Sets Θ and the momentum, and codes the change for learners as a merge does: `body = encode(Θ − Θ̂)`, and
    /// `Θ̂ = nearest(Θ̂ + decode(body))`. The rounding error stays in Θ − Θ̂, so later merges send it. The norm of the
    /// outcome is the L2 distance between the old and the new Θ.
    ///
    /// # Errors
    /// [`MergeFailure`] with [`MergeError::State`] if a vector does not have the total length of the segments.
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
        let (checksum, digest) = (checksum(&body), binary16::digest(&state.hat));
        Ok(MergeOutcome { round, fragment, state, body, checksum, digest, norm: square.sqrt() })
    }
}

/// Bytes per parameter in the result of [`encode_state`].
pub const STATE_BYTES: usize = 2 * size_of::<f32>();

/// Serialises Θ and then the momentum of `state` for the tape, in [`STATE_BYTES`] per parameter.
#[must_use]
pub fn encode_state(state: &FragmentState) -> Vec<u8> {
    [bytes::from_f32s(&state.theta), bytes::from_f32s(&state.momentum)].concat()
}

/// Returns Θ and the momentum from the result of [`encode_state`].
#[must_use]
pub fn decode_state(bytes: &[u8]) -> [Arc<Vec<f32>>; 2] {
    let (theta, momentum) = bytes.split_at(bytes.len() / 2);
    [theta, momentum].map(|part| Arc::new(bytes::to_f32s(part)))
}
