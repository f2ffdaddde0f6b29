// The gradients of attention at k and v as nn/attention_grad_kv has them, for GPUs. One workgroup makes KEYS keys × 4·ACROSS
// elements of one key head, over tiles of ROWS queries of all heads that share it: k·qᵀ and v·d_outputᵀ from DEPTH·4 elements at
// a time, then the shares times d_output and the slopes times q, a half of the queries at a time. One invocation has EACH keys ×
// 4 queries, and twice as many × 4 elements.
struct Params {
    batch: u32,
    tokens: u32,
    heads: u32,
    kv_heads: u32,
    pairs: u32, // head_dim / 2
    scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(1) var<storage, read> k: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(2) var<storage, read> v: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(3) var<storage, read> segments: array<i32>; // [batch, tokens]
@group(0) @binding(4) var<storage, read> d_output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(5) var<storage, read> stats: array<vec2f>; // [batch, tokens, heads]
@group(0) @binding(6) var<storage, read_write> d_k: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(7) var<storage, read_write> d_v: array<vec2f>; // [batch, tokens, kv_heads, pairs]
@group(0) @binding(8) var<uniform> params: Params;

const ACROSS: u32 = 16; // invocations along queries and elements, 4 each
const DOWN: u32 = 8; // invocations along the keys
const EACH: u32 = 4;
const KEYS: u32 = 32;
const ROWS: u32 = 64;
const LANES: u32 = 128;
const DEPTH: u32 = 4;
const STRIDE: u32 = 5; // of a row of k, v, q and d_output, odd against bank conflicts

// First k and v [2, KEYS, STRIDE], q and d_output [2, ROWS, STRIDE]; then shares or slopes [KEYS, ACROSS], and behind them half
// of d_output or q [ROWS / 2, ACROSS].
var<workgroup> tile: array<vec4f, 1024>;
const BEHIND: u32 = 512;

// Four elements of a head, 0 past its end.
fn q_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), q[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(q[first + pair], second), pair < params.pairs);
}

fn k_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), k[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(k[first + pair], second), pair < params.pairs);
}

fn v_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), v[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(v[first + pair], second), pair < params.pairs);
}

fn d_quad(first: u32, pair: u32) -> vec4f {
    let second = select(vec2f(), d_output[first + pair + 1], pair + 1 < params.pairs);
    return select(vec4f(), vec4f(d_output[first + pair], second), pair < params.pairs);
}

// Adds the shares or slopes times what is behind them.
fn add_product(sum: ptr<function, array<vec4f, EACH>>, local: vec2u, half: u32) {
    for (var c = 0u; c < ACROSS / 2; c++) {
        let r0 = tile[BEHIND + c * ACROSS + local.x];
        let r1 = tile[BEHIND + (c + ACROSS / 2) * ACROSS + local.x];
        let r2 = tile[BEHIND + (c + ACROSS) * ACROSS + local.x];
        let r3 = tile[BEHIND + (c + 3 * ACROSS / 2) * ACROSS + local.x];
        for (var i = 0u; i < EACH; i++) {
            let factor = tile[(local.y + i * DOWN) * ACROSS + half + c];
            (*sum)[i] += factor.x * r0;
            (*sum)[i] += factor.y * r1;
            (*sum)[i] += factor.z * r2;
            (*sum)[i] += factor.w * r3;
        }
    }
}

