// Inputs of an AdamW step: settings, the step's statistics, and parameters and gradients in quads.

struct Stats {
    loss: f32,
    norm: f32,
    factor: f32,
    finite: f32,
}

struct Hyper {
    beta1: f32,
    beta2: f32,
    rate: f32,
    root: f32,
    eps: f32,
    keep: f32,
    share: f32,
    step: u32,
}

@group(0) @binding(1) var<storage, read> stats: Stats;
@group(0) @binding(2) var<storage, read> hyper: Hyper;
@group(0) @binding(3) var<storage, read_write> theta: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> grad: array<vec4<f32>>;
