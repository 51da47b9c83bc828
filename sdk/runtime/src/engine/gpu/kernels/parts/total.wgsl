// Sum over the lanes of a workgroup, whose number WG is a power of two.

var<workgroup> sums: array<f32, WG>;

// Returns the sum over the workgroup, the same in every lane. Calls must be in uniform control flow.
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
