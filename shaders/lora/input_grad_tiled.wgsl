// d_input += scale·(dh·A), or with parts d_input = Σ parts + scale·(dh·A).
// A workgroup makes DOWN·TOKENS tokens × 4·COLUMNS columns, from RANKS ranks at a time; one invocation makes TOKENS × 4.
struct Params {
    tokens: u32,
    columns: u32, // in_features
    rank: u32,
    parts: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [rank, in_features]
@group(0) @binding(1) var<storage, read> dh: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read> parts: array<f32>; // [parts, tokens, in_features]
@group(0) @binding(3) var<storage, read_write> d_input: array<f32>; // [tokens, in_features]
@group(0) @binding(4) var<uniform> params: Params;

override COLUMNS: u32 = 32;
override DOWN: u32 = 8;
const TOKENS: u32 = 8;
const RANKS: u32 = 16;

var<workgroup> a_tile: array<f32, RANKS * (4 * COLUMNS + 1)>; // [RANKS, 4·COLUMNS + 1], odd against bank conflicts
var<workgroup> dh_tile: array<vec4f, RANKS / 4 * DOWN * TOKENS>; // [DOWN·TOKENS, RANKS / 4]

@compute @workgroup_size(COLUMNS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.columns + 4 * COLUMNS - 1) / (4 * COLUMNS);
    let first_column = tile % column_tiles * 4 * COLUMNS;
    let first_token = tile / column_tiles * DOWN * TOKENS;
    let stride = 4 * COLUMNS + 1;

    var sum: array<vec4f, TOKENS>;
    for (var first_rank = 0u; first_rank < params.rank; first_rank += RANKS) {
        let ranks = min(params.rank - first_rank, RANKS);
        workgroupBarrier();
        for (var e = index; e < RANKS * 4 * COLUMNS; e += COLUMNS * DOWN) {
            let rank = first_rank + min(e / (4 * COLUMNS), ranks - 1);
            let column = min(first_column + e % (4 * COLUMNS), params.columns - 1);
            a_tile[e / (4 * COLUMNS) * stride + e % (4 * COLUMNS)] = a[rank * params.columns + column];
        }
        let rows = min(params.tokens - min(first_token, params.tokens), DOWN * TOKENS);
        for (var e = index; e < RANKS / 4 * rows; e += COLUMNS * DOWN) {
            let r = e % (RANKS / 4) * 4 + vec4u(0, 1, 2, 3);
            let at = (first_token + e / (RANKS / 4)) * params.rank + first_rank + min(r, vec4u(ranks - 1));
            dh_tile[e] = select(vec4f(), vec4f(dh[at.x], dh[at.y], dh[at.z], dh[at.w]), r < vec4u(ranks));
        }
        workgroupBarrier();
        for (var r = 0u; r < ranks; r += 4) {
            var weight: array<vec4f, 4>; // of a rank, for four columns
            for (var j = 0u; j < 4; j++) {
                let at = (r + j) * stride + local.x;
                let low = vec2f(a_tile[at], a_tile[at + COLUMNS]);
                weight[j] = vec4f(low, a_tile[at + 2 * COLUMNS], a_tile[at + 3 * COLUMNS]);
            }
            for (var i = 0u; i < TOKENS; i++) {
                let value = dh_tile[(local.y + i * DOWN) * (RANKS / 4) + r / 4];
                sum[i] += value.x * weight[0];
                sum[i] += value.y * weight[1];
                sum[i] += value.z * weight[2];
                sum[i] += value.w * weight[3];
            }
        }
    }
    // All are read before the first is written.
    let column = first_column + local.x + vec4u(0, 1, 2, 3) * COLUMNS;
    let inside = min(column, vec4u(params.columns - 1));
    if params.parts == 0 {
        for (var i = 0u; i < TOKENS; i++) {
            let at = min(first_token + local.y + i * DOWN, params.tokens - 1) * params.columns + inside;
            sum[i] = vec4f(d_input[at.x], d_input[at.y], d_input[at.z], d_input[at.w]) + params.scale * sum[i];
        }
    } else {
        for (var i = 0u; i < TOKENS; i++) {
            sum[i] *= params.scale;
        }
        for (var part = 0u; part < params.parts; part++) {
            for (var i = 0u; i < TOKENS; i++) {
                let token = part * params.tokens + min(first_token + local.y + i * DOWN, params.tokens - 1);
                let at = token * params.columns + inside;
                sum[i] += vec4f(parts[at.x], parts[at.y], parts[at.z], parts[at.w]);
            }
        }
    }
    for (var i = 0u; i < TOKENS; i++) {
        let token = first_token + local.y + i * DOWN;
        for (var j = 0u; j < 4; j++) {
            if token < params.tokens && column[j] < params.columns {
                d_input[token * params.columns + column[j]] = sum[i][j];
            }
        }
    }
}
