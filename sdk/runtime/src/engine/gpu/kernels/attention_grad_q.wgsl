// With p_s = exp(q_t · k_s / √D − lse_t) and ds = p_s (dy_t · v_s − dots_t) / √D: dq_t = Σ_{s ≤ t} ds k_s. Writes
// the query part of out, dqkv, in the layout of qkv; dy [R, C], lse and dots [R, H]. Lanes: `parts/bands.wgsl`.
// CPU twin: `model::ops::attention_backward`.

@group(0) @binding(2) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> dots: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

fn load_dy(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4(dy[at.x], dy[at.y], dy[at.z], dy[at.w]);
}

fn gradient(rows: Rows, head: u32, key: u32, product: vec4<f32>, dp: vec4<f32>) -> vec4<f32> {
    let scale = inverseSqrt(4.0 * f32(HEAD));
    let at = rows.row * params.heads + head;
    let p = exp(product * scale - vec4(lse[at.x], lse[at.y], lse[at.z], lse[at.w]));
    let ds = p * (dp - vec4(dots[at.x], dots[at.y], dots[at.z], dots[at.w])) * scale;
    return select(vec4(0.0), ds, vec4(key) <= rows.position);
}

// Returns the gradients of the scores of one key.
fn gradients(band: Band, key: u32, products: Eight, dp: Eight) -> Eight {
    return Eight(
        gradient(band.low, band.head, key, products[0], dp[0]),
        gradient(band.high, band.head, key, products[1], dp[1]),
    );
}

// Stores the score gradients of keys first + i + QUARTER · (0, 1, 2, 3) in workgroup memory.
fn four_keys(band: Band, slot: u32, first: u32, i: u32) {
    let keys = first + i + QUARTER * FOUR;
    let row = row_at(band.start, keys) * stride();
    let low_at = band.low.row * stride() + band.head * HEAD;
    let high_at = band.high.row * stride() + band.head * HEAD;
    let low_dy = (band.low.row * params.heads + band.head) * HEAD;
    let high_dy = (band.high.row * params.heads + band.head) * HEAD;
    var a = Eight();
    var b = Eight();
    var c = Eight();
    var d = Eight();
    var da = Eight();
    var db = Eight();
    var dc = Eight();
    var dd = Eight();
    for (var j = 0u; j < HEAD; j++) {
        var low = transpose(load(low_at + j));
        var high = transpose(load(high_at + j));
        let k = load(row + keys_at(band.head) + j);
        a = add_eight(a, k[0], low, high);
        b = add_eight(b, k[1], low, high);
        c = add_eight(c, k[2], low, high);
        d = add_eight(d, k[3], low, high);
        low = transpose(load_dy(low_dy + j));
        high = transpose(load_dy(high_dy + j));
        let v = load(row + values_at(band.head) + j);
        da = add_eight(da, v[0], low, high);
        db = add_eight(db, v[1], low, high);
        dc = add_eight(dc, v[2], low, high);
        dd = add_eight(dd, v[3], low, high);
    }
    let to = i * SLOTS + slot;
    weights[to] = gradients(band, keys.x, a, da);
    weights[to + QUARTER * SLOTS] = gradients(band, keys.y, b, db);
    weights[to + 2u * QUARTER * SLOTS] = gradients(band, keys.z, c, dc);
    weights[to + 3u * QUARTER * SLOTS] = gradients(band, keys.w, d, dd);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let slot = lane / LANES;
    let wide = across(params.heads);
    for (var unit = params.first + group.x; unit < params.end; unit += groups.x) {
        // Bands with the most keys are processed first.
        let block = (down() - 1u - unit / wide) * 8u * BANDS;
        let end = min(block + 8u * BANDS, params.context);
        let band = band_at(slot, unit % wide, params.heads, block);
        let low_out = band.low.row * stride() + band.head * HEAD;
        let high_out = band.high.row * stride() + band.head * HEAD;
        for (var first = 0u; first < end; first += KEYS) {
            for (var i = lane % LANES; i < QUARTER; i += LANES) {
                four_keys(band, slot, first, i);
            }
            barrier();

            for (var i = lane % LANES; i < HEAD; i += LANES) {
                var low = mat4x4<f32>();
                var high = mat4x4<f32>();
                if first > 0u {
                    low = load_out(low_out + i);
                    high = load_out(high_out + i);
                }
                var at = (band.start + first) * stride() + keys_at(band.head) + i;
                for (var j = 0u; j < min(KEYS, end - first); j++) {
                    let weight = weights[j * SLOTS + slot];
                    low = add_outer(low, weight[0], qkv[at]);
                    high = add_outer(high, weight[1], qkv[at]);
                    at += stride();
                }
                store_out(low_out + i, band.low.live, low);
                store_out(high_out + i, band.high.live, high);
            }
            barrier();
        }
    }
}
