// dA += scale·dhᵀ·x.
// A workgroup makes RANKS × COLUMNS elements of dA; SLICES invocations share the tokens of one column, so that x is read
// once for RANKS ranks. The only barrier stands before the last sum.
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> dh: array<f32>; // [tokens, rank]
@group(0) @binding(1) var<storage, read> x: array<f32>; // [tokens, in_features]
@group(0) @binding(2) var<storage, read_write> d_a: array<f32>; // [rank, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override COLUMNS: u32 = 16;
override SLICES: u32 = 16;
const RANKS: u32 = 8;

var<workgroup> partial: array<f32, COLUMNS * SLICES * RANKS>; // [SLICES, RANKS, COLUMNS]

@compute @workgroup_size(COLUMNS, SLICES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let first_column = tile / rank_tiles * COLUMNS;
    let first_rank = tile % rank_tiles * RANKS;

    // Out of range repeats the last column; it is not written.
    let column = min(first_column + local.x, params.in_features - 1);
    // RANKS sums as two vectors: an array, indexed, is slow on software adapters.
    let low = min(first_rank + vec4u(0, 1, 2, 3), vec4u(params.rank - 1));
    let high = min(first_rank + vec4u(4, 5, 6, 7), vec4u(params.rank - 1));
    var sum_low = vec4f();
    var sum_high = vec4f();
    for (var t = local.y; t < params.tokens; t += SLICES) {
        let value = x[t * params.in_features + column];
        let row = t * params.rank;
        sum_low += value * vec4f(dh[row + low.x], dh[row + low.y], dh[row + low.z], dh[row + low.w]);
        sum_high += value * vec4f(dh[row + high.x], dh[row + high.y], dh[row + high.z], dh[row + high.w]);
    }
    for (var j = 0u; j < 4; j++) {
        partial[(local.y * RANKS + j) * COLUMNS + local.x] = sum_low[j];
        partial[(local.y * RANKS + 4 + j) * COLUMNS + local.x] = sum_high[j];
    }
    workgroupBarrier();

    for (var e = index; e < COLUMNS * RANKS; e += COLUMNS * SLICES) {
        let rank = first_rank + e / COLUMNS;
        let input = first_column + e % COLUMNS;
        var total = 0.0;
        for (var slice = 0u; slice < SLICES; slice++) {
            total += partial[slice * RANKS * COLUMNS + e];
        }
        if rank < params.rank && input < params.in_features {
            d_a[rank * params.in_features + input] += params.scale * total;
        }
    }
}
