// torch.optim.AdamW: p *= 1 − lr·weight_decay; m = β₁·m + (1−β₁)·g; v = β₂·v + (1−β₂)·g²;
// p -= lr·(m/(1−β₁ᵗ)) / (√v/√(1−β₂ᵗ) + eps).
struct Params {
    len: u32,
    ratio_from: u32, // from here on the learning rate is lr_ratio times the state's
    lr_ratio: f32,
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    eps: f32,
    weight_decay: f32,
}
struct State {
    step: u32,
    lr: f32,
    inv_bias1: f32,
    inv_sqrt_bias2: f32,
    grad_scale: f32,
    skip: u32,
    attempts: u32,
    skipped: u32,
}
@group(0) @binding(0) var<storage, read> grad: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read_write> param: array<f32>; // [len]
@group(0) @binding(3) var<storage, read_write> moments: array<f32>; // [2, len]: m, v
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len || state.skip == 1 {
        return;
    }
    let lr = state.lr * select(1.0, params.lr_ratio, i >= params.ratio_from);
    let g = state.grad_scale * grad[i];
    let m = params.beta1 * moments[i] + params.one_minus_beta1 * g;
    let v = params.beta2 * moments[params.len + i] + params.one_minus_beta2 * g * g;
    moments[i] = m;
    moments[params.len + i] = v;
    let step = lr * state.inv_bias1 * m / (sqrt(v) * state.inv_sqrt_bias2 + params.eps);
    param[i] = param[i] * (1.0 - lr * params.weight_decay) - step;
}
