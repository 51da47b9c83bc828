// C = A B, C + A B or R + A B, with A or B transposed or not, on a device's matrix units: operands are rounded to
// 16-bit floats, sums have 32 bits. A workgroup of four subgroups computes a square of C, each subgroup a quarter, from
// parts of A and B in workgroup memory, which keep the operands' layout and are 32 deep.
// CPU twin: `model::ops::linear`, `model::ops::linear_backward`.
//
// A value that overflows becomes infinite, which the finiteness check notices. Values of A are multiplied by `gain`, a
// power of two, so that gradients do not underflow, and sums are divided by it.

// Lanes of a subgroup.
override LANES: u32 = 32u;
override WG = 4u * LANES;
// 16 × 16 matrices along each side of a subgroup's quarter: 2 or 4.
override COUNT: u32 = 4u;
// Rows and columns of a workgroup's square.
override SIDE = 32u * COUNT;
const DEPTH = 32u;
// Stride of the rows of a part, in quads: 16 bytes more than a row, to avoid memory bank conflicts.
const ALONG_K = (DEPTH + 8u) / 4u;
override ACROSS_K = (SIDE + 8u) / 4u;
// A part whose rows run along k needs more memory than one whose rows run across.
override PART = SIDE * ALONG_K;

var<workgroup> part_a: array<vec4<f16>, PART>;
var<workgroup> part_b: array<vec4<f16>, PART>;
// One matrix of each subgroup, in quads, for output.
var<workgroup> out: array<vec4<f32>, 256u>;

// There are separate variables, because compilers keep these in registers but not an array.
alias BlockA = coop_mat16x16<f16, A>;
alias BlockB = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;
// Four quads that lie WG quads apart in a part.
alias Quads = mat4x4<f16>;

// Returns quad `index` of A's part, which begins at row i and term k; 0 from term `end` on.
fn fetch_a(i: u32, k: u32, end: u32, index: u32) -> vec4<f16> {
    var quad: vec4<f32>;
    if FORM == TN {
        let term = k + index / (SIDE / 4u);
        let at = min(i / 4u + index % (SIDE / 4u), (params.m - 1u) / 4u);
        if term < end {
            quad = a[term * params.a_stride + params.a_first + at];
        }
    } else {
        let term = k + index % (DEPTH / 4u) * 4u;
        let at = min(i + index / (DEPTH / 4u), params.m - 1u);
        if term < end {
            quad = a[at * params.a_stride + params.a_first + term / 4u];
        }
    }
    return vec4<f16>(quad * params.gain);
}

// Returns quad `index` of B's part, which begins at term k and column j; 0 from term `end` on.
fn fetch_b(j: u32, k: u32, end: u32, index: u32) -> vec4<f16> {
    var quad: vec4<f32>;
    if FORM == NT {
        let term = k + index % (DEPTH / 4u) * 4u;
        let at = min(j + index / (DEPTH / 4u), params.n - 1u);
        if term < end {
            quad = quad_b(at, term / 4u);
        }
    } else {
        let term = k + index / (SIDE / 4u);
        let at = min(j / 4u + index % (SIDE / 4u), (params.n - 1u) / 4u);
        if term < end {
            quad = quad_b(term, at);
        }
    }
    return vec4<f16>(quad);
}

fn four_a(i: u32, k: u32, end: u32, index: u32) -> Quads {
    return Quads(
        fetch_a(i, k, end, index),
        fetch_a(i, k, end, index + WG),
        fetch_a(i, k, end, index + 2u * WG),
        fetch_a(i, k, end, index + 3u * WG),
    );
}

fn four_b(j: u32, k: u32, end: u32, index: u32) -> Quads {
    return Quads(
        fetch_b(j, k, end, index),
        fetch_b(j, k, end, index + WG),
        fetch_b(j, k, end, index + 2u * WG),
        fetch_b(j, k, end, index + 3u * WG),
    );
}

// Returns the position of quad `index` in its part.
fn place(index: u32, along_k: bool) -> u32 {
    if along_k {
        return index / (DEPTH / 4u) * ALONG_K + index % (DEPTH / 4u);
    }
    return index / (SIDE / 4u) * ACROSS_K + index % (SIDE / 4u);
}

