// The gradient of gated: d_gate = f′(gate)·up·d_output and d_up = f(gate)·d_output, f by kind: silu, relu².
struct Params {
    len: u32,
    kind: u32,
}
@group(0) @binding(0) var<storage, read> gate: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> up: array<f32>; // [len]
@group(0) @binding(2) var<storage, read> d_output: array<f32>; // [len]
@group(0) @binding(3) var<storage, read_write> d_gate: array<f32>; // [len]
@group(0) @binding(4) var<storage, read_write> d_up: array<f32>; // [len]
@group(0) @binding(5) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

fn sigmoid(x: f32) -> f32 {
    let e = exp(-min(abs(x), 88.0));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    for (var i = id.x; i < params.len; i += groups.x * WORKGROUP) {
        let g = gate[i];
        var value: f32;
        var slope: f32;
        if params.kind == 0 {
            value = g * sigmoid(g);
            slope = sigmoid(g) * (1.0 + g * sigmoid(-g));
        } else {
            let positive = max(g, 0.0);
            value = positive * positive;
            slope = 2.0 * positive;
        }
        d_gate[i] = slope * up[i] * d_output[i];
        d_up[i] = value * d_output[i];
    }
}
