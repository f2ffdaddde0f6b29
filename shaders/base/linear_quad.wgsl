// output = scale·x·Wᵀ + bias, or that added to it, for W in f32 with in_features divisible by 4, where loads are slow: the four
// invocations of a quad make 32 tokens × 16 outputs together, each 16 × 8 of them. Each loads half of its tokens and half of its
// rows of W, and gets the other halves from its neighbours: tokens from the one beside it, rows from the one below.
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
@group(0) @binding(0) var<storage, read> weight: array<vec4f>; // [rows, in_features / 4]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<vec4f>; // [tokens, in_features / 4]
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
    // One's own halves and the neighbours'.
    let my_token = first_token + across * TOKENS / 2;
    let your_token = first_token + (1 - across) * TOKENS / 2;
    let my_out = first_out + down * OUTPUTS / 2;
    let your_out = first_out + (1 - down) * OUTPUTS / 2;
    // Out of range repeats the last row and the last token; they are not written.
    let columns4 = params.in_features / 4;
    let row = (params.first_row + min(my_out + vec4u(0, 1, 2, 3), vec4u(params.rows - 1))) * columns4;
    let last_token = params.tokens - 1;
    let x0 = min(my_token, last_token) * columns4;
    let x1 = min(my_token + 1, last_token) * columns4;
    let x2 = min(my_token + 2, last_token) * columns4;
    let x3 = min(my_token + 3, last_token) * columns4;
    let x4 = min(my_token + 4, last_token) * columns4;
    let x5 = min(my_token + 5, last_token) * columns4;
    let x6 = min(my_token + 6, last_token) * columns4;
    let x7 = min(my_token + 7, last_token) * columns4;
    // Of my tokens s and u, of yours p and q; of my rows s and p, of yours u and q.
    var s0 = vec4f();
    var u0 = vec4f();
    var p0 = vec4f();
    var q0 = vec4f();
    var s1 = vec4f();
    var u1 = vec4f();
    var p1 = vec4f();
    var q1 = vec4f();
    var s2 = vec4f();
    var u2 = vec4f();
    var p2 = vec4f();
    var q2 = vec4f();
    var s3 = vec4f();
    var u3 = vec4f();
    var p3 = vec4f();
    var q3 = vec4f();
    var s4 = vec4f();
    var u4 = vec4f();
    var p4 = vec4f();
    var q4 = vec4f();
    var s5 = vec4f();
    var u5 = vec4f();
    var p5 = vec4f();
    var q5 = vec4f();
    var s6 = vec4f();
    var u6 = vec4f();
    var p6 = vec4f();
    var q6 = vec4f();
    var s7 = vec4f();
    var u7 = vec4f();
    var p7 = vec4f();
    var q7 = vec4f();
    for (var k = 0u; k < columns4; k++) {
        let w0 = weight[row.x + k];
        let w1 = weight[row.y + k];
        let w2 = weight[row.z + k];
        let w3 = weight[row.w + k];
        let w = mat4x4f(w0, w1, w2, w3);
        let z = mat4x4f(quadSwapY(w0), quadSwapY(w1), quadSwapY(w2), quadSwapY(w3));
        let v0 = x[x0 + k];
        let y0 = quadSwapX(v0);
        s0 += v0 * w;
        u0 += v0 * z;
        p0 += y0 * w;
        q0 += y0 * z;
        let v1 = x[x1 + k];
        let y1 = quadSwapX(v1);
        s1 += v1 * w;
        u1 += v1 * z;
        p1 += y1 * w;
        q1 += y1 * z;
        let v2 = x[x2 + k];
        let y2 = quadSwapX(v2);
        s2 += v2 * w;
        u2 += v2 * z;
        p2 += y2 * w;
        q2 += y2 * z;
        let v3 = x[x3 + k];
        let y3 = quadSwapX(v3);
        s3 += v3 * w;
        u3 += v3 * z;
        p3 += y3 * w;
        q3 += y3 * z;
        let v4 = x[x4 + k];
        let y4 = quadSwapX(v4);
        s4 += v4 * w;
        u4 += v4 * z;
        p4 += y4 * w;
        q4 += y4 * z;
        let v5 = x[x5 + k];
        let y5 = quadSwapX(v5);
        s5 += v5 * w;
        u5 += v5 * z;
        p5 += y5 * w;
        q5 += y5 * z;
        let v6 = x[x6 + k];
        let y6 = quadSwapX(v6);
        s6 += v6 * w;
        u6 += v6 * z;
        p6 += y6 * w;
        q6 += y6 * z;
        let v7 = x[x7 + k];
        let y7 = quadSwapX(v7);
        s7 += v7 * w;
        u7 += v7 * z;
        p7 += y7 * w;
        q7 += y7 * z;
    }
    let sums = array<vec4f, 2 * TOKENS>(
        s0, u0, s1, u1, s2, u2, s3, u3, s4, u4, s5, u5, s6, u6, s7, u7,
        p0, q0, p1, q1, p2, q2, p3, q3, p4, q4, p5, q5, p6, q6, p7, q7,
    );
    for (var j = 0u; j < OUTPUTS; j++) {
        let out = select(my_out, your_out, j >= OUTPUTS / 2) + j % (OUTPUTS / 2);
        if out < params.rows {
            let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1);
            for (var i = 0u; i < TOKENS; i++) {
                let token = select(my_token, your_token, i >= TOKENS / 2) + i % (TOKENS / 2);
                if token < params.tokens {
                    let at = token * params.columns + params.first_column + out;
                    let old = select(0.0, output[at], params.accumulate == 1);
                    output[at] = params.scale * sums[2 * i + j / 4][j % 4] + offset + old;
                }
            }
        }
    }
}
