// Inputs of an optimiser step: settings, and the statistics of the step.

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
    // Of Muon: decay of the momentum, learning rate, and factor of gradients, which is 0 in a rehearsal.
    momentum: f32,
    muon_rate: f32,
    gain: f32,
}

@group(0) @binding(1) var<storage, read> stats: Stats;
@group(0) @binding(2) var<storage, read> hyper: Hyper;
