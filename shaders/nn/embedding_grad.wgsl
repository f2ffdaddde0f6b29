// d_weight[id] += scale·Σ d_output[row] over the rows of this id, in their order; strides as embedding has them. The first row
// of an id adds up all of them, so that no two write to one place; one invocation takes 4 features.
struct Params {
    rows: u32,
    features: u32,
    row_stride: u32,
    column_stride: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> ids: array<i32>; // [rows]
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [rows, features]
@group(0) @binding(2) var<storage, read_write> d_weight: array<f32>; // [vocabulary, features], or [features, vocabulary]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    let parts = (params.features + 3) / 4;
    let first = i / parts;
    if first >= params.rows {
        return;
    }
    let token = ids[first];
    for (var row = 0u; row < first; row++) {
        if ids[row] == token {
            return;
        }
    }
    // Out of range repeats the last feature; it is not written.
    let feature = i % parts * 4;
    let columns = min(feature + vec4u(0, 1, 2, 3), vec4u(params.features - 1));
    var sum = vec4f();
    for (var row = first; row < params.rows; row++) {
        if ids[row] == token {
            let at = row * params.features + columns;
            sum += vec4f(d_output[at.x], d_output[at.y], d_output[at.z], d_output[at.w]);
        }
    }
    for (var j = 0u; j < 4; j++) {
        if feature + j < params.features {
            d_weight[u32(token) * params.row_stride + (feature + j) * params.column_stride] += params.scale * sum[j];
        }
    }
}
