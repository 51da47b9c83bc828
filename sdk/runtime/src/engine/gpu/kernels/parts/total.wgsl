// A sum over a workgroup of WG lanes, a power of two.

var<workgroup> sums: array<f32, WG>;

// Sum over the workgroup, the same in every lane. Calls are in uniform control flow.
fn total(lane: u32, value: f32) -> f32 {
    sums[lane] = value;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            sums[lane] += sums[lane + half];
        }
    }
    return workgroupUniformLoad(&sums[0]);
}
