// d_input = scale·d_output·W, or that added to it, without workgroup memory: one invocation makes 8 tokens × 8 inputs.
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
const INPUTS: u32 = 8;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let tile = id.x + id.y * groups.x * WORKGROUP;
    let columns4 = (params.in_features + 3) / 4;
    let pairs = (columns4 + 1) / 2;
    let low4 = tile % pairs * 2;
    let high4 = min(low4 + 1, columns4 - 1); // out of range repeats the last; it is not written
    let first_token = tile / pairs * TOKENS;
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
    var u0 = vec4f();
    var u1 = vec4f();
    var u2 = vec4f();
    var u3 = vec4f();
    var u4 = vec4f();
    var u5 = vec4f();
    var u6 = vec4f();
    var u7 = vec4f();
    for (var k = 0u; k < params.rows; k++) {
        let w_low = unpack(load(params.first_row + k, low4 / CHUNK), low4 % CHUNK);
        let w_high = unpack(load(params.first_row + k, high4 / CHUNK), high4 % CHUNK);
        let d0 = d_output[t0 + k];
        s0 += d0 * w_low;
        u0 += d0 * w_high;
        let d1 = d_output[t1 + k];
        s1 += d1 * w_low;
        u1 += d1 * w_high;
        let d2 = d_output[t2 + k];
        s2 += d2 * w_low;
        u2 += d2 * w_high;
        let d3 = d_output[t3 + k];
        s3 += d3 * w_low;
        u3 += d3 * w_high;
        let d4 = d_output[t4 + k];
        s4 += d4 * w_low;
        u4 += d4 * w_high;
        let d5 = d_output[t5 + k];
        s5 += d5 * w_low;
        u5 += d5 * w_high;
        let d6 = d_output[t6 + k];
        s6 += d6 * w_low;
        u6 += d6 * w_high;
        let d7 = d_output[t7 + k];
        s7 += d7 * w_low;
        u7 += d7 * w_high;
    }
    let sums = array<vec4f, 2 * TOKENS>(s0, u0, s1, u1, s2, u2, s3, u3, s4, u4, s5, u5, s6, u6, s7, u7);
    for (var i = 0u; i < TOKENS; i++) {
        for (var j = 0u; j < INPUTS; j++) {
            let input = 4 * low4 + j;
            if first_token + i < params.tokens && input < params.in_features {
                let at = (first_token + i) * params.in_features + input;
                d_input[at] = params.scale * sums[2 * i + j / 4][j % 4] + select(0.0, d_input[at], params.accumulate == 1);
            }
        }
    }
}
