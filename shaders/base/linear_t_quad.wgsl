// d_input = scale·d_output·W, or that added to it, for W in f32 with in_features divisible by 4, where loads are slow: the four
// invocations of a quad make 16 tokens × 16 inputs together. Each loads every other row of 8 inputs of W and of d_output's 8
// tokens, and gets the others from its neighbours: tokens from the one beside it, inputs from the one below.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    token_stride: u32, // from one token of d_output to the next
    row_stride: u32, // from what belongs to one row of W to the next
    first: u32,
    accumulate: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> weight: array<vec4f>; // [rows, in_features / 4]
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [tokens, columns], or [columns, tokens]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;

const TOKENS: u32 = 8;
const INPUTS: u32 = 8;

@compute @workgroup_size(4)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = group.x + group.y * groups.x;
    let input_tiles = (params.in_features + 2 * INPUTS - 1) / (2 * INPUTS);
    let across = lane & 1;
    let down = (lane >> 1) & 1;
    let first_in = tile % input_tiles * 2 * INPUTS + across * INPUTS;
    let first_token = tile / input_tiles * 2 * TOKENS + down * TOKENS;
    // Out of range repeats the last inputs and the last token; they are not written.
    let columns4 = params.in_features / 4;
    let last_token = params.tokens - 1;
    let mine = across ^ down; // which of two rows
    let low4 = min(first_in / 4, columns4 - 1) + (params.first_row + mine) * columns4;
    let high4 = min(first_in / 4 + 1, columns4 - 1) + (params.first_row + mine) * columns4;
    let first = params.first + mine * params.row_stride;
    let t0 = first + min(first_token, last_token) * params.token_stride;
    let t1 = first + min(first_token + 1, last_token) * params.token_stride;
    let t2 = first + min(first_token + 2, last_token) * params.token_stride;
    let t3 = first + min(first_token + 3, last_token) * params.token_stride;
    let t4 = first + min(first_token + 4, last_token) * params.token_stride;
    let t5 = first + min(first_token + 5, last_token) * params.token_stride;
    let t6 = first + min(first_token + 6, last_token) * params.token_stride;
    let t7 = first + min(first_token + 7, last_token) * params.token_stride;
    var s0 = vec4f();
    var u0 = vec4f();
    var s1 = vec4f();
    var u1 = vec4f();
    var s2 = vec4f();
    var u2 = vec4f();
    var s3 = vec4f();
    var u3 = vec4f();
    var s4 = vec4f();
    var u4 = vec4f();
    var s5 = vec4f();
    var u5 = vec4f();
    var s6 = vec4f();
    var u6 = vec4f();
    var s7 = vec4f();
    var u7 = vec4f();
    // Four rows at a time; what would lie past the end is 0.
    for (var k = 0u; k < params.rows; k += 4) {
        let row = k + vec2u(0, 2);
        let there = row + mine < vec2u(params.rows);
        let w = row * columns4;
        let w0 = select(vec4f(), weight[low4 + w.x], there.x);
        let w1 = select(vec4f(), weight[low4 + w.y], there.y);
        let w2 = select(vec4f(), weight[high4 + w.x], there.x);
        let w3 = select(vec4f(), weight[high4 + w.y], there.y);
        let w_low = mat2x4f(w0, w1);
        let w_high = mat2x4f(w2, w3);
        let z_low = mat2x4f(quadSwapY(w0), quadSwapY(w1));
        let z_high = mat2x4f(quadSwapY(w2), quadSwapY(w3));
        let d = row * params.row_stride;
        let f0 = vec2f(d_output[t0 + d.x], d_output[t0 + d.y]);
        let v0 = select(vec2f(), f0, there);
        let y0 = quadSwapX(v0);
        s0 += w_low * v0 + z_low * y0;
        u0 += w_high * v0 + z_high * y0;
        let f1 = vec2f(d_output[t1 + d.x], d_output[t1 + d.y]);
        let v1 = select(vec2f(), f1, there);
        let y1 = quadSwapX(v1);
        s1 += w_low * v1 + z_low * y1;
        u1 += w_high * v1 + z_high * y1;
        let f2 = vec2f(d_output[t2 + d.x], d_output[t2 + d.y]);
        let v2 = select(vec2f(), f2, there);
        let y2 = quadSwapX(v2);
        s2 += w_low * v2 + z_low * y2;
        u2 += w_high * v2 + z_high * y2;
        let f3 = vec2f(d_output[t3 + d.x], d_output[t3 + d.y]);
        let v3 = select(vec2f(), f3, there);
        let y3 = quadSwapX(v3);
        s3 += w_low * v3 + z_low * y3;
        u3 += w_high * v3 + z_high * y3;
        let f4 = vec2f(d_output[t4 + d.x], d_output[t4 + d.y]);
        let v4 = select(vec2f(), f4, there);
        let y4 = quadSwapX(v4);
        s4 += w_low * v4 + z_low * y4;
        u4 += w_high * v4 + z_high * y4;
        let f5 = vec2f(d_output[t5 + d.x], d_output[t5 + d.y]);
        let v5 = select(vec2f(), f5, there);
        let y5 = quadSwapX(v5);
        s5 += w_low * v5 + z_low * y5;
        u5 += w_high * v5 + z_high * y5;
        let f6 = vec2f(d_output[t6 + d.x], d_output[t6 + d.y]);
        let v6 = select(vec2f(), f6, there);
        let y6 = quadSwapX(v6);
        s6 += w_low * v6 + z_low * y6;
        u6 += w_high * v6 + z_high * y6;
        let f7 = vec2f(d_output[t7 + d.x], d_output[t7 + d.y]);
        let v7 = select(vec2f(), f7, there);
        let y7 = quadSwapX(v7);
        s7 += w_low * v7 + z_low * y7;
        u7 += w_high * v7 + z_high * y7;
    }
    let sums = array<vec4f, 2 * TOKENS>(s0, u0, s1, u1, s2, u2, s3, u3, s4, u4, s5, u5, s6, u6, s7, u7);
    for (var i = 0u; i < TOKENS; i++) {
        for (var j = 0u; j < INPUTS; j++) {
            let input = first_in + j;
            if first_token + i < params.tokens && input < params.in_features {
                let at = (first_token + i) * params.in_features + input;
                d_input[at] = params.scale * sums[2 * i + j / 4][j % 4] + select(0.0, d_input[at], params.accumulate == 1);
            }
        }
    }
}
