// Query part of the gradient of attention on matrix units, equal to `attention_grad_q.wgsl`: with
// p_s = exp(q_t · k_s / √D − lse_t) and ds = p_s (dy_t · v_s − dots_t) / √D: dq_t = Σ_{s ≤ t} ds k_s. Lanes:
// `parts/strips.wgsl`.
// CPU twin: `model::ops::attention_backward`.

// Returns the softmax of four scores, for keys from `key` on and a query that attends to keys up to `query`.
fn shares(at: u32, key: u32, query: u32, top: f32) -> vec4<f32> {
    let seen = vec4(key) + vec4(0u, 1u, 2u, 3u) <= vec4(query);
    return select(vec4(0.0), exp(wide[at] - top), seen);
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
    let own = lane % 2u * 16u;
    let across = params.windows * params.heads;
    for (var unit = params.first + group.x; unit < params.end; unit += groups.x) {
        // Rows with the most keys are processed first.
        let first = (down() - 1u - unit / across) * SIDE;
        let end = min(first + SIDE, params.context);
        let start = unit % across / params.heads * params.context;
        let head = unit % across % params.heads;
        let keys = (params.heads + head / (params.heads / params.kv_heads)) * HEAD;
        let values = keys + params.kv_heads * HEAD;
        let query = first + subgroup * STRIP + lane / 2u;
        let row = (start + min(query, params.context - 1u)) * params.heads + head;
        let top = lse[row];
        let mean = means[row] * params.gain;
        workgroupBarrier();
        keep(0u, index, fetch(start, first, head * HEAD, scale(), index));
        keep(BLOCK, index, fetch(start, first + ROWS, head * HEAD, scale(), index));
        workgroupBarrier();
        let q0 = strip(subgroup, 0u);
        var q1: BlockA;
        var q2: BlockA;
        var q3: BlockA;
        if HEAD > 4u {
            q1 = strip(subgroup, 4u);
        }
        if HEAD > 8u {
            q2 = strip(subgroup, 8u);
        }
        if HEAD > 12u {
            q3 = strip(subgroup, 12u);
        }
        workgroupBarrier();
        keep(0u, index, fetch_dy(start, first, head, index));
        keep(BLOCK, index, fetch_dy(start, first + ROWS, head, index));
        workgroupBarrier();
        let g0 = strip(subgroup, 0u);
        var g1: BlockA;
        var g2: BlockA;
        var g3: BlockA;
        if HEAD > 4u {
            g1 = strip(subgroup, 4u);
        }
        if HEAD > 8u {
            g2 = strip(subgroup, 8u);
        }
        if HEAD > 12u {
            g3 = strip(subgroup, 12u);
        }

        var dq0: Sum;
        var dq1: Sum;
        var dq2: Sum;
        var dq3: Sum;
        var next = fetch(start, 0u, keys, 1.0, index);
        var next_values = fetch(start, 0u, values, 1.0, index);
        for (var key = 0u; key < end; key += ROWS) {
            workgroupBarrier();
            keep(0u, index, next);
            keep(BLOCK, index, next_values);
            workgroupBarrier();
            next = fetch(start, key + ROWS, keys, 1.0, index);
            next_values = fetch(start, key + ROWS, values, 1.0, index);
            spread(subgroup, dots(q0, q1, q2, q3, 0u), dots(q0, q1, q2, q3, 16u * ALONG));
            workgroupBarrier();
            let a = shares(mine, key + own, query, top);
            let b = shares(mine + 1u, key + own + 4u, query, top);
            let c = shares(mine + 2u, key + own + 8u, query, top);
            let d = shares(mine + 3u, key + own + 12u, query, top);
            workgroupBarrier();
            spread(subgroup, dots(g0, g1, g2, g3, BLOCK), dots(g0, g1, g2, g3, BLOCK + 16u * ALONG));
            workgroupBarrier();
            halves[to] = vec4<f16>(SLOPES * a * (wide[mine] - mean));
            halves[to + 1u] = vec4<f16>(SLOPES * b * (wide[mine + 1u] - mean));
            halves[to + 2u] = vec4<f16>(SLOPES * c * (wide[mine + 2u] - mean));
            halves[to + 3u] = vec4<f16>(SLOPES * d * (wide[mine + 3u] - mean));
            workgroupBarrier();
            let low = half_strip(subgroup, 0u);
            let high = half_strip(subgroup, 1u);
            dq0 = add_rows(low, high, 0u, dq0);
            if HEAD > 4u {
                dq1 = add_rows(low, high, 4u, dq1);
            }
            if HEAD > 8u {
                dq2 = add_rows(low, high, 8u, dq2);
            }
            if HEAD > 12u {
                dq3 = add_rows(low, high, 12u, dq3);
            }
        }
        let at = (start + query) * stride() + head * HEAD;
        let gain = params.gain * SLOPES / scale();
        put(subgroup, lane, dq0, dq1, query < params.context, at, HEAD, gain);
        if HEAD > 8u {
            put(subgroup, lane, dq2, dq3, query < params.context, at + 8u, HEAD - 8u, gain);
        }
    }
}
