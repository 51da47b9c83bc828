//! Vectors of four floats: `simd128` where a browser's module is compiled for it, plain arrays elsewhere.

/// The vector instructions that all code is compiled for; `None` where they are looked for at run time.
pub const NAME: Option<&str> = if cfg!(target_feature = "relaxed-simd") {
    Some("relaxed-simd")
} else if cfg!(target_feature = "simd128") {
    Some("simd128")
} else {
    None
};

#[cfg(all(target_feature = "simd128", any(test, not(feature = "cpu"))))]
mod simd128;
#[cfg(all(target_feature = "simd128", any(test, not(feature = "cpu"))))]
pub use simd128::F4;

#[cfg(all(not(target_feature = "simd128"), any(test, not(feature = "cpu"))))]
mod array;
#[cfg(all(not(target_feature = "simd128"), any(test, not(feature = "cpu"))))]
pub use array::F4;
