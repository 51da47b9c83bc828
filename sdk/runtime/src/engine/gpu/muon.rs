//! Muon steps of matrices on the device, one matrix after another, with the products of `cpu/muon.rs`.

use super::arena::Arena;
use super::kernels::{self, Call};
use super::matmul::{Form, Matmul, Product, Values, WriteMode};
use super::program::{Builder, Dispatch, Slice, buffer, buffer_bytes};
use super::step::{QUAD, StepBuffers};
use super::vectors::{Moments, Vectors};
use super::{Gpu, params};
use crate::model::{MUON_NORM_MIN, MUON_START_NORM, MUON_STEPS, MuonMatrix};

/// Maximum number of workgroups that sum the squares of an update, and minimum number of quads per workgroup.
const SQUARES_GROUPS: u32 = 256;
const SQUARES_QUADS: u32 = 1024;
/// Number of invocations in a workgroup.
const WORKGROUP: u32 = 64;

/// Scratch of one matrix, as large as the largest needs it. All matrices use it in turn.
pub struct MuonScratch {
    /// The update X, `[rows, cols]`.
    update: Slice,
    /// Its polar factor, `[rows, cols]`.
    polar: Slice,
    /// Partial sums of the update's squares.
    partials: Slice,
    /// G, its polynomial, the collected polynomials Q, and a product before it replaces a factor, `[k, k]` each with
    /// k = min(rows, cols).
    squares: [Slice; 4],
}

impl MuonScratch {
    /// Allocates scratch for `matrices`.
    pub fn new(gpu: &Gpu, matrices: &[MuonMatrix]) -> Self {
        let [matrix, square] = Self::words(matrices);
        let allocate = |label, words| Slice::whole(&buffer(gpu, label, words));
        Self {
            update: allocate("update", matrix),
            polar: allocate("polar", matrix),
            partials: allocate("partials", u64::from(SQUARES_GROUPS)),
            squares: ["gram", "polynomial", "collected", "product"].map(|label| allocate(label, square)),
        }
    }

    /// Returns the size of the scratch in bytes: 0 without matrices.
    pub fn bytes(matrices: &[MuonMatrix]) -> u64 {
        let [matrix, square] = Self::words(matrices);
        let partials = buffer_bytes(u64::from(SQUARES_GROUPS));
        if matrices.is_empty() { 0 } else { 2 * buffer_bytes(matrix) + partials + 4 * buffer_bytes(square) }
    }

    /// Returns the size of the largest matrix and that of the largest square, in words.
    fn words(matrices: &[MuonMatrix]) -> [u64; 2] {
        let largest = |size: fn(&MuonMatrix) -> usize| matrices.iter().map(size).max().unwrap_or(0) as u64;
        [largest(|it| it.rows * it.cols), largest(|it| it.rows.min(it.cols).pow(2))]
    }
}

/// Builder of the dispatches that update one matrix.
struct MatrixStep<'a> {
    builder: &'a mut Builder,
    matmul: &'a Matmul,
    scratch: &'a MuonScratch,
    rows: u32,
    cols: u32,
}

/// Adds a step of each of `matrices`. Gradient norm and clipping factor must be in `buffers` by then. Products of
/// `matmul` round no gradient.
pub fn add_steps(
    builder: &mut Builder,
    (matmul, scratch): (&Matmul, &MuonScratch),
    (arena, vectors, buffers): (&Arena, &Vectors, &StepBuffers),
    matrices: &[MuonMatrix],
) {
    let Moments::Whole([momentum, _]) = &vectors.moments else {
        unreachable!("Muon's momentum is not packed")
    };
    for matrix in matrices {
        let run = arena.runs(matrix.range()).next().expect("a matrix lies in one chunk");
        let [theta, grad, momentum] =
            [&vectors.theta, &vectors.grad, momentum].map(|vector| Slice::whole(&vector[run.chunk]));
        let (StepBuffers { stats, hyper, .. }, start) = (buffers, run.start as u32 / QUAD);
        let quads = (matrix.rows * matrix.cols) as u32 / QUAD;
        let (rows, cols) = (matrix.rows as u32, matrix.cols as u32);
        let mut step = MatrixStep { builder, matmul, scratch, rows, cols };
        let call = kernels::MUON_MOMENTUM.with(params::MuonMomentum { start, quads });
        step.add(call, &[stats, hyper, &grad, &momentum, &scratch.update], quads);
        step.scale(quads);
        step.orthogonalise();
        let call = kernels::MUON_APPLY.with(params::MuonApply { start, quads, scale: matrix.scale() });
        step.add(call, &[stats, hyper, &theta, &scratch.polar], quads);
    }
}

