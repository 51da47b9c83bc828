// Shared parts of the attention kernels on matrix units. The layout of qkv is that of `parts/bands.wgsl`.
//
// A workgroup of four subgroups processes 64 rows of one head, and each subgroup keeps a strip of 16 rows in registers.
// The other rows of the window pass through workgroup memory in blocks of 32 rows, rounded to 16-bit floats. The
// products of a strip and a block are 16 × 32 numbers. They pass through workgroup memory too, where each lane has 16
// numbers of a row.

// Quads in a head, D / 4: 4, 8, 12 or 16.
override HEAD: u32 = 16u;

struct Params {
    // Number of windows, B.
    windows: u32,
    // Tokens in a window, T.
    context: u32,
    // Number of query heads, H.
    heads: u32,
    // Number of key heads, K.
    kv_heads: u32,
    // Workgroups of this dispatch among all workgroups with work: from first up to end, exclusive.
    first: u32,
    end: u32,
    // Power of two by which gradients are multiplied, so that small ones do not underflow in 16-bit floats.
    gain: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<vec4<f32>>;

const WG = 128u;
const SIDE = 64u;
const STRIP = 16u;
const ROWS = 32u;
// Stride of the rows of a block, in quads: 16 bytes more than a row, to avoid memory bank conflicts.
override ALONG: u32 = HEAD + 2u;
override BLOCK: u32 = ROWS * ALONG;
override BLOCKS: u32 = 2u * BLOCK;
// Strides of a strip's numbers in 32 bits and in 16 bits, and sizes of a whole strip.
const WIDE_ALONG = 9u;
const WIDE = STRIP * WIDE_ALONG;
const HALF_ALONG = 10u;
const HALF = STRIP * HALF_ALONG;

// Two blocks, or the 64 rows of the workgroup.
var<workgroup> blocks: array<vec4<f16>, BLOCKS>;
var<workgroup> wide: array<vec4<f32>, 4u * WIDE>;
var<workgroup> halves: array<vec4<f16>, 4u * HALF>;

// Factors on softmax values, which are about 1 / T, and on score gradients before they are rounded. In long windows,
// small ones would underflow in 16-bit floats. Score gradients may reach 8,000.
const SHARES = 1024.0;
const SLOPES = 8.0;

alias BlockA = coop_mat16x16<f16, A>;
alias BlockB = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;
// A lane's part of a block: four quads that lie WG quads apart.
alias Quads = mat4x4<f16>;

// Returns the number of workgroups that cover all rows of a head.
fn down() -> u32 {
    return (params.context + SIDE - 1u) / SIDE;
}

// Returns the number of quads in a row of qkv.
fn stride() -> u32 {
    return (params.heads + 2u * params.kv_heads) * HEAD;
}

fn scale() -> f32 {
    return inverseSqrt(4.0 * f32(HEAD));
}

// Returns row `index` / HEAD of the block that begins at position `first`, clamped to the window's last row.
fn row_of(start: u32, first: u32, index: u32) -> u32 {
    return start + min(first + index / HEAD, params.context - 1u);
}

fn quad_of(start: u32, first: u32, column: u32, factor: f32, index: u32) -> vec4<f16> {
    return vec4<f16>(qkv[row_of(start, first, index) * stride() + column + index % HEAD] * factor);
}

// Fetches this lane's part of the block with rows of qkv from position `first` on, and columns from quad `column` on.
fn fetch(start: u32, first: u32, column: u32, factor: f32, lane: u32) -> Quads {
    var quads: Quads;
    quads[0] = quad_of(start, first, column, factor, lane);
    if HEAD > 4u {
        quads[1] = quad_of(start, first, column, factor, lane + WG);
    }
    if HEAD > 8u {
        quads[2] = quad_of(start, first, column, factor, lane + 2u * WG);
    }
    if HEAD > 12u {
        quads[3] = quad_of(start, first, column, factor, lane + 3u * WG);
    }
    return quads;
}

fn place(index: u32) -> u32 {
    return index / HEAD * ALONG + index % HEAD;
}

// Stores fetched quads in the block that begins at quad `block`.
fn keep(block: u32, lane: u32, quads: Quads) {
    blocks[block + place(lane)] = quads[0];
    if HEAD > 4u {
        blocks[block + place(lane + WG)] = quads[1];
    }
    if HEAD > 8u {
        blocks[block + place(lane + 2u * WG)] = quads[2];
    }
    if HEAD > 12u {
        blocks[block + place(lane + 3u * WG)] = quads[3];
    }
}

// Returns the matrix of a subgroup's strip from quad `column` on, while both blocks hold the workgroup's rows.
fn strip(subgroup: u32, column: u32) -> BlockA {
    return coopLoadT<BlockA>(&blocks[subgroup * STRIP * ALONG + column], ALONG);
}

// Returns the products of a strip with the 16 rows that begin at quad `at`.
fn dots(a0: BlockA, a1: BlockA, a2: BlockA, a3: BlockA, at: u32) -> Sum {
    var sum: Sum;
    sum = coopMultiplyAdd(a0, coopLoad<BlockB>(&blocks[at], ALONG), sum);
    if HEAD > 4u {
        sum = coopMultiplyAdd(a1, coopLoad<BlockB>(&blocks[at + 4u], ALONG), sum);
    }
    if HEAD > 8u {
        sum = coopMultiplyAdd(a2, coopLoad<BlockB>(&blocks[at + 8u], ALONG), sum);
    }
    if HEAD > 12u {
        sum = coopMultiplyAdd(a3, coopLoad<BlockB>(&blocks[at + 12u], ALONG), sum);
    }
    return sum;
}

// Returns half of the strip's numbers in 16 bits: those for the first 16 rows of a block, or for the others.
fn half_strip(subgroup: u32, second: u32) -> BlockA {
    return coopLoadT<BlockA>(&halves[subgroup * HALF + second * 4u], HALF_ALONG);
}

// Adds the weighted rows of a block, for the columns from quad `at` on.
fn add_rows(low: BlockA, high: BlockA, at: u32, sum: Sum) -> Sum {
    let half_sum = coopMultiplyAdd(low, coopLoadT<BlockB>(&blocks[at], ALONG), sum);
    return coopMultiplyAdd(high, coopLoadT<BlockB>(&blocks[at + 16u * ALONG], ALONG), half_sum);
}

// Stores 16 × 32 numbers of a strip, from where its lanes read them.
fn spread(subgroup: u32, left: Sum, right: Sum) {
    coopStoreT(left, &wide[subgroup * WIDE], WIDE_ALONG);
    coopStoreT(right, &wide[subgroup * WIDE + 4u], WIDE_ALONG);
}

// Returns the index of a lane's first quad in its strip, in 32 bits and in 16 bits.
fn wide_at(subgroup: u32, lane: u32) -> u32 {
    return subgroup * WIDE + lane / 2u * WIDE_ALONG + lane % 2u * 4u;
}

fn half_at(subgroup: u32, lane: u32) -> u32 {
    return subgroup * HALF + lane / 2u * HALF_ALONG + lane % 2u * 4u;
}

// Writes 16 × 32 values of a strip to out, from quad `at` of its row on, divided by `gain`. `count` quads of the head
// remain. Calls must be in uniform control flow.
fn put(subgroup: u32, lane: u32, left: Sum, right: Sum, live: bool, at: u32, count: u32, gain: f32) {
    workgroupBarrier();
    spread(subgroup, left, right);
    workgroupBarrier();
    let mine = wide_at(subgroup, lane);
    let column = lane % 2u * 4u;
    if live && column < count {
        out[at + column] = wide[mine] / gain;
        out[at + column + 1u] = wide[mine + 1u] / gain;
        out[at + column + 2u] = wide[mine + 2u] / gain;
        out[at + column + 3u] = wide[mine + 3u] / gain;
    }
}
