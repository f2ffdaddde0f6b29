// output[row, column] = x[row, column], and 0 in the columns that x has not. One invocation makes one element.
struct Params {
    rows: u32,
    features: u32,
    padded: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>; // [rows, features]
@group(0) @binding(1) var<storage, read_write> output: array<f32>; // [rows, padded]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.rows * params.padded {
        return;
    }
    let column = i % params.padded;
    let found = x[i / params.padded * params.features + min(column, params.features - 1)];
    output[i] = select(0.0, found, column < params.features);
}
