// d_input = scale·d_output·W, or that added to it, or parts of that sum, each over `part` rows, one after another. A workgroup
// makes TILE tokens × TILE inputs from 4·DEPTH columns of d_output and rows of W at a time; one invocation makes TOKENS × 4 of
// them, and reads the next rows while it works on these.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
    part: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [tokens, columns]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [parts, tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;

const ACROSS: u32 = 16; // invocations along the inputs, 4 inputs each
const DOWN: u32 = 8; // invocations along the tokens
const TOKENS: u32 = 8;
const TILE: u32 = 64;
const DEPTH: u32 = 4;
const STRIDE: u32 = 5; // of a row of d_tile, odd against bank conflicts
const READS: u32 = 2; // of each tile by one invocation: TILE · DEPTH / (ACROSS · DOWN)

var<workgroup> d_tile: array<vec4f, 320>; // [TILE, STRIDE]
var<workgroup> w_tile: array<vec4f, 256>; // [4·DEPTH, ACROSS]

@compute @workgroup_size(ACROSS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let columns4 = (params.in_features + 3) / 4;
    let input_tiles = (columns4 + ACROSS - 1) / ACROSS;
    let first_in = tile % input_tiles * ACROSS;
    let token_tiles = (params.tokens + TILE - 1) / TILE;
    let first_token = tile / input_tiles % token_tiles * TILE;
    let last = params.rows - 1;
    let slice = tile / input_tiles / token_tiles;
    let first_part = slice * params.part;
    let end = min(first_part + params.part, params.rows);
    if first_part >= params.rows {
        return;
    }

    var next_d: array<vec4f, READS>;
    var next_w: array<vec4f, READS>;
    var sum: array<vec4f, TOKENS>;
    // One round more than there are: the first only reads.
    for (var first_k = first_part; first_k < end + 4 * DEPTH; first_k += 4 * DEPTH) {
        if first_k > first_part {
            for (var i = 0u; i < READS; i++) {
                let e = index + i * ACROSS * DOWN;
                d_tile[e / DEPTH * STRIDE + e % DEPTH] = next_d[i];
                w_tile[e] = next_w[i];
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < READS; i++) {
            let e = index + i * ACROSS * DOWN;
            let k = vec4u(first_k + e % DEPTH * 4) + vec4u(0, 1, 2, 3);
            let token = min(first_token + e / DEPTH, params.tokens - 1);
            let source = token * params.columns + params.first_column + min(k, vec4u(last));
            let found = vec4f(d_output[source.x], d_output[source.y], d_output[source.z], d_output[source.w]);
            next_d[i] = select(vec4f(), found, k < vec4u(params.rows));
            let row = first_k + e / ACROSS;
            let at = min(first_in + e % ACROSS, columns4 - 1);
            let w = unpack(load(params.first_row + min(row, last), at / CHUNK), at % CHUNK);
            next_w[i] = select(vec4f(), w, row < params.rows);
        }
        if first_k > first_part {
            for (var k = 0u; k < DEPTH; k++) {
                let w0 = w_tile[(4 * k) * ACROSS + local.x];
                let w1 = w_tile[(4 * k + 1) * ACROSS + local.x];
                let w2 = w_tile[(4 * k + 2) * ACROSS + local.x];
                let w3 = w_tile[(4 * k + 3) * ACROSS + local.x];
                for (var i = 0u; i < TOKENS; i++) {
                    let d = d_tile[(local.y + i * DOWN) * STRIDE + k];
                    sum[i] += d.x * w0;
                    sum[i] += d.y * w1;
                    sum[i] += d.z * w2;
                    sum[i] += d.w * w3;
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < TOKENS; i++) {
        let token = first_token + local.y + i * DOWN;
        for (var j = 0u; j < 4; j++) {
            let input = (first_in + local.x) * 4 + j;
            if token < params.tokens && input < params.in_features {
                let at = (slice * params.tokens + token) * params.in_features + input;
                d_input[at] = params.scale * sum[i][j] + select(0.0, d_input[at], params.accumulate == 1);
            }
        }
    }
}
