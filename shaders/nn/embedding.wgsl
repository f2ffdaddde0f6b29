// output[row] = weight[ids[row]].
struct Params {
    rows: u32,
    features: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [vocabulary, features]
@group(0) @binding(1) var<storage, read> ids: array<i32>; // [rows]
@group(0) @binding(2) var<storage, read_write> output: array<f32>; // [rows, features]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.rows * params.features {
        return;
    }
    output[i] = weight[u32(ids[i / params.features]) * params.features + i % params.features];
}
