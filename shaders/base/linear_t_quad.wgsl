// d_input = scale·d_output·W, or that added to it, for W in f32 with in_features divisible by 4, where loads are slow: the four
// invocations of a quad make 16 tokens × 16 inputs together, each 8 × 8 of them. Each loads half of its tokens of d_output and half
// of its inputs of W, and gets the other halves from its neighbours: tokens from the one beside it, inputs from the one below.
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
    // One's own halves and the neighbours'.
    let my_token = first_token + across * TOKENS / 2;
    let your_token = first_token + (1 - across) * TOKENS / 2;
    let my_in = first_in + down * INPUTS / 2;
    let your_in = first_in + (1 - down) * INPUTS / 2;
    // Out of range repeats the last inputs and the last token; they are not written.
    let columns4 = params.in_features / 4;
    let column = params.first_row * columns4 + min(my_in / 4, columns4 - 1);
    let last_token = params.tokens - 1;
    let t0 = params.first + min(my_token, last_token) * params.token_stride;
    let t1 = params.first + min(my_token + 1, last_token) * params.token_stride;
    let t2 = params.first + min(my_token + 2, last_token) * params.token_stride;
    let t3 = params.first + min(my_token + 3, last_token) * params.token_stride;
    // Of my tokens s and u, of yours p and q; of my inputs s and p, of yours u and q.
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
    // Four rows at a time; what would lie past the end is 0.
    for (var k = 0u; k < params.rows; k += 4) {
        let row = k + vec4u(0, 1, 2, 3);
        let there = row < vec4u(params.rows);
        let w_at = row * columns4 + column;
        let w0 = select(vec4f(), weight[w_at.x], there.x);
        let w1 = select(vec4f(), weight[w_at.y], there.y);
        let w2 = select(vec4f(), weight[w_at.z], there.z);
        let w3 = select(vec4f(), weight[w_at.w], there.w);
        let w = mat4x4f(w0, w1, w2, w3);
        let z = mat4x4f(quadSwapY(w0), quadSwapY(w1), quadSwapY(w2), quadSwapY(w3));
        let d = row * params.row_stride;
        let d0 = vec4f(d_output[t0 + d.x], d_output[t0 + d.y], d_output[t0 + d.z], d_output[t0 + d.w]);
        let v0 = select(vec4f(), d0, there);
        let y0 = quadSwapX(v0);
        s0 += w * v0;
        u0 += z * v0;
        p0 += w * y0;
        q0 += z * y0;
        let d1 = vec4f(d_output[t1 + d.x], d_output[t1 + d.y], d_output[t1 + d.z], d_output[t1 + d.w]);
        let v1 = select(vec4f(), d1, there);
        let y1 = quadSwapX(v1);
        s1 += w * v1;
        u1 += z * v1;
        p1 += w * y1;
        q1 += z * y1;
        let d2 = vec4f(d_output[t2 + d.x], d_output[t2 + d.y], d_output[t2 + d.z], d_output[t2 + d.w]);
        let v2 = select(vec4f(), d2, there);
        let y2 = quadSwapX(v2);
        s2 += w * v2;
        u2 += z * v2;
        p2 += w * y2;
        q2 += z * y2;
        let d3 = vec4f(d_output[t3 + d.x], d_output[t3 + d.y], d_output[t3 + d.z], d_output[t3 + d.w]);
        let v3 = select(vec4f(), d3, there);
        let y3 = quadSwapX(v3);
        s3 += w * v3;
        u3 += z * v3;
        p3 += w * y3;
        q3 += z * y3;
    }
    let sums = array<vec4f, 2 * TOKENS>(s0, u0, s1, u1, s2, u2, s3, u3, p0, q0, p1, q1, p2, q2, p3, q3);
    for (var i = 0u; i < TOKENS; i++) {
        let token = select(my_token, your_token, i >= TOKENS / 2) + i % (TOKENS / 2);
        for (var j = 0u; j < INPUTS; j++) {
            let input = select(my_in, your_in, j >= INPUTS / 2) + j % (INPUTS / 2);
            if token < params.tokens && input < params.in_features {
                let at = token * params.in_features + input;
                d_input[at] = params.scale * sums[2 * i + j / 4][j % 4] + select(0.0, d_input[at], params.accumulate == 1);
            }
        }
    }
}
