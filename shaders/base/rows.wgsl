// output[t] = scale·W[ids[t]] where that row is one of the `rows` that start with W's row `first_id`; others are left alone. An
// id that is no row at all gives NaN. One invocation makes 4 columns.
struct Params {
    tokens: u32,
    in_features: u32,
    rows: u32,
    first_id: u32,
    out_features: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> ids: array<i32>; // [tokens]
@group(0) @binding(2) var<storage, read_write> output: array<f32>; // [tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    let columns4 = (params.in_features + 3) / 4;
    let token = i / columns4;
    if token >= params.tokens {
        return;
    }
    // Of a negative id the bits are a large one.
    let row = u32(ids[token]);
    let missing = row >= params.out_features;
    let mine = row - params.first_id < params.rows;
    if !mine && !missing {
        return;
    }
    let at = i % columns4;
    let w = params.scale * unpack(load(select(row - params.first_id, 0, missing), at / CHUNK), at % CHUNK);
    let nan = bitcast<f32>(0x7fc00000 | params.rows);
    for (var j = 0u; j < 4; j++) {
        if 4 * at + j < params.in_features {
            output[token * params.in_features + 4 * at + j] = select(w[j], nan, missing);
        }
    }
}
