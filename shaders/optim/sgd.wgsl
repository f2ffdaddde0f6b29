// p -= lr·(g + weight_decay·p), as torch.optim.SGD.
struct Params {
    len: u32,
    weight_decay: f32,
}
struct State {
    step: u32,
    lr: f32,
    inv_bias1: f32,
    inv_sqrt_bias2: f32,
}
@group(0) @binding(0) var<storage, read> grad: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read_write> param: array<f32>; // [len]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len {
        return;
    }
    let p = param[i];
    param[i] = p - state.lr * (grad[i] + params.weight_decay * p);
}
