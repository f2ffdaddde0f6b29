// output[row] = weight[ids[row]], where the features of an id lie column_stride apart and those of the next row_stride further.
struct Params {
    rows: u32,
    features: u32,
    row_stride: u32,
    column_stride: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [vocabulary, features], or [features, vocabulary]
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
    output[i] = weight[u32(ids[i / params.features]) * params.row_stride + i % params.features * params.column_stride];
}
