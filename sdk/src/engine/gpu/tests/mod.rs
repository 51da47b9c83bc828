//! Each kernel against its scalar twin, at sizes that fit nothing, with the adapter's limits and with WebGPU's.

mod attention;
mod code;
mod embedding;
mod engine;
mod exchange;
mod harness;
mod loss;
mod matmul;
mod norm;
mod optimiser;
mod pointwise;
mod ring;
mod table;
