// C = A B, C + A B or R + A B, with A or B transposed or not. A workgroup sums 8 WG × 8 WG values of C, and each of its
// WG × WG invocations 8 × 8 of them, from parts of A and B in workgroup memory, which are 16 terms deep.
// CPU twin: `model::ops::linear`, `model::ops::linear_backward`.

// Invocations of a workgroup in each of its two dimensions: 8 or 16.
override WG: u32 = 8u;
// Number of blocks down A's part and across B's part.
override SIDE = 2u * WG;
// Number of blocks in a part: SIDE times 4.
override BLOCKS = 4u * SIDE;

// For each of 16 terms, SIDE quads of a column of A; then, for each of these terms, SIDE quads of a row of B.
var<workgroup> parts: array<vec4<f32>, 8u * BLOCKS>;

// Returns the position of block (k, i) of A, or of B, whose blocks follow those of A. The rows of a block lie SIDE
// quads apart. The position of i is rotated by k, because neighbours that write different k of the same i would
// conflict in a memory bank.
fn place(k: u32, i: u32) -> u32 {
    return k * 4u * SIDE + (i ^ ((k % 4u) * 2u));
}

fn write_part(at: u32, block: mat4x4<f32>) {
    parts[at] = block[0];
    parts[at + SIDE] = block[1];
    parts[at + 2u * SIDE] = block[2];
    parts[at + 3u * SIDE] = block[3];
}

fn read_part(at: u32) -> mat4x4<f32> {
    return mat4x4(parts[at], parts[at + SIDE], parts[at + 2u * SIDE], parts[at + 3u * SIDE]);
}

// Returns block `index` of a part as (k, i), in the order in which rows lie in memory.
fn split(index: u32, rows_along_k: bool) -> vec2<u32> {
    if rows_along_k {
        return vec2(index % 4u, index / 4u);
    }
    return vec2(index / SIDE, index % SIDE);
}

fn fetch_a(i: u32, k: u32, end: u32) -> mat4x4<f32> {
    if k >= end {
        return mat4x4<f32>();
    }
    return transpose(load_a(i, k));
}

fn fetch_b(k: u32, j: u32, end: u32) -> mat4x4<f32> {
    if k >= end {
        return mat4x4<f32>();
    }
    return load_b(k, j);
}

@compute @workgroup_size(WG, WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let i = params.row + group.y * SIDE * 4u;
    let j = group.x * SIDE;
    let end = min((group.z + 1u) * params.depth, params.k);
    let from_a = split(index % BLOCKS, FORM != TN);
    let from_b = split(index % BLOCKS, FORM == NT);
    let to_a = place(from_a.x, from_a.y);
    let to_b = place(4u + from_b.x, from_b.y);

    var c00 = mat4x4<f32>();
    var c01 = mat4x4<f32>();
    var c10 = mat4x4<f32>();
    var c11 = mat4x4<f32>();
    for (var k = group.z * params.depth; k < end; k += 16u) {
        // With 8 × 8 invocations, each moves a block of A and a block of B. With 16 × 16, one half moves A and the
        // other half B.
        workgroupBarrier();
        if index < BLOCKS {
            write_part(to_a, fetch_a(i + from_a.y * 4u, k + from_a.x * 4u, end));
        }
        if index >= WG * WG - BLOCKS {
            write_part(to_b, fetch_b(k + from_b.x * 4u, j + from_b.y, end));
        }
        workgroupBarrier();
        for (var l = 0u; l < 4u; l++) {
            let a0 = transpose(read_part(place(l, local.y)));
            let a1 = transpose(read_part(place(l, local.y + WG)));
            let b0 = read_part(place(4u + l, local.x));
            let b1 = read_part(place(4u + l, local.x + WG));
            c00 = madd(c00, a0, b0);
            c01 = madd(c01, a0, b1);
            c10 = madd(c10, a1, b0);
            c11 = madd(c11, a1, b1);
        }
    }
    let row = i + local.y * 4u;
    store(group.z, row, j + local.x, c00);
    store(group.z, row, j + local.x + WG, c01);
    store(group.z, row + WG * 4u, j + local.x, c10);
    store(group.z, row + WG * 4u, j + local.x + WG, c11);
}
