//! One row for each kernel; the source lies in `kernels/` under the kernel's name, that of what several share
//! in `kernels/parts/`.
//!
//! Binding 0 is the uniform `Params`, of 32-bit words; the storage buffers follow in the order of the row.

/// What a kernel does with a storage buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// One kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name, and that of its file.
    pub name: &'static str,
    /// What precedes it, in `kernels/parts/`.
    #[cfg(test)]
    pub parts: &'static [&'static str],
    /// WGSL, with its parts.
    pub source: &'static str,
    /// Words of `Params`.
    pub params: usize,
    /// Storage buffers, from binding 1 on.
    pub storage: &'static [Access],
}

macro_rules! kernels {
    ($($const:ident = $name:literal $(after $part:literal)*, $params:literal, [$($access:ident),*];)*) => {
        $(
            pub const $const: Kernel = Kernel {
                name: $name,
                #[cfg(test)]
                parts: &[$($part),*],
                source: concat!(
                    $(include_str!(concat!("kernels/parts/", $part, ".wgsl")), "\n",)*
                    include_str!(concat!("kernels/", $name, ".wgsl")),
                ),
                params: $params,
                storage: &[$(Access::$access),*],
            };
        )*
        /// Every kernel.
        #[cfg(test)]
        pub const ALL: &[&Kernel] = &[$(&$const),*];
    };
}

kernels! {
    MATMUL_REGISTER = "matmul_register" after "matmul", 8, [Read, Read, Read, Read, Write];
    MATMUL_TILE = "matmul_tile" after "matmul", 8, [Read, Read, Read, Read, Write];
    MATMUL_SUM = "matmul_sum" after "matmul", 8, [Read, Read, Read, Read, Write];
    HALVE = "halve", 1, [Read, Write];
    EMBED = "embed", 4, [Read, Read, Write];
    EMBED_GRAD = "embed_grad", 4, [Read, Read, Read, Write];
    NORM = "norm" after "total", 3, [Read, Read, Write, Write];
    NORM_GRAD = "norm_grad" after "total", 4, [Read, Read, Read, Read, Write, Write];
    COLUMN_SUM = "column_sum", 3, [Read, Write];
    ROTARY = "rotary", 6, [Read, Read, Write];
    ATTENTION = "attention" after "bands", 4, [Read, Write, Write];
    ATTENTION_DOTS = "attention_dots", 2, [Read, Read, Write];
    ATTENTION_GRAD_Q = "attention_grad_q" after "bands", 4, [Read, Read, Read, Read, Write];
    ATTENTION_GRAD_KV = "attention_grad_kv" after "bands", 4, [Read, Read, Read, Read, Write];
    SWIGLU = "swiglu", 2, [Read, Write];
    SWIGLU_GRAD = "swiglu_grad", 2, [Write, Write];
    CROSS_ENTROPY = "cross_entropy", 4, [Read, Write, Write];
    SQUARES = "squares" after "total", 2, [Read, Write];
    FINISH = "finish", 3, [Read, Read, Write];
    ADAMW = "adamw", 2, [Read, Read, Write, Read, Write, Write];
    DELTA_MAX = "delta_max", 5, [Read, Read, Write, Write];
    DELTA_CODE = "delta_code", 5, [Read, Read, Read, Write, Write];
    DECODE_ADD = "decode_add", 6, [Read, Read, Write];
    REBASE = "rebase", 3, [Read, Read, Write];
}
