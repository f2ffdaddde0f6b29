// output = f(gate)·up, f by kind: silu (SwiGLU), relu².
struct Params {
    len: u32,
    kind: u32,
}
@group(0) @binding(0) var<storage, read> gate: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> up: array<f32>; // [len]
@group(0) @binding(2) var<storage, read_write> output: array<f32>; // [len]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

fn sigmoid(x: f32) -> f32 {
    let e = exp(-min(abs(x), 88.0));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// By its bits: a driver may make max(x, 0) of a comparison, which loses a NaN.
fn relu(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return select(x, 0.0, bits > 0x80000000u && bits <= 0xff800000u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    for (var i = id.x; i < params.len; i += groups.x * WORKGROUP) {
        let g = gate[i];
        if params.kind == 0 {
            output[i] = g * sigmoid(g) * up[i];
        } else {
            output[i] = relu(g) * relu(g) * up[i];
        }
    }
}
