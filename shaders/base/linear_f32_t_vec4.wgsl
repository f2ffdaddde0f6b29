// d_input = d_output·W without workgroup memory, for features divisible by 4: one invocation makes 8 tokens × 4 inputs.
struct Params {
    tokens: u32,
    in_features: u32,
    out_features: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<vec4f>; // [out_features, in_features / 4]
@group(0) @binding(1) var<storage, read> d_output: array<vec4f>; // [tokens, out_features / 4]
@group(0) @binding(2) var<storage, read_write> d_input: array<vec4f>; // [tokens, in_features / 4]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;
const TOKENS: u32 = 8;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let tile = id.x + id.y * groups.x * WORKGROUP;
    let columns = params.in_features / 4;
    let column = tile % columns;
    let first_token = tile / columns * TOKENS;
    if first_token >= params.tokens {
        return;
    }
    // Out of range repeats the last row; it is not written.
    let depth = params.out_features / 4;
    let last_token = params.tokens - 1;
    let t0 = first_token * depth;
    let t1 = min(first_token + 1, last_token) * depth;
    let t2 = min(first_token + 2, last_token) * depth;
    let t3 = min(first_token + 3, last_token) * depth;
    let t4 = min(first_token + 4, last_token) * depth;
    let t5 = min(first_token + 5, last_token) * depth;
    let t6 = min(first_token + 6, last_token) * depth;
    let t7 = min(first_token + 7, last_token) * depth;
    var s0 = vec4f();
    var s1 = vec4f();
    var s2 = vec4f();
    var s3 = vec4f();
    var s4 = vec4f();
    var s5 = vec4f();
    var s6 = vec4f();
    var s7 = vec4f();
    for (var k = 0u; k < depth; k++) {
        let row = 4 * k * columns + column;
        let w0 = weight[row];
        let w1 = weight[row + columns];
        let w2 = weight[row + 2 * columns];
        let w3 = weight[row + 3 * columns];
        let d0 = d_output[t0 + k];
        s0 += d0.x * w0 + d0.y * w1 + d0.z * w2 + d0.w * w3;
        let d1 = d_output[t1 + k];
        s1 += d1.x * w0 + d1.y * w1 + d1.z * w2 + d1.w * w3;
        let d2 = d_output[t2 + k];
        s2 += d2.x * w0 + d2.y * w1 + d2.z * w2 + d2.w * w3;
        let d3 = d_output[t3 + k];
        s3 += d3.x * w0 + d3.y * w1 + d3.z * w2 + d3.w * w3;
        let d4 = d_output[t4 + k];
        s4 += d4.x * w0 + d4.y * w1 + d4.z * w2 + d4.w * w3;
        let d5 = d_output[t5 + k];
        s5 += d5.x * w0 + d5.y * w1 + d5.z * w2 + d5.w * w3;
        let d6 = d_output[t6 + k];
        s6 += d6.x * w0 + d6.y * w1 + d6.z * w2 + d6.w * w3;
        let d7 = d_output[t7 + k];
        s7 += d7.x * w0 + d7.y * w1 + d7.z * w2 + d7.w * w3;
    }
    let sums = array<vec4f, TOKENS>(s0, s1, s2, s3, s4, s5, s6, s7);
    for (var i = 0u; i < TOKENS; i++) {
        if first_token + i < params.tokens {
            d_input[(first_token + i) * columns + column] = sums[i];
        }
    }
}
