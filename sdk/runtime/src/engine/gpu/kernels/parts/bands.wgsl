// Shared parts of the attention kernels. A row of qkv [R, C + 2 K D] holds the queries of H heads, and the keys and
// values of K heads. The rows of `windows` windows, `context` rows each, follow one another.
//
// A band is eight rows of one head, processed by LANES lanes. The lanes go through the other rows of the window in
// blocks of KEYS rows. Each lane first computes, for some rows of the block, eight numbers, one for each row of the
// band. The numbers are exchanged through workgroup memory, and then each lane sums some quads of the result.

// Quads in a head, D / 4.
override HEAD: u32 = 8u;
// Lanes of a band: up to HEAD, or 1 where barriers are expensive.
override LANES: u32 = 8u;
// Rows in a block, a multiple of 4; 4 · LANES or more keep all lanes busy.
override KEYS: u32 = 32u;
// Bands of a head in a workgroup, one below the other, and heads in a workgroup.
override BANDS: u32 = 8u;
override HEADS: u32 = 1u;

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
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<vec4<f32>>;

// One number for each row of a band.
alias Eight = mat2x4<f32>;

const FOUR = vec4(0u, 1u, 2u, 3u);
override QUARTER: u32 = KEYS / 4u;
override SLOTS: u32 = BANDS * HEADS;
override WG: u32 = LANES * SLOTS;
// Named constant, because naga 30 cannot infer this array length otherwise.
override WEIGHTS: u32 = KEYS * SLOTS;

// Numbers by row of the block, and band.
var<workgroup> weights: array<Eight, WEIGHTS>;

// Four rows, one half of a band.
struct Rows {
    // Position in the window.
    position: vec4<u32>,
    // Row in qkv; the window's last row for positions beyond its end.
    row: vec4<u32>,
    // Whether to write the row.
    live: vec4<bool>,
}

struct Band {
    head: u32,
    // First row of the window.
    start: u32,
    low: Rows,
    high: Rows,
}

// Returns the number of workgroups that cover all windows and heads with one row of bands.
fn across(heads: u32) -> u32 {
    return (params.windows * heads + HEADS - 1u) / HEADS;
}

// Returns the number of workgroups that cover all bands of a head.
fn down() -> u32 {
    return (params.context + 8u * BANDS - 1u) / (8u * BANDS);
}

// Returns the band at `slot` of the workgroup that begins at position `first` and head `unit` · HEADS.
fn band_at(slot: u32, unit: u32, heads: u32, first: u32) -> Band {
    let all = params.windows * heads;
    let index = unit * HEADS + slot / BANDS;
    let start = min(index, all - 1u) / heads * params.context;
    let position = first + slot % BANDS * 8u;
    return Band(
        min(index, all - 1u) % heads,
        start,
        rows_at(start, position, index < all),
        rows_at(start, position + 4u, index < all),
    );
}

fn rows_at(start: u32, first: u32, live: bool) -> Rows {
    let position = first + FOUR;
    return Rows(position, row_at(start, position), vec4(live) & (position < vec4(params.context)));
}

fn row_at(start: u32, position: vec4<u32>) -> vec4<u32> {
    return start + min(position, vec4(params.context - 1u));
}

// Returns the number of quads in a row of qkv.
fn stride() -> u32 {
    return (params.heads + 2u * params.kv_heads) * HEAD;
}

// Returns the first quads of the keys and values to which query head `head` attends.
fn keys_at(head: u32) -> u32 {
    return (params.heads + head / (params.heads / params.kv_heads)) * HEAD;
}

fn values_at(head: u32) -> u32 {
    return keys_at(head) + params.kv_heads * HEAD;
}

fn load(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
}

// Adds the products of x with four rows. The columns of y are their quads, transposed.
fn add_dots(sum: vec4<f32>, x: vec4<f32>, y: mat4x4<f32>) -> vec4<f32> {
    return fma(vec4(x.w), y[3], fma(vec4(x.z), y[2], fma(vec4(x.y), y[1], fma(vec4(x.x), y[0], sum))));
}

fn add_eight(sum: Eight, x: vec4<f32>, low: mat4x4<f32>, high: mat4x4<f32>) -> Eight {
    return Eight(add_dots(sum[0], x, low), add_dots(sum[1], x, high));
}

// Adds aᵢ b to each row i of sum.
fn add_outer(sum: mat4x4<f32>, a: vec4<f32>, b: vec4<f32>) -> mat4x4<f32> {
    return mat4x4(
        fma(vec4(a.x), b, sum[0]),
        fma(vec4(a.y), b, sum[1]),
        fma(vec4(a.z), b, sum[2]),
        fma(vec4(a.w), b, sum[3]),
    );
}

fn load_out(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4(out[at.x], out[at.y], out[at.z], out[at.w]);
}

fn store_out(at: vec4<u32>, live: vec4<bool>, rows: mat4x4<f32>) {
    if live.x {
        out[at.x] = rows[0];
    }
    if live.y {
        out[at.y] = rows[1];
    }
    if live.z {
        out[at.z] = rows[2];
    }
    if live.w {
        out[at.w] = rows[3];
    }
}

// Synchronises the lanes of a band, which is not necessary with one lane.
fn barrier() {
    if LANES > 1u {
        workgroupBarrier();
    }
}
