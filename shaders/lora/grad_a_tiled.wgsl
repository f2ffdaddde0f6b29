// dA = scale·dhᵀ·x, or that added to it, for in_features divisible by four.
// A workgroup makes 4·COLUMNS columns × RANKS ranks from `part` tokens, TOKENS of them at a time: SLICES invocations share the
// tokens of four columns, so that x is read once for RANKS ranks and dh once for 4·COLUMNS columns.
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    part: u32,
    accumulate: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> dh: array<f32>; // [tokens, rank]
@group(0) @binding(1) var<storage, read> x: array<vec4f>; // [tokens, in_features]
@group(0) @binding(2) var<storage, read_write> d_a: array<f32>; // [⌈tokens / part⌉, rank, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override COLUMNS: u32 = 32;
override SLICES: u32 = 4;
const TOKENS: u32 = 128;
const EACH: u32 = 4; // tokens at a time
const RANKS: u32 = 16;

var<workgroup> dh_tile: array<vec4f, 512>; // [TOKENS, RANKS / 4]
var<workgroup> partial: array<vec4f, 4 * COLUMNS * SLICES>; // [4, SLICES, COLUMNS], of four ranks

// Adds up what the invocations have of four columns and four ranks.
fn finish(index: u32, a: vec4f, b: vec4f, c: vec4f, d: vec4f, first_column: u32, first_rank: u32, part: u32) {
    let all = COLUMNS * SLICES;
    workgroupBarrier();
    partial[index] = a;
    partial[all + index] = b;
    partial[2 * all + index] = c;
    partial[3 * all + index] = d;
    workgroupBarrier();
    for (var e = index; e < 4 * COLUMNS; e += all) {
        var total = vec4f();
        for (var slice = 0u; slice < SLICES; slice++) {
            total += partial[e % 4 * all + slice * COLUMNS + e / 4];
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
    let column_tiles = (params.in_features + 4 * COLUMNS - 1) / (4 * COLUMNS);
    let first_rank = tile % rank_tiles * RANKS;
    let ranks = min(params.rank - first_rank, RANKS);
    let first_column = tile / rank_tiles % column_tiles * 4 * COLUMNS;
    let part = tile / rank_tiles / column_tiles;
    let begin = part * params.part;
    let end = min(begin + params.part, params.tokens);

    let blocks = params.in_features / 4;
    let block = min(first_column / 4 + local.x, blocks - 1); // Out of range repeats the last columns; they are not written.
    var sum: array<vec4f, 16>; // [4, RANKS / 4], of four ranks
    var next: array<vec4f, EACH>;
    for (var i = 0u; i < EACH; i++) {
        next[i] = x[min(begin + EACH * local.y + i, params.tokens - 1) * blocks + block];
    }
    for (var first = begin; first < end; first += TOKENS) {
        workgroupBarrier();
        let count = min((end - first + EACH - 1) / EACH * EACH, TOKENS);
        for (var e = index; e < count * RANKS / 4; e += COLUMNS * SLICES) {
            let token = first + e / (RANKS / 4);
            let r = e % (RANKS / 4) * 4 + vec4u(0, 1, 2, 3);
            let small = min(token, params.tokens - 1) * params.rank + first_rank + min(r, vec4u(ranks - 1));
            let found = vec4f(dh[small.x], dh[small.y], dh[small.z], dh[small.w]);
            dh_tile[e] = select(vec4f(), found, vec4<bool>(token < end));
        }
        workgroupBarrier();
        for (var t = EACH * local.y; t < count; t += EACH * SLICES) {
            // The next tokens are on their way while these are worked on.
            var now: array<vec4f, EACH>;
            for (var i = 0u; i < EACH; i++) {
                now[i] = next[i];
            }
            for (var i = 0u; i < EACH; i++) {
                next[i] = x[min(first + t + EACH * SLICES + i, params.tokens - 1) * blocks + block];
            }
            for (var r = 0u; r < RANKS / 4; r++) {
                if 4 * r < ranks {
                    for (var i = 0u; i < EACH; i++) {
                        let value = dh_tile[(t + i) * (RANKS / 4) + r];
                        for (var j = 0u; j < 4; j++) {
                            sum[4 * j + r] += now[i][j] * value;
                        }
                    }
                }
            }
        }
    }
    finish(index, sum[0], sum[4], sum[8], sum[12], first_column, first_rank, part);
    if ranks > 4 {
        finish(index, sum[1], sum[5], sum[9], sum[13], first_column, first_rank + 4, part);
    }
    if ranks > 8 {
        finish(index, sum[2], sum[6], sum[10], sum[14], first_column, first_rank + 8, part);
    }
    if ranks > 12 {
        finish(index, sum[3], sum[7], sum[11], sum[15], first_column, first_rank + 12, part);
    }
}
