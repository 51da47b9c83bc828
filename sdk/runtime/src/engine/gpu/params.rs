//! Uniform `Params` of each kernel: a struct with the fields of its WGSL counterpart, in the same order.
//!
//! A kernel can only be dispatched with its own struct ([`super::kernels::KernelOf`]). A test compares names, types and
//! order of the fields with those that naga reads in the source.

/// One 32-bit word of a uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `u32`.
    U32,
    /// `f32`.
    F32,
}

/// Name and type of a field.
pub type Field = (&'static str, Word);

/// The parameters of a kernel.
pub trait Params: Copy {
    /// Fields, in the order of the words.
    const FIELDS: &'static [Field];

    /// Returns the words of the uniform.
    fn words(self) -> Vec<u32>;
}

/// Type of a field, and its value as a word.
trait Scalar {
    const WORD: Word;
    fn word(self) -> u32;
}

impl Scalar for u32 {
    const WORD: Word = Word::U32;

    fn word(self) -> u32 {
        self
    }
}

impl Scalar for f32 {
    const WORD: Word = Word::F32;

    fn word(self) -> u32 {
        self.to_bits()
    }
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $scalar:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $scalar),*
            }

            impl Params for $name {
                const FIELDS: &'static [Field] = &[$((stringify!($field), <$scalar as Scalar>::WORD)),*];

                fn words(self) -> Vec<u32> {
                    vec![$(self.$field.word()),*]
                }
            }
        )*
    };
}