impl MatrixStep<'_> {
    /// Adds a kernel that reads or writes `quads` quads of several vectors.
    fn add(&mut self, call: Call, storage: &[&Slice], quads: u32) {
        self.add_groups(call, storage, quads.div_ceil(WORKGROUP).min(65_535), quads);
    }

    fn add_groups(&mut self, call: Call, storage: &[&Slice], groups: u32, quads: u32) {
        self.builder.add(Dispatch {
            call,
            constants: vec![("WG", WORKGROUP)],
            storage: storage.iter().map(|&slice| slice.clone()).collect(),
            groups: [groups, 1, 1],
            cost: u64::from(quads * QUAD) * 16,
        });
    }

    /// Scales the update to the norm at which the steps begin.
    fn scale(&mut self, quads: u32) {
        let MuonScratch { update, partials, .. } = self.scratch;
        let groups = quads.div_ceil(SQUARES_QUADS).min(SQUARES_GROUPS);
        let call = kernels::SQUARES.with(params::Squares { quads, first: 0 });
        self.add_groups(call, &[update, partials], groups, quads);
        let (length, norm_min) = (MUON_START_NORM as f32, MUON_NORM_MIN as f32);
        let call = kernels::MUON_SCALE.with(params::MuonScale { quads, partials: groups, length, norm_min });
        self.add(call, &[partials, update], quads);
    }

    /// Writes the polar factor of the update.
    fn orthogonalise(&mut self) {
        let (rows, cols, side) = (self.rows, self.cols, self.rows.min(self.cols));
        let MuonScratch { update, polar, squares: [gram, polynomial, collected, product], .. } = self.scratch;
        let [mut polynomial, mut collected, mut product] = [polynomial, collected, product];
        if rows > cols {
            self.multiply(Form::Tn, [cols, cols, rows], [(update, cols), (update, cols), (gram, cols)]);
        } else {
            self.multiply(Form::Nt, [rows, rows, cols], [(update, cols), (update, cols), (gram, rows)]);
        }
        for (step, &[a, b, c]) in MUON_STEPS.iter().enumerate() {
            self.multiply_squares(gram, gram, polynomial);
            let call = kernels::MUON_POLYNOMIAL.with(params::MuonPolynomial { side, a, b, c });
            self.add(call, &[gram, polynomial], side * side / QUAD);
            if step > 0 {
                self.multiply_squares(polynomial, collected, product);
                std::mem::swap(&mut collected, &mut product);
            }
            if step + 1 < MUON_STEPS.len() {
                self.multiply_squares(polynomial, gram, product);
                self.multiply_squares(polynomial, product, gram);
            }
            if step == 0 {
                std::mem::swap(&mut collected, &mut polynomial);
            }
        }
        if rows > cols {
            self.multiply(Form::Nt, [rows, cols, cols], [(update, cols), (collected, cols), (polar, cols)]);
        } else {
            self.multiply(Form::Nn, [rows, cols, rows], [(collected, rows), (update, cols), (polar, cols)]);
        }
    }

    /// Adds `c = a b` for symmetric `a` and `b`.
    fn multiply_squares(&mut self, a: &Slice, b: &Slice, c: &Slice) {
        let side = self.rows.min(self.cols);
        self.multiply(Form::Nt, [side; 3], [(a, side), (b, side), (c, side)]);
    }

    /// Adds a product of the sizes `[m, n, k]` with the operands A, B and C, each with its stride.
    fn multiply(&mut self, form: Form, [m, n, k]: [u32; 3], [a, b, c]: [(&Slice, u32); 3]) {
        let product = Product {
            form,
            m,
            n,
            k,
            a: a.0.clone(),
            a_stride: a.1,
            b: b.0.clone(),
            b_stride: b.1,
            b_values: Values::Whole,
            c: c.0.clone(),
            c_stride: c.1,
            store: WriteMode::Set,
            first: [0, 0],
            scale: 1.0,
        };
        self.matmul.add(self.builder, product);
    }
}
