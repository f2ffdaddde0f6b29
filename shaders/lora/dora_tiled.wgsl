// DoRA (Liu et al. 2024): u = p + scale·h·Bᵀ, output += m/norm·u − p. p is what the base gives without its bias: output − bias,
// or with dropout the product of what was left of x, which then is in u. A row of zeros stays one: m/norm is 0 there.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    scale: f32,
    has_bias: u32,
    dropped: u32, // 1: p is in u
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> h: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read> magnitude: array<f32>; // [out_features]
@group(0) @binding(3) var<storage, read> norm: array<f32>; // [out_features]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [out_features], or anything
@group(0) @binding(5) var<storage, read_write> u: array<f32>; // [tokens, out_features]
@group(0) @binding(6) var<storage, read_write> output: array<f32>; // [tokens, out_features]
@group(0) @binding(7) var<uniform> params: Params;

override COLUMNS: u32 = 32;
override DOWN: u32 = 8;
const TOKENS: u32 = 8;
const RANKS: u32 = 16;

var<workgroup> b_tile: array<f32, RANKS * (4 * COLUMNS + 1)>; // [RANKS, 4·COLUMNS + 1], odd against bank conflicts
var<workgroup> h_tile: array<vec4f, RANKS / 4 * DOWN * TOKENS>; // [DOWN·TOKENS, RANKS / 4]

@compute @workgroup_size(COLUMNS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.out_features + 4 * COLUMNS - 1) / (4 * COLUMNS);
    let first_column = tile % column_tiles * 4 * COLUMNS;
    let first_token = tile / column_tiles * DOWN * TOKENS;
    let stride = 4 * COLUMNS + 1;

    var sum: array<vec4f, TOKENS>;
    for (var first_rank = 0u; first_rank < params.rank; first_rank += RANKS) {
        let ranks = min(params.rank - first_rank, RANKS);
        workgroupBarrier();
        for (var e = index; e < RANKS * 4 * COLUMNS; e += COLUMNS * DOWN) {
            let column = min(first_column + e / RANKS, params.out_features - 1);
            let rank = first_rank + min(e % RANKS, ranks - 1);
            b_tile[e % RANKS * stride + e / RANKS] = b[column * params.rank + rank];
        }
        let rows = min(params.tokens - min(first_token, params.tokens), DOWN * TOKENS);
        for (var e = index; e < RANKS / 4 * rows; e += COLUMNS * DOWN) {
            let r = e % (RANKS / 4) * 4 + vec4u(0, 1, 2, 3);
            let at = (first_token + e / (RANKS / 4)) * params.rank + first_rank + min(r, vec4u(ranks - 1));
            h_tile[e] = select(vec4f(), vec4f(h[at.x], h[at.y], h[at.z], h[at.w]), r < vec4u(ranks));
        }
        workgroupBarrier();
        for (var r = 0u; r < ranks; r += 4) {
            var weight: array<vec4f, 4>; // of a rank, for four columns
            for (var j = 0u; j < 4; j++) {
                let at = (r + j) * stride + local.x;
                let low = vec2f(b_tile[at], b_tile[at + COLUMNS]);
                weight[j] = vec4f(low, b_tile[at + 2 * COLUMNS], b_tile[at + 3 * COLUMNS]);
            }
            for (var i = 0u; i < TOKENS; i++) {
                let value = h_tile[(local.y + i * DOWN) * (RANKS / 4) + r / 4];
                sum[i] += value.x * weight[0];
                sum[i] += value.y * weight[1];
                sum[i] += value.z * weight[2];
                sum[i] += value.w * weight[3];
            }
        }
    }
    let column = first_column + local.x + vec4u(0, 1, 2, 3) * COLUMNS;
    let inside = min(column, vec4u(params.out_features - 1));
    var offset = vec4f();
    if params.has_bias == 1 {
        offset = vec4f(bias[inside.x], bias[inside.y], bias[inside.z], bias[inside.w]);
    }
    let length = vec4f(norm[inside.x], norm[inside.y], norm[inside.z], norm[inside.w]);
    let wanted = vec4f(magnitude[inside.x], magnitude[inside.y], magnitude[inside.z], magnitude[inside.w]);
    let factor = select(wanted / length, vec4f(), length == vec4f());
    // Two tokens are read before the first is written.
    for (var i = 0u; i < TOKENS; i += 2) {
        var old: array<vec4f, 2>;
        var base: array<vec4f, 2>;
        for (var k = 0u; k < 2; k++) {
            let at = min(first_token + local.y + (i + k) * DOWN, params.tokens - 1) * params.out_features + inside;
            old[k] = vec4f(output[at.x], output[at.y], output[at.z], output[at.w]);
            base[k] = old[k] - offset;
            if params.dropped == 1 {
                base[k] = vec4f(u[at.x], u[at.y], u[at.z], u[at.w]);
            }
        }
        for (var k = 0u; k < 2; k++) {
            let token = first_token + local.y + (i + k) * DOWN;
            let changed = base[k] + params.scale * sum[i + k];
            let result = old[k] + (factor * changed - base[k]);
            for (var j = 0u; j < 4; j++) {
                if token < params.tokens && column[j] < params.out_features {
                    u[token * params.out_features + column[j]] = changed[j];
                    output[token * params.out_features + column[j]] = result[j];
                }
            }
        }
    }
}
