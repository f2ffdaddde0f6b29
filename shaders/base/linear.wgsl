// output = scale·x·Wᵀ + bias, or parts of that sum, each over `part` vectors of columns, one after another. A workgroup makes
// TILE tokens × TILE outputs from 4·DEPTH columns of x and W at a time; one invocation makes TOKENS × 4 of them, and reads the
// next columns while it works on these.
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    part: u32,
    scale: f32,
}
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<vec4f>; // [tokens, ⌈in_features / 4⌉]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [parts, tokens, columns]
@group(0) @binding(4) var<uniform> params: Params;

const ACROSS: u32 = 16; // invocations along the outputs, 4 outputs each
const DOWN: u32 = 8; // invocations along the tokens
const TOKENS: u32 = 8;
const TILE: u32 = 64;
const DEPTH: u32 = 4;
const STRIDE: u32 = 5; // of a row of a tile, odd against bank conflicts
const READS: u32 = 2; // of each tile by one invocation: TILE · DEPTH / (ACROSS · DOWN)

var<workgroup> x_tile: array<vec4f, 320>; // [TILE, STRIDE]
var<workgroup> w_tile: array<vec4f, 320>; // [TILE, STRIDE]

@compute @workgroup_size(ACROSS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let output_tiles = (params.rows + TILE - 1) / TILE;
    let first_out = tile % output_tiles * TILE;
    let token_tiles = (params.tokens + TILE - 1) / TILE;
    let first_token = tile / output_tiles % token_tiles * TILE;
    let columns4 = (params.in_features + 3) / 4;
    let slice = tile / output_tiles / token_tiles;
    let first_part = slice * params.part;
    let end = min(first_part + params.part, columns4);
    if first_part >= columns4 {
        return;
    }

    var next_x: array<vec4f, READS>;
    var next_w: array<vec4f, READS>;
    var sum: array<vec4f, TOKENS>;
    // One round more than there are: the first only reads.
    for (var first_k = first_part; first_k < end + DEPTH; first_k += DEPTH) {
        if first_k > first_part {
            for (var i = 0u; i < READS; i++) {
                let e = index + i * ACROSS * DOWN;
                x_tile[e / DEPTH * STRIDE + e % DEPTH] = next_x[i];
                w_tile[e / DEPTH * STRIDE + e % DEPTH] = next_w[i];
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < READS; i++) {
            let e = index + i * ACROSS * DOWN;
            let k = first_k + e % DEPTH;
            let at = min(k, columns4 - 1);
            let token = min(first_token + e / DEPTH, params.tokens - 1);
            let row = params.first_row + min(first_out + e / DEPTH, params.rows - 1);
            next_x[i] = select(vec4f(), x[token * columns4 + at], k < columns4);
            next_w[i] = select(vec4f(), unpack(load(row, at / CHUNK), at % CHUNK), k < columns4);
        }
        if first_k > first_part {
            for (var k = 0u; k < DEPTH; k++) {
                let w = transpose(mat4x4f(
                    w_tile[local.x * STRIDE + k],
                    w_tile[(local.x + ACROSS) * STRIDE + k],
                    w_tile[(local.x + 2 * ACROSS) * STRIDE + k],
                    w_tile[(local.x + 3 * ACROSS) * STRIDE + k],
                ));
                for (var i = 0u; i < TOKENS; i++) {
                    let part = x_tile[(local.y + i * DOWN) * STRIDE + k];
                    sum[i] += part.x * w[0];
                    sum[i] += part.y * w[1];
                    sum[i] += part.z * w[2];
                    sum[i] += part.w * w[3];
                }
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < 4; j++) {
        let out = first_out + local.x + j * ACROSS;
        if out < params.rows {
            let offset = select(0.0, bias[(params.first_bias + out) * params.has_bias], params.has_bias == 1 && slice == 0);
            for (var i = 0u; i < TOKENS; i++) {
                let token = first_token + local.y + i * DOWN;
                if token < params.tokens {
                    let at = (slice * params.tokens + token) * params.columns + params.first_column + out;
                    output[at] = params.scale * sum[i][j] + offset;
                }
            }
        }
    }
}
