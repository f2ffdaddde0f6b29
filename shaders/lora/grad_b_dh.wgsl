// dB = scale·d_outputᵀ·h and dh = d_output·B from one reading of d_output for RANKS ranks, each in parts, for out_features
// divisible by four. A workgroup goes through `part` tokens, TOKENS at a time, of 2·WORKGROUP columns: an invocation has four
// columns and half of the RANKS ranks. The sums of dB stay in registers; those of dh are added up over the four invocations of a
// quad, each of which keeps one token of four, and then over the quads.
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    part: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> d_output: array<vec4f>; // [tokens, out_features]
@group(0) @binding(2) var<storage, read> h: array<f32>; // [tokens, rank]
@group(0) @binding(3) var<storage, read_write> parts: array<f32>; // [parts, out_features, rank], then [strips, tokens, rank]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 128; // divisible by 32
const TOKENS: u32 = 16;
const EACH: u32 = 4; // tokens at a time, one for each invocation of a quad
const RANKS: u32 = 8;

var<workgroup> h_tile: array<vec4f, 32>; // [TOKENS, RANKS / 4]
var<workgroup> partial: array<vec4f, TOKENS * WORKGROUP / 4>; // [TOKENS, WORKGROUP / 4], of four ranks

// Where four ranks of a row are. Out of range repeats the last one; it is not written.
fn places(row: u32, rank: vec4u) -> vec4u {
    return row * params.rank + min(rank, vec4u(params.rank - 1));
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = group.x + group.y * groups.x;
    let blocks = params.out_features / 4;
    let strips = (blocks + WORKGROUP / 2 - 1) / (WORKGROUP / 2);
    let rank_tiles = (params.rank + RANKS - 1) / RANKS;
    let first_rank = tile % rank_tiles * RANKS;
    let strip = tile / rank_tiles % strips;
    let part = tile / rank_tiles / strips;
    let begin = part * params.part;
    let end = min(begin + params.part, params.tokens);

    // Subgroups share the workgroup equally, but need not have as many invocations as their size says there can be.
    let index = subgroup * (WORKGROUP / subgroups) + lane;
    // Quads by turns have the lower and the higher ranks of the same 16 columns.
    let quad = index / 4;
    let right = index % 2 == 1;
    let below = index / 2 % 2 == 1;
    let mine = index % 2 * 2 + index / 2 % 2; // of four tokens
    let rank = first_rank + quad % 2 * 4 + vec4u(0, 1, 2, 3);
    let block = strip * (WORKGROUP / 2) + quad / 2 * 4 + index % 4;
    let inside = min(block, blocks - 1); // Out of range repeats the last columns; they do not count.
    var weight: array<vec4f, 4>; // of four columns
    for (var j = 0u; j < 4; j++) {
        let at = places(4 * inside + j, rank);
        weight[j] = select(vec4f(), vec4f(b[at.x], b[at.y], b[at.z], b[at.w]), vec4<bool>(block < blocks));
    }
    var sum: array<vec4f, 4>;
    var next: array<vec4f, EACH>;
    for (var i = 0u; i < EACH; i++) {
        next[i] = d_output[min(begin + i, params.tokens - 1) * blocks + inside];
    }
    for (var first = begin; first < end; first += TOKENS) {
        workgroupBarrier();
        for (var e = index; e < TOKENS * RANKS / 4; e += WORKGROUP) {
            let token = first + e / 2;
            let at = places(min(token, params.tokens - 1), first_rank + e % 2 * 4 + vec4u(0, 1, 2, 3));
            h_tile[e] = select(vec4f(), vec4f(h[at.x], h[at.y], h[at.z], h[at.w]), vec4<bool>(token < end));
        }
        workgroupBarrier();
        for (var t = 0u; t < TOKENS; t += EACH) {
            // The next tokens are on their way while these are worked on.
            var now: array<vec4f, EACH>;
            for (var i = 0u; i < EACH; i++) {
                now[i] = next[i];
            }
            for (var i = 0u; i < EACH; i++) {
                next[i] = d_output[min(first + t + EACH + i, params.tokens - 1) * blocks + inside];
            }
            var product = array<vec4f, EACH>(); // of d_output and B
            for (var i = 0u; i < EACH; i++) {
                let value = h_tile[(t + i) * 2 + quad % 2];
                for (var j = 0u; j < 4; j++) {
                    sum[j] += now[i][j] * value;
                    product[i] += now[i][j] * weight[j];
                }
            }
            // Each gives away two tokens of four, then one of two.
            let two = select(product[0], product[2], right) + quadSwapX(select(product[2], product[0], right));
            let other = select(product[1], product[3], right) + quadSwapX(select(product[3], product[1], right));
            let one = select(two, other, below) + quadSwapY(select(other, two, below));
            partial[(t + mine) * (WORKGROUP / 4) + (quad ^ (2 * mine))] = one; // four tokens lie in different banks
        }
        workgroupBarrier();
        for (var e = index; e < TOKENS * RANKS; e += WORKGROUP) {
            let t = e / RANKS;
            let r = e % RANKS;
            var total = 0.0;
            for (var q = r / 4; q < WORKGROUP / 4; q += 2) {
                total += partial[t * (WORKGROUP / 4) + (q ^ (t % 4 * 2))][r % 4];
            }
            if first + t < end && first_rank + r < params.rank {
                let after = (params.tokens + params.part - 1) / params.part * params.out_features * params.rank;
                parts[after + (strip * params.tokens + first + t) * params.rank + first_rank + r] = total;
            }
        }
    }
    for (var j = 0u; j < 4; j++) {
        for (var k = 0u; k < 4; k++) {
            if begin < params.tokens && block < blocks && rank[k] < params.rank {
                let at = (part * params.out_features + 4 * block + j) * params.rank + rank[k];
                parts[at] = params.scale * sum[j][k];
            }
        }
    }
}
