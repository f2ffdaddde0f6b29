// output += scale·(h·Bᵀ). One invocation makes TOKENS elements of one column.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> h: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read_write> output: array<f32>; // [tokens, out_features]
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
    let column_tiles = (params.out_features + COLUMNS - 1) / COLUMNS;
    let column = tile % column_tiles * COLUMNS + lane;
    let first_token = tile / column_tiles * TOKENS;
    if column >= params.out_features {
        return;
    }
    // TOKENS rows as one vector: an array, indexed, is slow on software adapters. Out of range repeats the last row; it is
    // not written.
    let rows = min(first_token + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1)) * params.rank;
    var sum = vec4f();
    for (var r = 0u; r < params.rank; r++) {
        let at = rows + r;
        sum += b[column * params.rank + r] * vec4f(h[at.x], h[at.y], h[at.z], h[at.w]);
    }
    for (var i = 0u; i < TOKENS; i++) {
        if first_token + i < params.tokens {
            output[(first_token + i) * params.out_features + column] += params.scale * sum[i];
        }
    }
}