fn write_a(index: u32, quads: Quads) {
    part_a[place(index, FORM != TN)] = quads[0];
    part_a[place(index + WG, FORM != TN)] = quads[1];
    part_a[place(index + 2u * WG, FORM != TN)] = quads[2];
    part_a[place(index + 3u * WG, FORM != TN)] = quads[3];
}

fn write_b(index: u32, quads: Quads) {
    part_b[place(index, FORM == NT)] = quads[0];
    part_b[place(index + WG, FORM == NT)] = quads[1];
    part_b[place(index + 2u * WG, FORM == NT)] = quads[2];
    part_b[place(index + 3u * WG, FORM == NT)] = quads[3];
}

// Returns the matrix of A's part that begins at row `i` and term `k`.
fn block_a(i: u32, k: u32) -> BlockA {
    if FORM == TN {
        return coopLoad<BlockA>(&part_a[k * ACROSS_K + i / 4u], ACROSS_K);
    }
    return coopLoadT<BlockA>(&part_a[i * ALONG_K + k / 4u], ALONG_K);
}

fn block_b(k: u32, j: u32) -> BlockB {
    if FORM == NT {
        return coopLoad<BlockB>(&part_b[j * ALONG_K + k / 4u], ALONG_K);
    }
    return coopLoadT<BlockB>(&part_b[k * ACROSS_K + j / 4u], ACROSS_K);
}

