// dropout.wgsl for features divisible by four: output = m⊙x/(1−p), or output += m⊙x/(1−p), with the same mask.
struct Params {
    rows: u32,
    features: u32,
    threshold: u32, // p·2³²: random numbers below it drop
    scale: f32, // 1/(1−p)
    seed_low: u32,
    seed_high: u32,
    layer: u32,
    accumulate: u32,
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
struct Window {
    micro_batches: u32,
    bad_output: u32,
    bad_gradient: u32,
    unused: u32,
}
@group(0) @binding(0) var<storage, read> x: array<vec4f>; // [rows, features]
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> window: Window;
@group(0) @binding(3) var<storage, read_write> output: array<vec4f>; // [rows, features]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

fn pcg4d(key: vec4u) -> vec4u {
    var v = key * 1664525u + 1013904223u;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    v ^= v >> vec4u(16);
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    return v;
}

// One invocation makes four columns of one row.
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let blocks = params.features / 4;
    let key = pcg4d(vec4u(params.seed_low, params.seed_high, state.step, window.micro_batches));
    for (var i = id.x; i < params.rows * blocks; i += groups.x * WORKGROUP) {
        let random = pcg4d(key ^ vec4u(i / blocks, i % blocks, params.layer, 0));
        let kept = select(vec4f(), x[i] * params.scale, random >= vec4u(params.threshold));
        if params.accumulate == 1 {
            output[i] += kept;
        } else {
            output[i] = kept;
        }
    }
}
