// output = scale·x·Wᵀ + bias without workgroup memory: one invocation makes 8 tokens × 8 outputs. Loads are what
// software adapters are slow at; a loop inside the one over the columns would double its time.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<vec4f>; // [tokens, ⌈in_features / 4⌉]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [tokens, columns]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 64;
const TOKENS: u32 = 8;
const OUTPUTS: u32 = 8;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let tile = id.x + id.y * groups.x * WORKGROUP;
    let output_tiles = (params.rows + OUTPUTS - 1) / OUTPUTS;
    let first_out = tile % output_tiles * OUTPUTS;
    let first_token = tile / output_tiles * TOKENS;
    if first_token >= params.tokens {
        return;
    }
    // Out of range repeats the last row; it is not written.
    let low = params.first_row + min(first_out + vec4u(0, 1, 2, 3), vec4u(params.rows - 1));
    let high = params.first_row + min(first_out + vec4u(4, 5, 6, 7), vec4u(params.rows - 1));
    let columns4 = (params.in_features + 3) / 4;
    let last_token = params.tokens - 1;
    let x0 = first_token * columns4;
    let x1 = min(first_token + 1, last_token) * columns4;
    let x2 = min(first_token + 2, last_token) * columns4;
    let x3 = min(first_token + 3, last_token) * columns4;
    let x4 = min(first_token + 4, last_token) * columns4;
    let x5 = min(first_token + 5, last_token) * columns4;
    let x6 = min(first_token + 6, last_token) * columns4;
    let x7 = min(first_token + 7, last_token) * columns4;
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
    var w0: Packed;
    var w1: Packed;
    var w2: Packed;
    var w3: Packed;
    var w4: Packed;
    var w5: Packed;
    var w6: Packed;
    var w7: Packed;
    for (var k = 0u; k < columns4; k++) {
        let j = k % CHUNK;
        if j == 0 {
            let chunk = k / CHUNK;
            w0 = load(low.x, chunk);
            w1 = load(low.y, chunk);
            w2 = load(low.z, chunk);
            w3 = load(low.w, chunk);
            w4 = load(high.x, chunk);
            w5 = load(high.y, chunk);
            w6 = load(high.z, chunk);
            w7 = load(high.w, chunk);
        }
        let w_low = mat4x4f(unpack(w0, j), unpack(w1, j), unpack(w2, j), unpack(w3, j));
        let w_high = mat4x4f(unpack(w4, j), unpack(w5, j), unpack(w6, j), unpack(w7, j));
        let v0 = x[x0 + k];
        s0 += v0 * w_low;
        u0 += v0 * w_high;
        let v1 = x[x1 + k];
        s1 += v1 * w_low;
        u1 += v1 * w_high;
        let v2 = x[x2 + k];
        s2 += v2 * w_low;
        u2 += v2 * w_high;
        let v3 = x[x3 + k];
        s3 += v3 * w_low;
        u3 += v3 * w_high;
        let v4 = x[x4 + k];
        s4 += v4 * w_low;
        u4 += v4 * w_high;
        let v5 = x[x5 + k];
        s5 += v5 * w_low;
        u5 += v5 * w_high;
        let v6 = x[x6 + k];
        s6 += v6 * w_low;
        u6 += v6 * w_high;
        let v7 = x[x7 + k];
        s7 += v7 * w_low;
        u7 += v7 * w_high;
    }
    let sums = array<vec4f, 2 * TOKENS>(s0, u0, s1, u1, s2, u2, s3, u3, s4, u4, s5, u5, s6, u6, s7, u7);
    for (var j = 0u; j < OUTPUTS; j++) {
        let out = first_out + j;
        if out < params.rows {
            let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1);
            for (var i = 0u; i < TOKENS; i++) {
                if first_token + i < params.tokens {
                    let at = (first_token + i) * params.columns + params.first_column + out;
                    output[at] = params.scale * sums[2 * i + j / 4][j % 4] + offset;
                }
            }
        }
    }
}
