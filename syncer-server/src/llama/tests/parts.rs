//! Tests of partial reads of parameters.

use std::ops::Range;

use super::*;

/// Reads these ranges of the folder's parameters.
fn read(made: &Made, ranges: &[Range<usize>]) -> Result<Vec<f32>, LlamaError> {
    Folder::open(made.dir.path(), None)?.tensors().read_within(&made.layout, ranges)
}

/// Goal: a partial read equals the same part of the whole, also with an output matrix tied to the embedding.
#[test]
fn a_part_is_read_as_in_the_whole() {
    let made = Made::new();
    let (whole, embedding) = (&made.theta, made.layout.tensors()[0].len() as usize);
    // Ranges within a tensor, over the border of two, empty, and at the end.
    let ranges = [5..11, embedding - 3..embedding + 4, 7..7, whole.len() - 1..whole.len()];
    let expected: Vec<f32> = ranges.iter().flat_map(|range| &whole[range.clone()]).copied().collect();
    for made in [made.write(|_, _| {}), made.with_head(whole[0])] {
        assert_eq!(read(made, &ranges).unwrap(), expected);
        assert_eq!(read(made, &[]).unwrap(), Vec::<f32>::new());
    }
}

/// Goal: a fault is found by each read of the part that contains it, wherever that part is among the ranges.
#[test]
fn what_is_wrong_is_found_in_its_part() {
    let made = Made::new();
    made.with_head(made.theta[0] + 1.0);
    assert!(read(&made, &[5..11, 1..4]).is_ok());
    let said = read(&made, &[5..11, 0..4]).unwrap_err().to_string();
    assert!(said.contains("lm_head.weight differs from the embedding"), "{said}");
    let (mut theta, norm) = (made.theta.clone(), made.layout.tensors()[0].len() as usize);
    theta[norm + 3] = f32::NAN;
    write_tensors(&made.file(), &made.layout, &theta, Precision::F32).unwrap();
    assert!(read(&made, &[0..4, norm..norm + 3]).is_ok());
    let said = read(&made, &[0..4, norm + 2..norm + 5]).unwrap_err().to_string();
    assert!(
        said.contains("input_layernorm.weight in model.safetensors has the value NaN at place 3"),
        "{said}"
    );
}
