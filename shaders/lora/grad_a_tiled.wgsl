// dA = scale·dhᵀ·x, or that added to it.
// A workgroup makes 2·COLUMNS columns × RANKS ranks from `part` tokens, TOKENS of them at a time: SLICES invocations share the
// tokens of two columns, so that x is read once for RANKS ranks and dh once for 2·COLUMNS columns.
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    part: u32,
    accumulate: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> dh: array<f32>; // [tokens, rank]
@group(0) @binding(1) var<storage, read> x: array<f32>; // [tokens, in_features]
@group(0) @binding(2) var<storage, read_write> d_a: array<f32>; // [⌈tokens / part⌉, rank, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override COLUMNS: u32 = 32;
override SLICES: u32 = 8;
const TOKENS: u32 = 128;
const RANKS: u32 = 16;

var<workgroup> dh_tile: array<vec4f, 512>; // [TOKENS, RANKS / 4]
var<workgroup> partial: array<vec4f, 2 * COLUMNS * SLICES>; // [SLICES, 2·COLUMNS], of four ranks

// Adds up what the invocations have of four ranks.
fn finish(local: vec2u, low: vec4f, high: vec4f, first_column: u32, first_rank: u32, part: u32) {
    workgroupBarrier();
    partial[2 * local.y * COLUMNS + local.x] = low;
    partial[(2 * local.y + 1) * COLUMNS + local.x] = high;
    workgroupBarrier();
    for (var e = local.y * COLUMNS + local.x; e < 2 * COLUMNS; e += COLUMNS * SLICES) {
        var total = vec4f();
        for (var slice = 0u; slice < SLICES; slice++) {
            total += partial[2 * slice * COLUMNS + e];
        }
        let column = first_column + e;
        for (var j = 0u; j < 4; j++) {
            let rank = first_rank + j;
            if part * params.part < params.tokens && column < params.in_features && rank < params.rank {
                let at = (part * params.rank + rank) * params.in_features + column;
                d_a[at] = params.scale * total[j] + select(0.0, d_a[at], params.accumulate == 1);
            }
        }
    }
}

@compute @workgroup_size(COLUMNS, SLICES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let column_tiles = (params.in_features + 2 * COLUMNS - 1) / (2 * COLUMNS);
    let first_rank = tile % rank_tiles * RANKS;
    let ranks = min(params.rank - first_rank, RANKS);
    let first_column = tile / rank_tiles % column_tiles * 2 * COLUMNS;
    let part = tile / rank_tiles / column_tiles;
    let begin = part * params.part;
    let end = min(begin + params.part, params.tokens);

    // Out of range repeats the last column; it is not written.
    let columns = min(first_column + local.x + vec2u(0, COLUMNS), vec2u(params.in_features - 1));
    var low: array<vec4f, 4>; // of the first column, by four ranks
    var high: array<vec4f, 4>; // of the second
    var at = min(begin + 4 * local.y + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.in_features + columns.x;
    var next_low = vec4f(x[at.x], x[at.y], x[at.z], x[at.w]);
    at += columns.y - columns.x;
    var next_high = vec4f(x[at.x], x[at.y], x[at.z], x[at.w]);
    for (var first = begin; first < end; first += TOKENS) {
        workgroupBarrier();
        let count = min((end - first + 3) / 4 * 4, TOKENS);
        for (var e = index; e < count * RANKS / 4; e += COLUMNS * SLICES) {
            let token = first + e / (RANKS / 4);
            let r = e % (RANKS / 4) * 4 + vec4u(0, 1, 2, 3);
            let small = min(token, params.tokens - 1) * params.rank + first_rank + min(r, vec4u(ranks - 1));
            let found = vec4f(dh[small.x], dh[small.y], dh[small.z], dh[small.w]);
            dh_tile[e] = select(vec4f(), found, vec4<bool>(token < end));
        }
        workgroupBarrier();
        // Four tokens at a time.
        for (var t = 4 * local.y; t < count; t += 4 * SLICES) {
            // The next four are on their way while these are worked on.
            let of_low = next_low;
            let of_high = next_high;
            at = min(first + t + 4 * SLICES + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.in_features + columns.x;
            next_low = vec4f(x[at.x], x[at.y], x[at.z], x[at.w]);
            at += columns.y - columns.x;
            next_high = vec4f(x[at.x], x[at.y], x[at.z], x[at.w]);
            for (var r = 0u; r < RANKS / 4; r++) {
                if 4 * r < ranks {
                    for (var i = 0u; i < 4; i++) {
                        let value = dh_tile[(t + i) * (RANKS / 4) + r];
                        low[r] += of_low[i] * value;
                        high[r] += of_high[i] * value;
                    }
                }
            }
        }
    }
    finish(local.xy, low[0], high[0], first_column, first_rank, part);
    if ranks > 4 {
        finish(local.xy, low[1], high[1], first_column, first_rank + 4, part);
    }
    if ranks > 8 {
        finish(local.xy, low[2], high[2], first_column, first_rank + 8, part);
    }
    if ranks > 12 {
        finish(local.xy, low[3], high[3], first_column, first_rank + 12, part);
    }
}
