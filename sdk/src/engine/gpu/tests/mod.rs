//! Each kernel against its scalar twin, at sizes that fit nothing, with the adapter's limits and with WebGPU's.

mod harness;
mod matmul;
mod pointwise;
mod ring;
mod table;
