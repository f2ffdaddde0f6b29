// output = scale·x·Wᵀ + bias without workgroup memory: one invocation makes 8 tokens × 4 outputs.
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
const OUTPUTS: u32 = 4;

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
    let row = params.first_row + min(vec4u(first_out) + vec4u(0, 1, 2, 3), vec4u(params.rows - 1));
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
    for (var chunk = 0u; chunk * CHUNK < columns4; chunk++) {
        let w0 = load(row.x, chunk);
        let w1 = load(row.y, chunk);
        let w2 = load(row.z, chunk);
        let w3 = load(row.w, chunk);
        let depth = min(CHUNK, columns4 - chunk * CHUNK);
        for (var j = 0u; j < depth; j++) {
            let w = mat4x4f(unpack(w0, j), unpack(w1, j), unpack(w2, j), unpack(w3, j));
            let k = chunk * CHUNK + j;
            s0 += x[x0 + k] * w;
            s1 += x[x1 + k] * w;
            s2 += x[x2 + k] * w;
            s3 += x[x3 + k] * w;
            s4 += x[x4 + k] * w;
            s5 += x[x5 + k] * w;
            s6 += x[x6 + k] * w;
            s7 += x[x7 + k] * w;
        }
    }
    let sums = array<vec4f, TOKENS>(s0, s1, s2, s3, s4, s5, s6, s7);
    for (var j = 0u; j < OUTPUTS; j++) {
        let out = first_out + j;
        if out < params.rows {
            let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1);
            for (var i = 0u; i < TOKENS; i++) {
                if first_token + i < params.tokens {
                    let at = (first_token + i) * params.columns + params.first_column + out;
                    output[at] = params.scale * sums[i][j] + offset;
                }
            }
        }
    }
}
