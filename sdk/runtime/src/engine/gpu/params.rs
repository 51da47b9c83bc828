//! Uniform `Params` of each kernel: a struct with the fields of its WGSL counterpart, in the same order.
//!
//! Sizes are written with the letters of the model: R rows (tokens) of C values, B windows of T tokens, H query heads
//! and K key heads of D values, F feed-forward values, E experts, and V tokens in the vocabulary. A quad is four
//! adjacent values. A kernel can only be dispatched with its own struct ([`super::kernels::KernelOf`]). A test compares
//! names, types and order of the fields with those that naga reads in the source.

/// Type of a 32-bit word in a uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `u32`.
    U32,
    /// `f32`.
    F32,
}

/// Name and type of a field.
pub type Field = (&'static str, Word);

/// Uniform parameters of one kernel.
pub trait Params: Copy {
    /// Names and types of the fields, in the order of the words.
    const FIELDS: &'static [Field];

    /// Returns the words of the uniform.
    fn words(self) -> Vec<u32>;
}

/// Scalar type of a field, with its conversion to a word.
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
    /// Matrix product, or the sum of its partial sums: `parts/matmul.wgsl`.
    Product {
        /// Rows of C.
        m: u32,
        /// Columns of C.
        n: u32,
        /// Number of terms in each sum; for `matmul_sum`, number of partial sums.
        k: u32,
        /// Stride of A's rows, in quads.
        a_stride: u32,
        /// Stride of B's rows, in quads.
        b_stride: u32,
        /// Stride of C's rows, in quads.
        c_stride: u32,
        /// First row of C to compute.
        row: u32,
        /// Number of terms in a partial sum, which one workgroup computes.
        depth: u32,
        /// First quad of A within its rows.
        a_first: u32,
        /// First quad of C within its rows.
        c_first: u32,
        /// Factor on the product.
        scale: f32,
        /// Factor on the gradients in A before they are rounded to 16-bit floats. The sums are divided by it.
        gain: f32,
    }

    /// Conversion of a vector to 16-bit floats: `halve.wgsl`.
    Halve {
        /// Number of quads.
        quads: u32,
    }

    /// Zeroing of a vector: `clear.wgsl`.
    Clear {
        /// Number of quads.
        quads: u32,
    }

    /// Slice of the embedding: `embed.wgsl` and `embed_grad.wgsl`.
    Embed {
        /// Number of rows, R.
        rows: u32,
        /// Quads in a row, C / 4.
        quads: u32,
        /// First row of the embedding in the slice.
        first: u32,
        /// Number of rows in the slice.
        count: u32,
    }

    /// RMSNorm: `norm.wgsl`.
    Norm {
        /// Number of rows, R.
        rows: u32,
        /// Quads in a row, C / 4.
        quads: u32,
        /// Constant added to the mean square, which keeps the root above 0.
        eps: f32,
    }

    /// Gradient of RMSNorm: `norm_grad.wgsl`.
    NormGrad {
        /// Number of rows, R.
        rows: u32,
        /// Quads in a row, C / 4.
        quads: u32,
        /// Number of rows over which one workgroup sums the weight's gradient.
        rows_per_group: u32,
        /// 1 to add to dx, 0 to set it.
        add: u32,
    }

    /// Sum of rows: `column_sum.wgsl`.
    ColumnSum {
        /// Number of rows.
        rows: u32,
        /// Quads in a row, C / 4.
        quads: u32,
        /// 1 to add to the sum, 0 to set it.
        add: u32,
    }

    /// Rotary position embedding: `rotary.wgsl`.
    Rotary {
        /// Number of rows, R.
        rows: u32,
        /// Tokens in a window, T.
        context: u32,
        /// Number of values in a row of qkv.
        stride: u32,
        /// Number of heads to rotate, H + K.
        heads: u32,
        /// Half the values in a head, D / 2.
        half: u32,
        /// Direction of the rotation: 1 forward, −1 backward.
        sign: f32,
    }

    /// Attention and its gradients: `parts/bands.wgsl`.
    Attention {
        /// Number of windows, B.
        windows: u32,
        /// Tokens in a window, T.
        context: u32,
        /// Number of query heads, H.
        heads: u32,
        /// Number of key heads, K.
        kv_heads: u32,
        /// First unit of work of this dispatch.
        first: u32,
        /// End of this dispatch's units of work, exclusive.
        end: u32,
    }

    /// Attention and its gradients on matrix units: `parts/strips.wgsl`.
    AttentionMatrix {
        /// Number of windows, B.
        windows: u32,
        /// Tokens in a window, T.
        context: u32,
        /// Number of query heads, H.
        heads: u32,
        /// Number of key heads, K.
        kv_heads: u32,
        /// First unit of work of this dispatch.
        first: u32,
        /// End of this dispatch's units of work, exclusive.
        end: u32,
        /// Factor on gradients before they are rounded to 16-bit floats.
        gain: f32,
    }

    /// Dot product of output and its gradient for each token and head: `attention_dots.wgsl`.
    AttentionDots {
        /// Number of tokens times heads, R · H.
        rows: u32,
        /// Quads in a head, D / 4.
        quads: u32,
    }

    /// SwiGLU gate, `swiglu.wgsl`, and its gradient, `swiglu_grad.wgsl`.
    Swiglu {
        /// Number of rows, R.
        rows: u32,
        /// Quads in a row, F / 4.
        quads: u32,
    }

    /// Router of a mixture of experts: `route.wgsl`.
    Route {
        /// Number of rows, R.
        rows: u32,
        /// Number of experts, E.
        experts: u32,
        /// Stride of the router's rows, at least E.
        stride: u32,
        /// Number of experts chosen for each token.
        chosen: u32,
    }

    /// Count of each window's tokens in each expert: `expert_count.wgsl`.
    ExpertCount {
        /// Number of windows, B.
        windows: u32,
        /// Tokens in a window, T.
        context: u32,
        /// Number of experts, E.
        experts: u32,
        /// Stride of the router's rows, at least E.
        stride: u32,
        /// Index of the layer's first count.
        first: u32,
        /// Weight of a layer's load-balancing loss, times E.
        aux: f32,
    }

    /// Gate of one expert, `expert.wgsl`, and its gradient, `expert_grad.wgsl`.
    Expert {
        /// Number of rows, R.
        rows: u32,
        /// Quads in a row, F / 4.
        quads: u32,
        /// Stride of the router's rows, at least E.
        stride: u32,
        /// Index of the expert.
        column: u32,
    }

    /// Gradient of the router's logits: `route_grad.wgsl`.
    RouteGrad {
        /// Number of rows, R.
        rows: u32,
        /// Tokens in a window, T.
        context: u32,
        /// Number of experts, E.
        experts: u32,
        /// Stride of the router's rows, at least E.
        stride: u32,
    }

    /// Losses and logit gradients of some tokens: `cross_entropy.wgsl`.
    CrossEntropy {
        /// Number of rows of logits.
        rows: u32,
        /// Size of the vocabulary, V.
        vocab: u32,
        /// Quads in a row of logits, at least V / 4.
        quads: u32,
    }

    /// Partial sums of squares: `squares.wgsl`.
    Squares {
        /// Number of quads.
        quads: u32,
        /// Index of this dispatch's first sum.
        first: u32,
    }

    /// Statistics of a step: `finish.wgsl`.
    Finish {
        /// Number of partial sums of squares.
        partials: u32,
        /// Number of losses.
        losses: u32,
        /// Maximum norm of the gradient; 0 for no limit.
        clip: f32,
    }

    /// One AdamW step: `adamw.wgsl`.
    AdamW {
        /// Number of quads.
        quads: u32,
        /// Whether weight decay applies: 1 for matrices, 0 for vectors.
        decayed: u32,
    }

    /// One AdamW step on moments packed as bfloat16: `adamw_halves.wgsl`.
    AdamWHalves {
        /// Number of quads.
        quads: u32,
        /// Whether weight decay applies: 1 for matrices, 0 for vectors.
        decayed: u32,
        /// Index of the chunk's first value among the values of all chunks.
        first: u32,
    }

    /// Momentum and update of a matrix: `muon_momentum.wgsl`.
    MuonMomentum {
        /// First quad of the matrix in gradient and momentum.
        start: u32,
        /// Number of quads.
        quads: u32,
    }

    /// Scaling of an update to a given norm: `muon_scale.wgsl`.
    MuonScale {
        /// Number of quads.
        quads: u32,
        /// Number of partial sums of squares.
        partials: u32,
        /// Norm of the result.
        length: f32,
        /// Smallest norm by which the update is divided.
        norm_min: f32,
    }

    /// Polynomial of a symmetric matrix: `muon_polynomial.wgsl`.
    MuonPolynomial {
        /// Rows and columns, a multiple of 4.
        side: u32,
        /// Factor on the identity.
        a: f32,
        /// Factor on the matrix.
        b: f32,
        /// Factor on its square.
        c: f32,
    }

    /// Step of a matrix along a polar factor: `muon_apply.wgsl`.
    MuonApply {
        /// First quad of the matrix in the parameters.
        start: u32,
        /// Number of quads.
        quads: u32,
        /// Factor on the polar factor at a learning rate of 1.
        scale: f32,
    }

    /// Piece of a fragment and its position in the coded body: `parts/piece.wgsl`.
    Piece {
        /// Index of the piece's first value within the bound slices.
        start: u32,
        /// Number of values.
        len: u32,
        /// Index of the first value within the segment.
        offset: u32,
        /// Index of the segment's first value within the fragment.
        value: u32,
        /// Index of the segment's first code, in words.
        code: u32,
        /// Index of the segment's first block within the fragment.
        block: u32,
        /// For `decode_add`: 1 if the values are Θ̂ and must be rounded to 16 bits, else 0.
        is_hat: u32,
    }

    /// Move of θ to a new Θ̂ plus a share of the progress: `rebase.wgsl`.
    Rebase {
        /// Index of the piece's first value within the bound slices.
        start: u32,
        /// Number of values.
        len: u32,
        /// Fraction of the progress that is kept.
        share: f32,
    }
}
