// h = x·Aᵀ, unscaled, for some tokens and in_features divisible by four, the sums added up by subgroups.
// A workgroup makes EACH tokens × RANKS elements of h: its invocations share the columns, four of them at a time.
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
}
@group(0) @binding(0) var<storage, read> a: array<vec4f>; // [rank, in_features / 4]
@group(0) @binding(1) var<storage, read> x: array<vec4f>; // [tokens, in_features / 4]
@group(0) @binding(2) var<storage, read_write> h: array<f32>; // [tokens, rank]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 128;
const EACH: u32 = 2;
const RANKS: u32 = 8;

var<workgroup> partial: array<f32, EACH * RANKS * WORKGROUP / 4>; // [subgroups, EACH, RANKS]; a subgroup has four or more

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = group.x + group.y * groups.x;
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let first_rank = tile % rank_tiles * RANKS;
    let first_token = tile / rank_tiles * EACH;
    let blocks = params.in_features / 4;
    // Out of range repeats the last row; it is not written.
    var rows: array<u32, EACH>;
    for (var i = 0u; i < EACH; i++) {
        rows[i] = min(first_token + i, params.tokens - 1) * blocks;
    }
    var sum: array<vec4f, EACH * 2>; // [EACH, RANKS / 4]
    for (var k = index; k < blocks; k += WORKGROUP) {
        var of_a: array<vec4f, RANKS>;
        for (var r = 0u; r < RANKS; r++) {
            of_a[r] = a[min(first_rank + r, params.rank - 1) * blocks + k];
        }
        for (var i = 0u; i < EACH; i++) {
            let of_x = x[rows[i] + k];
            sum[2 * i] += vec4f(dot(of_a[0], of_x), dot(of_a[1], of_x), dot(of_a[2], of_x), dot(of_a[3], of_x));
            sum[2 * i + 1] += vec4f(dot(of_a[4], of_x), dot(of_a[5], of_x), dot(of_a[6], of_x), dot(of_a[7], of_x));
        }
    }
    for (var i = 0u; i < 2 * EACH; i++) {
        let total = subgroupAdd(sum[i]);
        if lane == 0 {
            for (var j = 0u; j < 4; j++) {
                partial[subgroup * EACH * RANKS + 4 * i + j] = total[j];
            }
        }
    }
    workgroupBarrier();

    for (var e = index; e < EACH * RANKS; e += WORKGROUP) {
        var total = 0.0;
        for (var s = 0u; s < subgroups; s++) {
            total += partial[s * EACH * RANKS + e];
        }
        let token = first_token + e / RANKS;
        let rank = first_rank + e % RANKS;
        if token < params.tokens && rank < params.rank {
            h[token * params.rank + rank] = total;
        }
    }
}