// Stores a matrix of C through workgroup memory, because it may cross C's edge. Calls must be in uniform control flow.
fn put(subgroup: u32, lane: u32, z: u32, i: u32, j: u32, sum: Sum) {
    workgroupBarrier();
    coopStoreT(sum, &out[subgroup * 64u], 4u);
    workgroupBarrier();
    for (var quad = lane; quad < 64u; quad += LANES) {
        store_row(z, i + quad / 4u, j / 4u + quad % 4u, out[subgroup * 64u + quad] / params.gain);
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let i = params.row + group.y * SIDE;
    let j = group.x * SIDE;
    let end = min((group.z + 1u) * params.depth, params.k);
    let down = subgroup / 2u * (SIDE / 2u);
    let across = subgroup % 2u * (SIDE / 2u);

    var sum00: Sum;
    var sum01: Sum;
    var sum02: Sum;
    var sum03: Sum;
    var sum10: Sum;
    var sum11: Sum;
    var sum12: Sum;
    var sum13: Sum;
    var sum20: Sum;
    var sum21: Sum;
    var sum22: Sum;
    var sum23: Sum;
    var sum30: Sum;
    var sum31: Sum;
    var sum32: Sum;
    var sum33: Sum;
    var k = group.z * params.depth;
    var low_a = four_a(i, k, end, index);
    var low_b = four_b(j, k, end, index);
    var high_a: Quads;
    var high_b: Quads;
    if COUNT > 2u {
        high_a = four_a(i, k, end, index + 4u * WG);
        high_b = four_b(j, k, end, index + 4u * WG);
    }
    while k < end {
        workgroupBarrier();
        write_a(index, low_a);
        write_b(index, low_b);
        if COUNT > 2u {
            write_a(index + 4u * WG, high_a);
            write_b(index + 4u * WG, high_b);
        }
        workgroupBarrier();
        // The next parts are fetched during the multiplication.
        k += DEPTH;
        low_a = four_a(i, k, end, index);
        low_b = four_b(j, k, end, index);
        if COUNT > 2u {
            high_a = four_a(i, k, end, index + 4u * WG);
            high_b = four_b(j, k, end, index + 4u * WG);
        }
        // The two halves of the terms are unrolled. A loop takes twice as long, because its bound is checked.
        {
            let b0 = block_b(0u, across);
            let b1 = block_b(0u, across + 16u);
            var b2: BlockB;
            var b3: BlockB;
            if COUNT > 2u {
                b2 = block_b(0u, across + 32u);
                b3 = block_b(0u, across + 48u);
            }
            let a0 = block_a(down, 0u);
            sum00 = coopMultiplyAdd(a0, b0, sum00);
            sum01 = coopMultiplyAdd(a0, b1, sum01);
            let a1 = block_a(down + 16u, 0u);
            sum10 = coopMultiplyAdd(a1, b0, sum10);
            sum11 = coopMultiplyAdd(a1, b1, sum11);
            if COUNT > 2u {
                sum02 = coopMultiplyAdd(a0, b2, sum02);
                sum03 = coopMultiplyAdd(a0, b3, sum03);
                sum12 = coopMultiplyAdd(a1, b2, sum12);
                sum13 = coopMultiplyAdd(a1, b3, sum13);
                let a2 = block_a(down + 32u, 0u);
                sum20 = coopMultiplyAdd(a2, b0, sum20);
                sum21 = coopMultiplyAdd(a2, b1, sum21);
                sum22 = coopMultiplyAdd(a2, b2, sum22);
                sum23 = coopMultiplyAdd(a2, b3, sum23);
                let a3 = block_a(down + 48u, 0u);
                sum30 = coopMultiplyAdd(a3, b0, sum30);
                sum31 = coopMultiplyAdd(a3, b1, sum31);
                sum32 = coopMultiplyAdd(a3, b2, sum32);
                sum33 = coopMultiplyAdd(a3, b3, sum33);
            }
        }
        {
            let b0 = block_b(16u, across);
            let b1 = block_b(16u, across + 16u);
            var b2: BlockB;
            var b3: BlockB;
            if COUNT > 2u {
                b2 = block_b(16u, across + 32u);
                b3 = block_b(16u, across + 48u);
            }
            let a0 = block_a(down, 16u);
            sum00 = coopMultiplyAdd(a0, b0, sum00);
            sum01 = coopMultiplyAdd(a0, b1, sum01);
            let a1 = block_a(down + 16u, 16u);
            sum10 = coopMultiplyAdd(a1, b0, sum10);
            sum11 = coopMultiplyAdd(a1, b1, sum11);
            if COUNT > 2u {
                sum02 = coopMultiplyAdd(a0, b2, sum02);
                sum03 = coopMultiplyAdd(a0, b3, sum03);
                sum12 = coopMultiplyAdd(a1, b2, sum12);
                sum13 = coopMultiplyAdd(a1, b3, sum13);
                let a2 = block_a(down + 32u, 16u);
                sum20 = coopMultiplyAdd(a2, b0, sum20);
                sum21 = coopMultiplyAdd(a2, b1, sum21);
                sum22 = coopMultiplyAdd(a2, b2, sum22);
                sum23 = coopMultiplyAdd(a2, b3, sum23);
                let a3 = block_a(down + 48u, 16u);
                sum30 = coopMultiplyAdd(a3, b0, sum30);
                sum31 = coopMultiplyAdd(a3, b1, sum31);
                sum32 = coopMultiplyAdd(a3, b2, sum32);
                sum33 = coopMultiplyAdd(a3, b3, sum33);
            }
        }
    }
    let row = i + down;
    let column = j + across;
    put(subgroup, lane, group.z, row, column, sum00);
    put(subgroup, lane, group.z, row, column + 16u, sum01);
    put(subgroup, lane, group.z, row + 16u, column, sum10);
    put(subgroup, lane, group.z, row + 16u, column + 16u, sum11);
    if COUNT > 2u {
        put(subgroup, lane, group.z, row, column + 32u, sum02);
        put(subgroup, lane, group.z, row, column + 48u, sum03);
        put(subgroup, lane, group.z, row + 16u, column + 32u, sum12);
        put(subgroup, lane, group.z, row + 16u, column + 48u, sum13);
        put(subgroup, lane, group.z, row + 32u, column, sum20);
        put(subgroup, lane, group.z, row + 32u, column + 16u, sum21);
        put(subgroup, lane, group.z, row + 32u, column + 32u, sum22);
        put(subgroup, lane, group.z, row + 32u, column + 48u, sum23);
        put(subgroup, lane, group.z, row + 48u, column, sum30);
        put(subgroup, lane, group.z, row + 48u, column + 16u, sum31);
        put(subgroup, lane, group.z, row + 48u, column + 32u, sum32);
        put(subgroup, lane, group.z, row + 48u, column + 48u, sum33);
    }
}
