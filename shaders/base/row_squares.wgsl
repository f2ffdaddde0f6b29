// squares[first_square + row] = scale²·Σᵢ W[row, i]². One invocation adds up one row.
struct Params {
    in_features: u32,
    rows: u32,
    first_square: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read_write> squares: array<f32>; // [out_features]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let row = id.x + id.y * groups.x * WORKGROUP;
    if row >= params.rows {
        return;
    }
    let columns4 = (params.in_features + 3) / 4;
    var sum = vec4f();
    for (var chunk = 0u; chunk * CHUNK < columns4; chunk++) {
        let packed = load(row, chunk);
        let depth = min(CHUNK, columns4 - chunk * CHUNK);
        for (var j = 0u; j < depth; j++) {
            let w = unpack(packed, j);
            sum += w * w;
        }
    }
    squares[params.first_square + row] = params.scale * params.scale * dot(sum, vec4f(1));
}
