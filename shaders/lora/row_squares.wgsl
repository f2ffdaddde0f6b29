// squares[first_row + row] = Σᵢ weight[row, i]². One invocation adds up one row.
struct Params {
    rows: u32,
    features: u32,
    first_row: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [rows, features]
@group(0) @binding(1) var<storage, read_write> squares: array<f32>; // [out_features]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let row = id.x + id.y * groups.x * WORKGROUP;
    if row >= params.rows {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < params.features; i++) {
        let w = weight[row * params.features + i];
        sum += w * w;
    }
    squares[params.first_row + row] = sum;
}
