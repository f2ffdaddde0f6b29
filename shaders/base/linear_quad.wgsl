// output = scale·x·Wᵀ + bias, or that added to it, for W in f32 with in_features divisible by 4, where loads are slow: the four
// invocations of a quad make 32 tokens × 16 outputs together. Each loads every other 2 columns of its 16 tokens and 8 rows of W,
// and gets the others from its neighbours: tokens from the one beside it, rows from the one below.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    accumulate: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> weight: array<vec2f>; // [rows, in_features / 2]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<vec2f>; // [tokens, in_features / 2]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [tokens, columns]
@group(0) @binding(4) var<uniform> params: Params;

const TOKENS: u32 = 16;
const OUTPUTS: u32 = 8;

@compute @workgroup_size(4)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = group.x + group.y * groups.x;
    let output_tiles = (params.rows + 2 * OUTPUTS - 1) / (2 * OUTPUTS);
    let across = lane & 1;
    let down = (lane >> 1) & 1;
    let first_out = tile % output_tiles * 2 * OUTPUTS + across * OUTPUTS;
    let first_token = tile / output_tiles * 2 * TOKENS + down * TOKENS;
    // Out of range repeats the last row and the last token; they are not written.
    let low = params.first_row + min(first_out + vec4u(0, 1, 2, 3), vec4u(params.rows - 1));
    let high = params.first_row + min(first_out + vec4u(4, 5, 6, 7), vec4u(params.rows - 1));
    let columns2 = params.in_features / 2;
    let last_token = params.tokens - 1;
    let mine = across ^ down; // which of two times 2 columns
    let low2 = low * columns2 + mine;
    let high2 = high * columns2 + mine;
    let x0 = min(first_token, last_token) * columns2 + mine;
    let x1 = min(first_token + 1, last_token) * columns2 + mine;
    let x2 = min(first_token + 2, last_token) * columns2 + mine;
    let x3 = min(first_token + 3, last_token) * columns2 + mine;
    let x4 = min(first_token + 4, last_token) * columns2 + mine;
    let x5 = min(first_token + 5, last_token) * columns2 + mine;
    let x6 = min(first_token + 6, last_token) * columns2 + mine;
    let x7 = min(first_token + 7, last_token) * columns2 + mine;
    let x8 = min(first_token + 8, last_token) * columns2 + mine;
    let x9 = min(first_token + 9, last_token) * columns2 + mine;
    let x10 = min(first_token + 10, last_token) * columns2 + mine;
    let x11 = min(first_token + 11, last_token) * columns2 + mine;
    let x12 = min(first_token + 12, last_token) * columns2 + mine;
    let x13 = min(first_token + 13, last_token) * columns2 + mine;
    let x14 = min(first_token + 14, last_token) * columns2 + mine;
    let x15 = min(first_token + 15, last_token) * columns2 + mine;
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
    var s8 = vec4f();
    var u8 = vec4f();
    var s9 = vec4f();
    var u9 = vec4f();
    var s10 = vec4f();
    var u10 = vec4f();
    var s11 = vec4f();
    var u11 = vec4f();
    var s12 = vec4f();
    var u12 = vec4f();
    var s13 = vec4f();
    var u13 = vec4f();
    var s14 = vec4f();
    var u14 = vec4f();
    var s15 = vec4f();
    var u15 = vec4f();
    for (var k = 0u; k < columns2; k += 2) {
        let w0 = weight[low2.x + k];
        let w1 = weight[low2.y + k];
        let w2 = weight[low2.z + k];
        let w3 = weight[low2.w + k];
        let w4 = weight[high2.x + k];
        let w5 = weight[high2.y + k];
        let w6 = weight[high2.z + k];
        let w7 = weight[high2.w + k];
        let w_low = mat4x2f(w0, w1, w2, w3);
        let w_high = mat4x2f(w4, w5, w6, w7);
        let z_low = mat4x2f(quadSwapY(w0), quadSwapY(w1), quadSwapY(w2), quadSwapY(w3));
        let z_high = mat4x2f(quadSwapY(w4), quadSwapY(w5), quadSwapY(w6), quadSwapY(w7));
        let v0 = x[x0 + k];
        let y0 = quadSwapX(v0);
        s0 += v0 * w_low + y0 * z_low;
        u0 += v0 * w_high + y0 * z_high;
        let v1 = x[x1 + k];
        let y1 = quadSwapX(v1);
        s1 += v1 * w_low + y1 * z_low;
        u1 += v1 * w_high + y1 * z_high;
        let v2 = x[x2 + k];
        let y2 = quadSwapX(v2);
        s2 += v2 * w_low + y2 * z_low;
        u2 += v2 * w_high + y2 * z_high;
        let v3 = x[x3 + k];
        let y3 = quadSwapX(v3);
        s3 += v3 * w_low + y3 * z_low;
        u3 += v3 * w_high + y3 * z_high;
        let v4 = x[x4 + k];
        let y4 = quadSwapX(v4);
        s4 += v4 * w_low + y4 * z_low;
        u4 += v4 * w_high + y4 * z_high;
        let v5 = x[x5 + k];
        let y5 = quadSwapX(v5);
        s5 += v5 * w_low + y5 * z_low;
        u5 += v5 * w_high + y5 * z_high;
        let v6 = x[x6 + k];
        let y6 = quadSwapX(v6);
        s6 += v6 * w_low + y6 * z_low;
        u6 += v6 * w_high + y6 * z_high;
        let v7 = x[x7 + k];
        let y7 = quadSwapX(v7);
        s7 += v7 * w_low + y7 * z_low;
        u7 += v7 * w_high + y7 * z_high;
        let v8 = x[x8 + k];
        let y8 = quadSwapX(v8);
        s8 += v8 * w_low + y8 * z_low;
        u8 += v8 * w_high + y8 * z_high;
        let v9 = x[x9 + k];
        let y9 = quadSwapX(v9);
        s9 += v9 * w_low + y9 * z_low;
        u9 += v9 * w_high + y9 * z_high;
        let v10 = x[x10 + k];
        let y10 = quadSwapX(v10);
        s10 += v10 * w_low + y10 * z_low;
        u10 += v10 * w_high + y10 * z_high;
        let v11 = x[x11 + k];
        let y11 = quadSwapX(v11);
        s11 += v11 * w_low + y11 * z_low;
        u11 += v11 * w_high + y11 * z_high;
        let v12 = x[x12 + k];
        let y12 = quadSwapX(v12);
        s12 += v12 * w_low + y12 * z_low;
        u12 += v12 * w_high + y12 * z_high;
        let v13 = x[x13 + k];
        let y13 = quadSwapX(v13);
        s13 += v13 * w_low + y13 * z_low;
        u13 += v13 * w_high + y13 * z_high;
        let v14 = x[x14 + k];
        let y14 = quadSwapX(v14);
        s14 += v14 * w_low + y14 * z_low;
        u14 += v14 * w_high + y14 * z_high;
        let v15 = x[x15 + k];
        let y15 = quadSwapX(v15);
        s15 += v15 * w_low + y15 * z_low;
        u15 += v15 * w_high + y15 * z_high;
    }
    let sums = array<vec4f, 2 * TOKENS>(
        s0, u0, s1, u1, s2, u2, s3, u3, s4, u4, s5, u5, s6, u6, s7, u7,
        s8, u8, s9, u9, s10, u10, s11, u11, s12, u12, s13, u13, s14, u14, s15, u15,
    );
    for (var j = 0u; j < OUTPUTS; j++) {
        let out = first_out + j;
        if out < params.rows {
            let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1);
            for (var i = 0u; i < TOKENS; i++) {
                if first_token + i < params.tokens {
                    let at = (first_token + i) * params.columns + params.first_column + out;
                    let old = select(0.0, output[at], params.accumulate == 1);
                    output[at] = params.scale * sums[2 * i + j / 4][j % 4] + offset + old;
                }
            }
        }
    }
}
