//! The dispatches over the values of one fragment.

use super::super::kernels::{Call, DECODE_ADD, DELTA_CODE, DELTA_MAX, DIGEST, KernelOf, REBASE};
use super::super::params;
use super::super::program::{Builder, Constant, Dispatch, Program, Slice};
use super::super::{Gpu, GpuError};
use super::hat::Hat;
use super::piece::{Body, Piece};
use crate::diloco::Codec;
use crate::wire::Code;

/// Threads of a workgroup.
const WG: u32 = 64;
/// WebGPU's limit.
const GROUPS_MAX: u32 = 65_535;
/// Number of values that one invocation adds to a digest.
const DIGEST_VALUES: u32 = 16;

/// Common inputs of the dispatches of all fragments.
#[derive(Debug)]
pub struct Plan<'a> {
    pub gpu: &'a Gpu,
    pub codec: Codec,
    /// θ.
    pub theta: &'a [wgpu::Buffer],
    /// Θ̂.
    pub hat: &'a Hat,
    /// One word for each block of the fragment that is being coded.
    pub largest: &'a Slice,
}

impl Plan<'_> {
    /// Computes the scales of the blocks of Θ̂ − θ, and checks that all values are finite: a dispatch for each of
    /// `spans`. `body` and `largest` must be zero before.
    pub fn measure(&self, spans: &[Piece], body: &Body) -> Program {
        self.each(spans, |span| self.code_with(DELTA_MAX, span, body, None))
    }

    /// Encodes Θ̂ − θ to `body`, once all spans are measured: a dispatch for each of `spans`.
    pub fn code(&self, spans: &[Piece], body: &Body) -> Program {
        self.each(spans, |span| self.code_with(DELTA_CODE, span, body, Some(&body.codes)))
    }

    fn code_with(
        &self,
        kernel: KernelOf<params::Piece>,
        span: &Piece,
        body: &Body,
        codes: Option<&Slice>,
    ) -> Dispatch {
        let storage = [span.slice(self.theta), self.hat.slice(span), self.largest.clone(), body.head.clone()];
        let storage = storage.into_iter().chain(codes.cloned()).collect();
        self.dispatch(kernel.with(span.params(false)), span.len / 8 + 2, storage)
    }

    /// Adds the values of `spans` to the digest of Θ̂.
    pub fn digest(&self, spans: &[Piece], body: &Body) -> Program {
        self.each(spans, |span| {
            let storage = vec![self.hat.slice(span), body.digest.clone()];
            self.dispatch(DIGEST.with(span.params(false)), span.len / DIGEST_VALUES + 1, storage)
        })
    }

    /// Computes `θ += body`, so that the reported progress is no longer part of θ's progress.
    pub fn give_back(&self, spans: &[Piece], body: &Body) -> Program {
        self.each(spans, |span| self.decode_add(span, body, false, span.slice(self.theta)))
    }

    /// Computes `Θ̂ = nearest(Θ̂ + incoming)`: a dispatch for each of `spans`.
    pub fn add(&self, spans: &[Piece], incoming: &Body) -> Program {
        self.each(spans, |span| self.decode_add(span, incoming, true, self.hat.slice(span)))
    }

    fn decode_add(&self, span: &Piece, body: &Body, is_hat: bool, values: Slice) -> Dispatch {
        let storage = vec![body.head.clone(), body.codes.clone(), values];
        self.dispatch(DECODE_ADD.with(span.params(is_hat)), span.len, storage)
    }

    /// Computes `θ = Θ̂ + share (θ − reference)`: a dispatch for each of `spans`.
    pub fn rebase(&self, spans: &[Piece], share: f32, reference: impl Fn(&Piece) -> Slice) -> Program {
        self.each(spans, |span| {
            let call = REBASE.with(params::Rebase { start: span.start(), len: span.len, share });
            let storage = vec![self.hat.slice(span), reference(span), span.slice(self.theta)];
            Dispatch { constants: vec![("WG", WG)], ..self.dispatch(call, span.len, storage) }
        })
    }

    fn each(&self, spans: &[Piece], dispatch: impl Fn(&Piece) -> Dispatch) -> Program {
        let mut builder = Builder::default();
        spans.iter().for_each(|span| builder.add(dispatch(span)));
        builder.build(self.gpu)
    }

    /// Returns a dispatch of a piece kernel with `threads` invocations.
    fn dispatch(&self, call: Call, threads: u32, storage: Vec<Slice>) -> Dispatch {
        let groups = [threads.div_ceil(WG).min(GROUPS_MAX), 1, 1];
        let constants = constants_of(&self.codec).to_vec();
        Dispatch { call, constants, storage, groups, cost: u64::from(threads) }
    }
}

/// Returns the `override`s of the piece kernels.
fn constants_of(codec: &Codec) -> [Constant; 3] {
    let code = kernel_code(codec.code()).expect("an engine with another code is not built");
    let block = u32::try_from(codec.block_len()).expect("a block has at most 2¹⁶ values");
    [("WG", WG), ("BLOCK", block), ("CODE", code)]
}

/// Returns the value of `code` in the kernels.
///
/// # Errors
/// [`GpuError::Code`]: there are no kernels for it.
pub fn kernel_code(code: Code) -> Result<u32, GpuError> {
    match code {
        Code::Int4 => Ok(0),
        Code::E3m0 => Ok(1),
        Code::F32 => Ok(2),
        Code::Int2 | Code::Int1 => Err(GpuError::Code { code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_codes_without_kernels() {
        let known = [Code::Int4, Code::E3m0, Code::F32].map(kernel_code);
        assert_eq!(known, [Ok(0), Ok(1), Ok(2)]);
        for code in [Code::Int2, Code::Int1] {
            let error = kernel_code(code).unwrap_err();
            assert_eq!(error, GpuError::Code { code });
            assert!(error.to_string().contains("use the CPU engine"), "{error}");
        }
    }
}
