// Key and value part of the gradient of attention on matrix units, equal to `attention_grad_kv.wgsl`:
// with p_t = exp(q_t · k_s / √D − lse_t) and ds = p_t (dy_t · v_s − dots_t) / √D: dk_s = Σ_{t ≥ s} ds q_t and
// dv_s = Σ_{t ≥ s} p_t dy_t, over the query heads that share a key head in order. Lanes: `parts/strips.wgsl`, with
// strips of keys and blocks of queries.
// CPU twin: `model::ops::attention_backward`.

const FOUR = vec4(0u, 1u, 2u, 3u);

// Values of lse and dots of a block's queries.
var<workgroup> tops: array<f32, ROWS>;
var<workgroup> middles: array<f32, ROWS>;

fn four_tops(quad: u32) -> vec4<f32> {
    let at = quad * 4u;
    return vec4(tops[at], tops[at + 1u], tops[at + 2u], tops[at + 3u]);
}

fn four_middles(quad: u32) -> vec4<f32> {
    let at = quad * 4u;
    return vec4(middles[at], middles[at + 1u], middles[at + 2u], middles[at + 3u]);
}

// Returns the softmax of the scores between a key and four queries from `query` on.
fn shares(at: u32, quad: u32, query: u32, key: u32) -> vec4<f32> {
    let queries = vec4(query + quad * 4u) + FOUR;
    let seen = vec4(key) <= queries & queries < vec4(params.context);
    return select(vec4(0.0), exp(wide[at] - four_tops(quad)), seen);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let mine = wide_at(subgroup, lane);
    let to = half_at(subgroup, lane);
    let own = lane % 2u * 4u;
    let across = params.windows * params.kv_heads;
    let shared_by = params.heads / params.kv_heads;
    for (var unit = params.first + group.x; unit < params.end; unit += groups.x) {
        let first = unit / across * SIDE;
        let start = unit % across / params.kv_heads * params.context;
        let kv_head = unit % across % params.kv_heads;
        let keys = (params.heads + kv_head) * HEAD;
        let values = keys + params.kv_heads * HEAD;
        let key = first + subgroup * STRIP + lane / 2u;
        workgroupBarrier();
        keep(0u, index, fetch(start, first, keys, 1.0, index));
        keep(BLOCK, index, fetch(start, first + ROWS, keys, 1.0, index));
        workgroupBarrier();
        let k0 = strip(subgroup, 0u);
        var k1: BlockA;
        var k2: BlockA;
        var k3: BlockA;
        if HEAD > 4u {
            k1 = strip(subgroup, 4u);
        }
        if HEAD > 8u {
            k2 = strip(subgroup, 8u);
        }
        if HEAD > 12u {
            k3 = strip(subgroup, 12u);
        }
        workgroupBarrier();
        keep(0u, index, fetch(start, first, values, 1.0, index));
        keep(BLOCK, index, fetch(start, first + ROWS, values, 1.0, index));
        workgroupBarrier();
        let v0 = strip(subgroup, 0u);
        var v1: BlockA;
        var v2: BlockA;
        var v3: BlockA;
        if HEAD > 4u {
            v1 = strip(subgroup, 4u);
        }
        if HEAD > 8u {
            v2 = strip(subgroup, 8u);
        }
        if HEAD > 12u {
            v3 = strip(subgroup, 12u);
        }

        var dk0: Sum;
        var dk1: Sum;
        var dk2: Sum;
        var dk3: Sum;
        var dv0: Sum;
        var dv1: Sum;
        var dv2: Sum;
        var dv3: Sum;
        for (var turn = 0u; turn < shared_by; turn++) {
            let head = kv_head * shared_by + turn;
            var next = fetch(start, first, head * HEAD, scale(), index);
            var next_dy = fetch_dy(start, first, head, index);
            for (var query = first; query < params.context; query += ROWS) {
                workgroupBarrier();
                keep(0u, index, next);
                keep(BLOCK, index, next_dy);
                if index < ROWS {
                    let row = (start + min(query + index, params.context - 1u)) * params.heads + head;
                    tops[index] = lse[row];
                    middles[index] = means[row] * params.gain;
                }
                workgroupBarrier();
                next = fetch(start, query + ROWS, head * HEAD, scale(), index);
                next_dy = fetch_dy(start, query + ROWS, head, index);
                spread(subgroup, dots(k0, k1, k2, k3, 0u), dots(k0, k1, k2, k3, 16u * ALONG));
                workgroupBarrier();
                let a = shares(mine, own, query, key);
                let b = shares(mine + 1u, own + 1u, query, key);
                let c = shares(mine + 2u, own + 2u, query, key);
                let d = shares(mine + 3u, own + 3u, query, key);
                halves[to] = vec4<f16>(SHARES * a);
                halves[to + 1u] = vec4<f16>(SHARES * b);
                halves[to + 2u] = vec4<f16>(SHARES * c);
                halves[to + 3u] = vec4<f16>(SHARES * d);
                workgroupBarrier();
                spread(subgroup, dots(v0, v1, v2, v3, BLOCK), dots(v0, v1, v2, v3, BLOCK + 16u * ALONG));
                let p_low = half_strip(subgroup, 0u);
                let p_high = half_strip(subgroup, 1u);
                dv0 = add_rows(p_low, p_high, BLOCK, dv0);
                if HEAD > 4u {
                    dv1 = add_rows(p_low, p_high, BLOCK + 4u, dv1);
                }
                if HEAD > 8u {
                    dv2 = add_rows(p_low, p_high, BLOCK + 8u, dv2);
                }
                if HEAD > 12u {
                    dv3 = add_rows(p_low, p_high, BLOCK + 12u, dv3);
                }
                workgroupBarrier();
                halves[to] = vec4<f16>(SLOPES * a * (wide[mine] - four_middles(own)));
                halves[to + 1u] = vec4<f16>(SLOPES * b * (wide[mine + 1u] - four_middles(own + 1u)));
                halves[to + 2u] = vec4<f16>(SLOPES * c * (wide[mine + 2u] - four_middles(own + 2u)));
                halves[to + 3u] = vec4<f16>(SLOPES * d * (wide[mine + 3u] - four_middles(own + 3u)));
                workgroupBarrier();
                // The queries of a block are already scaled, so the gradients of scores are not scaled again.
                let ds_low = half_strip(subgroup, 0u);
                let ds_high = half_strip(subgroup, 1u);
                dk0 = add_rows(ds_low, ds_high, 0u, dk0);
                if HEAD > 4u {
                    dk1 = add_rows(ds_low, ds_high, 4u, dk1);
                }
                if HEAD > 8u {
                    dk2 = add_rows(ds_low, ds_high, 8u, dk2);
                }
                if HEAD > 12u {
                    dk3 = add_rows(ds_low, ds_high, 12u, dk3);
                }
            }
        }
        let live = key < params.context;
        let at = (start + key) * stride();
        let gain_k = params.gain * SLOPES;
        let gain_v = params.gain * SHARES;
        put(subgroup, lane, dk0, dk1, live, at + keys, HEAD, gain_k);
        put(subgroup, lane, dv0, dv1, live, at + values, HEAD, gain_v);
        if HEAD > 8u {
            put(subgroup, lane, dk2, dk3, live, at + keys + 8u, HEAD - 8u, gain_k);
            put(subgroup, lane, dv2, dv3, live, at + values + 8u, HEAD - 8u, gain_v);
        }
    }
}
