// With p_t = exp(q_t · k_s / √D − lse_t) and ds = p_t (dy_t · v_s − dots_t) / √D: dk_s = Σ_{t ≥ s} ds q_t and
// dv_s = Σ_{t ≥ s} p_t dy_t, over the query heads that share a key head in order. Writes the key and value part of
// out, dqkv, in the layout of qkv; dy [R, C], lse and dots [R, H]. Lanes: `parts/bands.wgsl`, with bands of keys and
// blocks of queries.
// CPU twin: `model::ops::attention_backward`.

@group(0) @binding(2) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> dots: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

// Gradients of the scores. The softmax of the scores is in `weights`.
var<workgroup> gradients: array<Eight, WEIGHTS>;

fn load_dy(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4(dy[at.x], dy[at.y], dy[at.z], dy[at.w]);
}

// Stores softmax and score gradients of one query.
fn put(band: Band, to: u32, query: u32, row: u32, products: Eight, dp: Eight) {
    let scale = inverseSqrt(4.0 * f32(HEAD));
    let top = lse[row];
    let low = exp(products[0] * scale - top);
    let high = exp(products[1] * scale - top);
    let p = Eight(
        select(vec4(0.0), low, vec4(query) >= band.low.position),
        select(vec4(0.0), high, vec4(query) >= band.high.position),
    );
    let mean = dots[row];
    weights[to] = p;
    gradients[to] = Eight(p[0] * (dp[0] - mean) * scale, p[1] * (dp[1] - mean) * scale);
}

// Stores softmax and score gradients of queries first + i + QUARTER · (0, 1, 2, 3) of a head.
fn four_queries(band: Band, slot: u32, head: u32, first: u32, i: u32) {
    let queries = first + i + QUARTER * FOUR;
    let row = row_at(band.start, queries);
    let at = row * stride() + head * HEAD;
    let dy_at = (row * params.heads + head) * HEAD;
    let low_at = band.low.row * stride();
    let high_at = band.high.row * stride();
    var a = Eight();
    var b = Eight();
    var c = Eight();
    var d = Eight();
    var da = Eight();
    var db = Eight();
    var dc = Eight();
    var dd = Eight();
    for (var j = 0u; j < HEAD; j++) {
        var low = transpose(load(low_at + keys_at(head) + j));
        var high = transpose(load(high_at + keys_at(head) + j));
        let q = load(at + j);
        a = add_eight(a, q[0], low, high);
        b = add_eight(b, q[1], low, high);
        c = add_eight(c, q[2], low, high);
        d = add_eight(d, q[3], low, high);
        low = transpose(load(low_at + values_at(head) + j));
        high = transpose(load(high_at + values_at(head) + j));
        let g = load_dy(dy_at + j);
        da = add_eight(da, g[0], low, high);
        db = add_eight(db, g[1], low, high);
        dc = add_eight(dc, g[2], low, high);
        dd = add_eight(dd, g[3], low, high);
    }
    let to = i * SLOTS + slot;
    let lse_at = row * params.heads + head;
    put(band, to, queries.x, lse_at.x, a, da);
    put(band, to + QUARTER * SLOTS, queries.y, lse_at.y, b, db);
    put(band, to + 2u * QUARTER * SLOTS, queries.z, lse_at.z, c, dc);
    put(band, to + 3u * QUARTER * SLOTS, queries.w, lse_at.w, d, dd);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let slot = lane / LANES;
    let wide = across(params.kv_heads);
    let shared_by = params.heads / params.kv_heads;
    for (var unit = params.first + group.x; unit < params.end; unit += groups.x) {
        let block = unit / wide * 8u * BANDS;
        let band = band_at(slot, unit % wide, params.kv_heads, block);
        for (var turn = 0u; turn < shared_by; turn++) {
            let head = band.head * shared_by + turn;
            for (var first = block; first < params.context; first += KEYS) {
                for (var i = lane % LANES; i < QUARTER; i += LANES) {
                    four_queries(band, slot, head, first, i);
                }
                barrier();

                for (var i = lane % LANES; i < HEAD; i += LANES) {
                    add_block(band, slot, head, first, i, turn > 0u || first > block);
                }
                barrier();
            }
        }
    }
}

// Sets quad i of dk and dv to the contribution of a block of queries, or adds the contribution if `add`.
fn add_block(band: Band, slot: u32, head: u32, first: u32, i: u32, add: bool) {
    let low_k = band.low.row * stride() + keys_at(head) + i;
    let high_k = band.high.row * stride() + keys_at(head) + i;
    let low_v = band.low.row * stride() + values_at(head) + i;
    let high_v = band.high.row * stride() + values_at(head) + i;
    var dk_low = mat4x4<f32>();
    var dk_high = mat4x4<f32>();
    var dv_low = mat4x4<f32>();
    var dv_high = mat4x4<f32>();
    if add {
        dk_low = load_out(low_k);
        dk_high = load_out(high_k);
        dv_low = load_out(low_v);
        dv_high = load_out(high_v);
    }
    for (var j = 0u; j < min(KEYS, params.context - first); j++) {
        let row = band.start + first + j;
        let q = qkv[row * stride() + head * HEAD + i];
        let g = dy[(row * params.heads + head) * HEAD + i];
        let p = weights[j * SLOTS + slot];
        let ds = gradients[j * SLOTS + slot];
        dk_low = add_outer(dk_low, ds[0], q);
        dk_high = add_outer(dk_high, ds[1], q);
        dv_low = add_outer(dv_low, p[0], g);
        dv_high = add_outer(dv_high, p[1], g);
    }
    store_out(low_k, band.low.live, dk_low);
    store_out(high_k, band.high.live, dk_high);
    store_out(low_v, band.low.live, dv_low);
    store_out(high_v, band.high.live, dv_high);
}
