// d_input = scale·d_output·W, or that added to it, without workgroup memory: one invocation makes 8 tokens × 4 inputs.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [tokens, columns]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;
const TOKENS: u32 = 8;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let tile = id.x + id.y * groups.x * WORKGROUP;
    let columns4 = (params.in_features + 3) / 4;
    let column4 = tile % columns4;
    let first_token = tile / columns4 * TOKENS;
    if first_token >= params.tokens {
        return;
    }
    // Out of range repeats the last token; it is not written.
    let last_token = params.tokens - 1;
    let t0 = first_token * params.columns + params.first_column;
    let t1 = min(first_token + 1, last_token) * params.columns + params.first_column;
    let t2 = min(first_token + 2, last_token) * params.columns + params.first_column;
    let t3 = min(first_token + 3, last_token) * params.columns + params.first_column;
    let t4 = min(first_token + 4, last_token) * params.columns + params.first_column;
    let t5 = min(first_token + 5, last_token) * params.columns + params.first_column;
    let t6 = min(first_token + 6, last_token) * params.columns + params.first_column;
    let t7 = min(first_token + 7, last_token) * params.columns + params.first_column;
    var s0 = vec4f();
    var s1 = vec4f();
    var s2 = vec4f();
    var s3 = vec4f();
    var s4 = vec4f();
    var s5 = vec4f();
    var s6 = vec4f();
    var s7 = vec4f();
    for (var k = 0u; k < params.rows; k++) {
        let w = unpack(load(params.first_row + k, column4 / CHUNK), column4 % CHUNK);
        s0 += d_output[t0 + k] * w;
        s1 += d_output[t1 + k] * w;
        s2 += d_output[t2 + k] * w;
        s3 += d_output[t3 + k] * w;
        s4 += d_output[t4 + k] * w;
        s5 += d_output[t5 + k] * w;
        s6 += d_output[t6 + k] * w;
        s7 += d_output[t7 + k] * w;
    }
    let sums = array<vec4f, TOKENS>(s0, s1, s2, s3, s4, s5, s6, s7);
    for (var i = 0u; i < TOKENS; i++) {
        for (var j = 0u; j < 4; j++) {
            let input = 4 * column4 + j;
            if first_token + i < params.tokens && input < params.in_features {
                let at = (first_token + i) * params.in_features + input;
                d_input[at] = params.scale * sums[i][j] + select(0.0, d_input[at], params.accumulate == 1);
            }
        }
    }
}
