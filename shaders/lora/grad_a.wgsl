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

override COLUMNS: u32 = 64;
override SLICES: u32 = 4;
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
    var sum: array<f32, RANKS>;
    for (var t = local.y; t < params.tokens; t += SLICES) {
        let value = x[t * params.in_features + column];
        for (var j = 0u; j < RANKS; j++) {
            sum[j] += value * dh[t * params.rank + min(first_rank + j, params.rank - 1)];
        }
    }
    for (var j = 0u; j < RANKS; j++) {
        partial[(local.y * RANKS + j) * COLUMNS + local.x] = sum[j];
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
