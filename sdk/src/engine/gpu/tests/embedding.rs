use super::super::kernels;
use super::harness::{each_gpu, floats, noise, run, words};
use crate::rng::Rng;

/// `len` tokens below `vocab`.
fn tokens(len: usize, vocab: usize) -> Vec<u32> {
    let mut rng = Rng::new(len as u64);
    (0..len).map(|_| rng.below(vocab as u32)).collect()
}

/// The slices of a table of `vocab` rows, at most `count_max` rows each: their first row and number of rows.
/// Last slice first, so that one that goes too far spoils what was done.
fn slices(vocab: usize, count_max: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vocab).step_by(count_max).rev().map(move |first| (first, count_max.min(vocab - first)))
}

/// Exactly, with the table in slices.
#[test]
fn embed_agrees() {
    for (rows, width, vocab, count_max, groups) in
        [(1, 4, 2, 2, 1), (3, 20, 5, 2, 1), (64, 4, 7, 3, 2), (130, 36, 50, 49, 3)]
    {
        let (table, tokens) = (noise(vocab * width, 1.0), tokens(rows, vocab));
        let expected: Vec<f32> =
            tokens.iter().flat_map(|&token| &table[token as usize * width..][..width]).copied().collect();
        each_gpu(|gpu| {
            let mut x = words(&vec![f32::NAN; rows * width]);
            for (first, count) in slices(vocab, count_max) {
                let params = [rows as u32, width as u32 / 4, first as u32, count as u32];
                let slice = words(&table[first * width..][..count * width]);
                let buffers = [tokens.clone(), slice, x.clone()];
                x = run(gpu, &kernels::EMBED, &[("WG", 64)], &params, &buffers, [groups, 1, 1]).remove(0);
            }
            assert_eq!(floats(&x), expected);
        });
    }
}
