// d_input += scale·(dh·A). One invocation makes TOKENS elements of one column.
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [rank, in_features]
@group(0) @binding(1) var<storage, read> dh: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [tokens, in_features]
@group(0) @binding(3) var<uniform> params: Params;

override COLUMNS: u32 = 64;
const TOKENS: u32 = 4;

@compute @workgroup_size(COLUMNS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.in_features + COLUMNS - 1) / COLUMNS;
    let column = tile % column_tiles * COLUMNS + lane;
    let first_token = tile / column_tiles * TOKENS;
    if column >= params.in_features {
        return;
    }
    var sum: array<f32, TOKENS>;
    for (var r = 0u; r < params.rank; r++) {
        let weight = a[r * params.in_features + column];
        for (var i = 0u; i < TOKENS; i++) {
            sum[i] += weight * dh[min(first_token + i, params.tokens - 1) * params.rank + r];
        }
    }
    for (var i = 0u; i < TOKENS; i++) {
        if first_token + i < params.tokens {
            d_input[(first_token + i) * params.in_features + column] += params.scale * sum[i];
        }
    }
}
