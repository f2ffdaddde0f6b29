// d_input = d_output·W. A workgroup makes a TILE × TILE block of d_input from DEPTH columns of d_output and rows of W at a
// time; one invocation makes REG × REG elements of it.
struct Params {
    tokens: u32,
    in_features: u32,
    out_features: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [out_features, in_features]
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [tokens, out_features]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;

const REG: u32 = 4;
const SIDE: u32 = 16; // invocations along each side of the workgroup
const TILE: u32 = 64; // SIDE · REG
const DEPTH: u32 = 16;

var<workgroup> d_tile: array<f32, 1024>; // [DEPTH, TILE]
var<workgroup> w_tile: array<f32, 1024>; // [DEPTH, TILE]

@compute @workgroup_size(SIDE, SIDE)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.in_features + TILE - 1) / TILE;
    let first_in = tile % column_tiles * TILE;
    let first_token = tile / column_tiles * TILE;

    var sum: array<array<f32, REG>, REG>;
    for (var first_k = 0u; first_k < params.out_features; first_k += DEPTH) {
        for (var e = index; e < TILE * DEPTH; e += SIDE * SIDE) {
            let token = min(first_token + e / DEPTH, params.tokens - 1);
            let k = first_k + e % DEPTH;
            let at = min(k, params.out_features - 1);
            d_tile[e % DEPTH * TILE + e / DEPTH] = select(0.0, d_output[token * params.out_features + at], k < params.out_features);
        }
        for (var e = index; e < TILE * DEPTH; e += SIDE * SIDE) {
            let input = min(first_in + e % TILE, params.in_features - 1);
            let k = first_k + e / TILE;
            let at = min(k, params.out_features - 1);
            w_tile[e] = select(0.0, weight[at * params.in_features + input], k < params.out_features);
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            var ds: array<f32, REG>;
            var ws: array<f32, REG>;
            for (var i = 0u; i < REG; i++) {
                ds[i] = d_tile[k * TILE + local.y * REG + i];
                ws[i] = w_tile[k * TILE + local.x + i * SIDE];
            }
            for (var i = 0u; i < REG; i++) {
                for (var j = 0u; j < REG; j++) {
                    sum[i][j] += ds[i] * ws[j];
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < REG; i++) {
        let token = first_token + local.y * REG + i;
        for (var j = 0u; j < REG; j++) {
            let input = first_in + local.x + j * SIDE;
            if token < params.tokens && input < params.in_features {
                d_input[token * params.in_features + input] = sum[i][j];
            }
        }
    }
}