@compute @workgroup_size(ACROSS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    // The first keys first: most queries see them.
    let key_tiles = (params.tokens + KEYS - 1) / KEYS;
    let dim_tiles = (params.pairs + 2 * ACROSS - 1) / (2 * ACROSS);
    let others = params.batch * params.kv_heads * dim_tiles;
    let index = group.x + group.y * groups.x;
    if index >= key_tiles * others {
        return;
    }
    let first_key = index / others * KEYS;
    let first_pair = index % dim_tiles * 2 * ACROSS;
    let kv_head = index / dim_tiles % params.kv_heads;
    let first_token = index % others / dim_tiles / params.kv_heads * params.tokens;
    let last = params.tokens - 1;
    let q_stride = params.heads * params.pairs;
    let kv_first = (first_token * params.kv_heads + kv_head) * params.pairs;
    let kv_stride = params.kv_heads * params.pairs;
    let head_group = params.heads / params.kv_heads;

    var k_sum: array<vec4f, EACH>;
    var v_sum: array<vec4f, EACH>;
    // Set to 0 for each tile: Chromium's software adapter does not where they are declared in a loop.
    var score: array<vec4f, EACH>;
    var d_share: array<vec4f, EACH>;
    var segment: array<i32, EACH>;
    for (var i = 0u; i < EACH; i++) {
        // Out of range repeats the last key; it is not written.
        segment[i] = segments[first_token + min(first_key + local.y + i * DOWN, last)];
    }
    for (var head = kv_head * head_group; head < (kv_head + 1) * head_group; head++) {
        let q_first = (first_token * params.heads + head) * params.pairs;
        for (var first_row = first_key; first_row < params.tokens; first_row += ROWS) {
            for (var i = 0u; i < EACH; i++) {
                score[i] = vec4f();
                d_share[i] = vec4f();
            }
            for (var first = 0u; first < params.pairs; first += 2 * DEPTH) {
                workgroupBarrier();
                for (var e = lane; e < KEYS * DEPTH; e += LANES) {
                    let source = kv_first + min(first_key + e / DEPTH, last) * kv_stride;
                    let to = e / DEPTH * STRIDE + e % DEPTH;
                    tile[to] = k_quad(source, first + e % DEPTH * 2);
                    tile[KEYS * STRIDE + to] = v_quad(source, first + e % DEPTH * 2);
                }
                for (var e = lane; e < ROWS * DEPTH; e += LANES) {
                    let source = q_first + min(first_row + e / DEPTH, last) * q_stride;
                    let to = (2 * KEYS + e / DEPTH) * STRIDE + e % DEPTH;
                    tile[to] = q_quad(source, first + e % DEPTH * 2);
                    tile[ROWS * STRIDE + to] = d_quad(source, first + e % DEPTH * 2);
                }
                workgroupBarrier();
                for (var d = 0u; d < DEPTH; d++) {
                    let queries = transpose(mat4x4f(
                        tile[(2 * KEYS + local.x) * STRIDE + d],
                        tile[(2 * KEYS + local.x + ACROSS) * STRIDE + d],
                        tile[(2 * KEYS + local.x + 2 * ACROSS) * STRIDE + d],
                        tile[(2 * KEYS + local.x + 3 * ACROSS) * STRIDE + d],
                    ));
                    for (var i = 0u; i < EACH; i++) {
                        let key = tile[(local.y + i * DOWN) * STRIDE + d];
                        score[i] += key.x * queries[0];
                        score[i] += key.y * queries[1];
                        score[i] += key.z * queries[2];
                        score[i] += key.w * queries[3];
                    }
                    let gradients = transpose(mat4x4f(
                        tile[(2 * KEYS + ROWS + local.x) * STRIDE + d],
                        tile[(2 * KEYS + ROWS + local.x + ACROSS) * STRIDE + d],
                        tile[(2 * KEYS + ROWS + local.x + 2 * ACROSS) * STRIDE + d],
                        tile[(2 * KEYS + ROWS + local.x + 3 * ACROSS) * STRIDE + d],
                    ));
                    for (var i = 0u; i < EACH; i++) {
                        let value = tile[(KEYS + local.y + i * DOWN) * STRIDE + d];
                        d_share[i] += value.x * gradients[0];
                        d_share[i] += value.y * gradients[1];
                        d_share[i] += value.z * gradients[2];
                        d_share[i] += value.w * gradients[3];
                    }
                }
            }
            let row = first_row + local.x + vec4u(0, 1, 2, 3) * ACROSS;
            let at = first_token + min(row, vec4u(last));
            let row_segment = vec4i(segments[at.x], segments[at.y], segments[at.z], segments[at.w]);
            let stats0 = stats[at.x * params.heads + head];
            let stats1 = stats[at.y * params.heads + head];
            let stats2 = stats[at.z * params.heads + head];
            let stats3 = stats[at.w * params.heads + head];
            let log_sum = vec4f(stats0.x, stats1.x, stats2.x, stats3.x);
            let delta = vec4f(stats0.y, stats1.y, stats2.y, stats3.y);
            workgroupBarrier();
            for (var i = 0u; i < EACH; i++) {
                let key = local.y + i * DOWN;
                let same = (row_segment == vec4i(segment[i])) & (row_segment != vec4i());
                let seen = (row >= vec4u(first_key + key)) & same;
                let share = select(vec4f(), exp(select(vec4f(-100.0), params.scale * score[i] - log_sum, seen)), seen);
                d_share[i] = select(vec4f(), params.scale * share * (d_share[i] - delta), seen); // the slopes from here on
                tile[key * ACROSS + local.x] = share;
            }
            // Queries local.x, + ACROSS, + 2·ACROSS, + 3·ACROSS make one vector: half of those vectors at a time.
            for (var half = 0u; half < ACROSS; half += ACROSS / 2) {
                if half > 0 {
                    workgroupBarrier();
                }
                for (var e = lane; e < ROWS / 2 * ACROSS; e += LANES) {
                    let slot = e / ACROSS;
                    let token = first_row + half + slot % (ACROSS / 2) + slot / (ACROSS / 2) * ACROSS;
                    let gradient = d_quad(q_first + min(token, last) * q_stride, first_pair + e % ACROSS * 2);
                    tile[BEHIND + e] = select(vec4f(), gradient, token < params.tokens);
                }
                workgroupBarrier();
                add_product(&v_sum, local.xy, half);
            }
            workgroupBarrier();
            for (var i = 0u; i < EACH; i++) {
                tile[(local.y + i * DOWN) * ACROSS + local.x] = d_share[i];
            }
            for (var half = 0u; half < ACROSS; half += ACROSS / 2) {
                if half > 0 {
                    workgroupBarrier();
                }
                for (var e = lane; e < ROWS / 2 * ACROSS; e += LANES) {
                    let slot = e / ACROSS;
                    let token = first_row + half + slot % (ACROSS / 2) + slot / (ACROSS / 2) * ACROSS;
                    let query = q_quad(q_first + min(token, last) * q_stride, first_pair + e % ACROSS * 2);
                    tile[BEHIND + e] = select(vec4f(), query, token < params.tokens);
                }
                workgroupBarrier();
                add_product(&k_sum, local.xy, half);
            }
        }
    }
    for (var i = 0u; i < EACH; i++) {
        let key = first_key + local.y + i * DOWN;
        let pair = first_pair + 2 * local.x;
        let at = kv_first + key * kv_stride + pair;
        if key < params.tokens && pair < params.pairs {
            d_k[at] = k_sum[i].xy;
            d_v[at] = v_sum[i].xy;
        }
        if key < params.tokens && pair + 1 < params.pairs {
            d_k[at + 1] = k_sum[i].zw;
            d_v[at + 1] = v_sum[i].zw;
        }
    }
}
