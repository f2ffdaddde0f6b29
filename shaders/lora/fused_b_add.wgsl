// output += scale·(h·Bᵀ), or with parts output = Σ parts + scale·(h·Bᵀ).
// One invocation makes TOKENS elements of one column.
struct Params {
    tokens: u32,
    columns: u32, // out_features
    rank: u32,
    parts: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> h: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read> parts: array<f32>; // [parts, tokens, out_features]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [tokens, out_features]
@group(0) @binding(4) var<uniform> params: Params;

override COLUMNS: u32 = 64;
const TOKENS: u32 = 4;

@compute @workgroup_size(COLUMNS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let tile = group.x + group.y * groups.x;
    let column_tiles = (params.columns + COLUMNS - 1) / COLUMNS;
    let column = tile % column_tiles * COLUMNS + lane;
    let first_token = tile / column_tiles * TOKENS;
    if column >= params.columns {
        return;
    }
    // TOKENS rows as one vector: an array, indexed, is slow on software adapters. Out of range repeats the last row; it is
    // not written.
    let token = min(first_token + vec4u(0, 1, 2, 3), vec4u(params.tokens - 1));
    let rows = token * params.rank;
    var sum = vec4f();
    for (var r = 0u; r < params.rank; r++) {
        let at = rows + r;
        sum += b[column * params.rank + r] * vec4f(h[at.x], h[at.y], h[at.z], h[at.w]);
    }
    // All are read before the first is written.
    var before = vec4f();
    if params.parts == 0 {
        let at = token * params.columns + column;
        before = vec4f(output[at.x], output[at.y], output[at.z], output[at.w]);
    }
    for (var part = 0u; part < params.parts; part++) {
        let at = (part * params.tokens + token) * params.columns + column;
        before += vec4f(parts[at.x], parts[at.y], parts[at.z], parts[at.w]);
    }
    for (var i = 0u; i < TOKENS; i++) {
        if first_token + i < params.tokens {
            output[(first_token + i) * params.columns + column] = before[i] + params.scale * sum[i];
        }
    }
}