params! {
    /// A matrix product, or the sum of its parts: `parts/matmul.wgsl`.
    Product {
        /// Rows of C.
        m: u32,
        /// Columns of C.
        n: u32,
        /// Terms of each sum; in `matmul_sum` the number of partial sums.
        k: u32,
        /// Stride of A's rows, in quads.
        a_stride: u32,
        /// Stride of B's rows, in quads.
        b_stride: u32,
        /// Stride of C's rows, in quads.
        c_stride: u32,
        /// First row of C to compute.
        row: u32,
        /// Number of terms that one workgroup sums.
        depth: u32,
        /// First quad in A's rows.
        a_first: u32,
        /// First quad in C's rows.
        c_first: u32,
        /// Factor on the product.
        scale: f32,
        /// Factor on A, and divisor of the sums, if 16-bit floats are multiplied.
        gain: f32,
    }

    /// A vector that is read four values at a time: `halve.wgsl`.
    Halve {
        /// Values / 4.
        quads: u32,
    }

    /// Zeros, `clear.wgsl`.
    Clear {
        /// Values / 4.
        quads: u32,
    }

    /// A slice of the embedding, `embed.wgsl` and `embed_grad.wgsl`.
    Embed {
        /// R.
        rows: u32,
        /// C / 4.
        quads: u32,
        /// The slice's first row of the vocabulary.
        first: u32,
        /// Number of rows in the slice.
        count: u32,
    }

    /// RMSNorm: `norm.wgsl`.
    Norm {
        /// R.
        rows: u32,
        /// C / 4.
        quads: u32,
        /// Constant that keeps the root away from 0.
        eps: f32,
    }

    /// Gradient of RMSNorm: `norm_grad.wgsl`.
    NormGrad {
        /// R.
        rows: u32,
        /// C / 4.
        quads: u32,
        /// Number of rows over which one workgroup sums the weight's gradient.
        rows_per_group: u32,
        /// 1 to add to dx, 0 to set it.
        add: u32,
    }

    /// The sum of rows: `column_sum.wgsl`.
    ColumnSum {
        /// R.
        rows: u32,
        /// C / 4.
        quads: u32,
        /// 1 to add to the sum, 0 to set it.
        add: u32,
    }

    /// Rotary positions: `rotary.wgsl`.
    Rotary {
        /// R.
        rows: u32,
        /// T.
        context: u32,
        /// Values in a row.
        stride: u32,
        /// Heads that are rotated, of queries and of keys.
        heads: u32,
        /// D / 2.
        half: u32,
        /// 1 forwards, −1 backwards.
        sign: f32,
    }

    /// Attention and its gradients: `parts/bands.wgsl`.
    Attention {
        /// B.
        windows: u32,
        /// T.
        context: u32,
        /// H.
        heads: u32,
        /// K.
        kv_heads: u32,
        /// First of the workgroups with work.
        first: u32,
        /// End of the workgroups with work, exclusive.
        end: u32,
    }

    /// Attention and its gradients on matrix units: `parts/strips.wgsl`.
    AttentionMatrix {
        /// B.
        windows: u32,
        /// T.
        context: u32,
        /// H.
        heads: u32,
        /// K.
        kv_heads: u32,
        /// First of the workgroups with work.
        first: u32,
        /// End of the workgroups with work, exclusive.
        end: u32,
        /// Factor on gradients during the computation.
        gain: f32,
    }

    /// Dot products of rows: `attention_dots.wgsl`.
    AttentionDots {
        /// R · H.
        rows: u32,
        /// D / 4.
        quads: u32,
    }

    /// The feed-forward layer's gate, `swiglu.wgsl`, and its gradient, `swiglu_grad.wgsl`.
    Swiglu {
        /// R.
        rows: u32,
        /// F / 4.
        quads: u32,
    }

    /// The router of a mixture of experts: `route.wgsl`.
    Route {
        /// R.
        rows: u32,
        /// E.
        experts: u32,
        /// Columns, at least E.
        stride: u32,
        /// Experts of a token.
        chosen: u32,
    }

    /// Tokens of each window in each expert: `expert_count.wgsl`.
    ExpertCount {
        /// Windows.
        windows: u32,
        /// T.
        context: u32,
        /// E.
        experts: u32,
        /// Columns, at least E.
        stride: u32,
        /// Start of the layer's counts.
        first: u32,
        /// E times the weight of a layer's load-balancing loss.
        aux: f32,
    }

    /// The gate of one expert, `expert.wgsl`, and its gradient, `expert_grad.wgsl`.
    Expert {
        /// R.
        rows: u32,
        /// F / 4.
        quads: u32,
        /// Stride of the rows of weights.
        stride: u32,
        /// Index of the expert.
        column: u32,
    }

    /// The gradient of the router's logits: `route_grad.wgsl`.
    RouteGrad {
        /// R.
        rows: u32,
        /// T.
        context: u32,
        /// E.
        experts: u32,
        /// Columns, at least E.
        stride: u32,
    }

    /// Losses of some rows of logits: `cross_entropy.wgsl`.
    CrossEntropy {
        /// R.
        rows: u32,
        /// V.
        vocab: u32,
        /// Quads in a row of logits, at least V / 4.
        quads: u32,
    }

    /// Partial sums of squares: `squares.wgsl`.
    Squares {
        /// Values / 4.
        quads: u32,
        /// Start of this dispatch's sums.
        first: u32,
    }

    /// Statistics of a step: `finish.wgsl`.
    Finish {
        /// Number of sums of squares.
        partials: u32,
        /// Number of losses.
        losses: u32,
        /// Maximum norm of the gradient; 0 for no limit.
        clip: f32,
    }

    /// One AdamW step: `adamw.wgsl`.
    AdamW {
        /// Values / 4.
        quads: u32,
        /// 1 for matrices, 0 for vectors.
        decayed: u32,
    }

    /// One AdamW step on packed moments: `adamw_halves.wgsl`.
    AdamWHalves {
        /// Values / 4.
        quads: u32,
        /// 1 for matrices, 0 for vectors.
        decayed: u32,
        /// Position of the first value among all.
        first: u32,
    }

    /// A piece of a fragment and its position in the coded body: `parts/piece.wgsl`.
    Piece {
        /// The piece's first value in the vectors, as they are bound.
        start: u32,
        /// Number of values.
        len: u32,
        /// First value within the segment.
        offset: u32,
        /// The segment's first value within the fragment.
        value: u32,
        /// The segment's first code, in words.
        code: u32,
        /// The segment's first block within the fragment.
        block: u32,
        /// For `decode_add`: 1 if the values are a Θ̂, which fits in 16 bits.
        is_hat: u32,
    }

    /// Progress on top of a new Θ̂: `rebase.wgsl`.
    Rebase {
        /// The piece's first value in the vectors, as they are bound.
        start: u32,
        /// Number of values.
        len: u32,
        /// Share of the progress that is kept.
        share: f32,
    }
}
