// output = x·Wᵀ + bias. A workgroup makes a TILE × TILE block of output from DEPTH columns of x and W at a time; one
// invocation makes REG × REG elements of it.
struct Params {
    tokens: u32,
    in_features: u32,
    out_features: u32,
    has_bias: u32,
}
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [out_features, in_features]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [out_features], anything when has_bias is 0
@group(0) @binding(2) var<storage, read> x: array<f32>; // [tokens, in_features]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [tokens, out_features]
@group(0) @binding(4) var<uniform> params: Params;

const REG: u32 = 4;
const SIDE: u32 = 16; // invocations along each side of the workgroup
const TILE: u32 = 64; // SIDE · REG
const DEPTH: u32 = 16;

var<workgroup> x_tile: array<f32, 1024>; // [DEPTH, TILE]
var<workgroup> w_tile: array<f32, 1024>; // [DEPTH, TILE]

@compute @workgroup_size(SIDE, SIDE)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.out_features + TILE - 1) / TILE;
    let first_out = tile % column_tiles * TILE;
    let first_token = tile / column_tiles * TILE;

    var sum: array<array<f32, REG>, REG>;
    for (var first_k = 0u; first_k < params.in_features; first_k += DEPTH) {
        for (var e = index; e < TILE * DEPTH; e += SIDE * SIDE) {
            let row = e / DEPTH;
            let k = e % DEPTH;
            let inside = first_k + k < params.in_features;
            let at = min(first_k + k, params.in_features - 1);
            x_tile[k * TILE + row] = select(0.0, x[min(first_token + row, params.tokens - 1) * params.in_features + at], inside);
            w_tile[k * TILE + row] = select(0.0, weight[min(first_out + row, params.out_features - 1) * params.in_features + at], inside);
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            var xs: array<f32, REG>;
            var ws: array<f32, REG>;
            for (var i = 0u; i < REG; i++) {
                xs[i] = x_tile[k * TILE + local.y * REG + i];
                ws[i] = w_tile[k * TILE + local.x + i * SIDE];
            }
            for (var i = 0u; i < REG; i++) {
                for (var j = 0u; j < REG; j++) {
                    sum[i][j] += xs[i] * ws[j];
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < REG; i++) {
        let token = first_token + local.y * REG + i;
        for (var j = 0u; j < REG; j++) {
            let out = first_out + local.x + j * SIDE;
            if token < params.tokens && out < params.out_features {
                output[token * params.out_features + out] = sum[i][j] + select(0.0, bias[out * params.has_bias], params.has_bias == 1);
            }
        }
    }
}
