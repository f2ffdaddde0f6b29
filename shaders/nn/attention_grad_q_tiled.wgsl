// The gradient of attention at q as nn/attention_grad_q has it, for GPUs. One workgroup makes ROWS queries × 4·ACROSS elements of
// one head, over tiles of KEYS keys: q·kᵀ and d_output·vᵀ from DEPTH·4 elements at a time, then the slopes times k, a half of the
// keys at a time. One invocation has EACH queries × 4 keys, and as many × 4 elements.
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
@group(0) @binding(4) var<storage, read> output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(5) var<storage, read> d_output: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(6) var<storage, read_write> stats: array<vec2f>; // [batch, tokens, heads]
@group(0) @binding(7) var<storage, read_write> d_q: array<vec2f>; // [batch, tokens, heads, pairs]
@group(0) @binding(8) var<uniform> params: Params;

const ACROSS: u32 = 16; // invocations along keys and elements, 4 each
const DOWN: u32 = 4; // invocations along the queries
const EACH: u32 = 8;
const ROWS: u32 = 32;
const KEYS: u32 = 64;
const LANES: u32 = 64;
const DEPTH: u32 = 4;
const STRIDE: u32 = 5; // of a row of q, d_output, k and v, odd against bank conflicts

// First q and d_output [2, ROWS, STRIDE], k and v [2, KEYS, STRIDE]; then slopes [ROWS, ACROSS], and behind them half of k
// [KEYS / 2, ACROSS].
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

@compute @workgroup_size(ACROSS, DOWN)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    // The last queries first: they see most keys.
    let row_tiles = (params.tokens + ROWS - 1) / ROWS;
    let dim_tiles = (params.pairs + 2 * ACROSS - 1) / (2 * ACROSS);
    let others = params.batch * params.heads * dim_tiles;
    let index = group.x + group.y * groups.x;
    if index >= row_tiles * others {
        return;
    }
    let first_row = (row_tiles - 1 - index / others) * ROWS;
    let first_pair = index % dim_tiles * 2 * ACROSS;
    let head = index / dim_tiles % params.heads;
    let first_token = index % others / dim_tiles / params.heads * params.tokens;
    let last = params.tokens - 1;
    let kv_head = head / (params.heads / params.kv_heads);
    let q_first = (first_token * params.heads + head) * params.pairs;
    let q_stride = params.heads * params.pairs;
    let kv_first = (first_token * params.kv_heads + kv_head) * params.pairs;
    let kv_stride = params.kv_heads * params.pairs;

    var sum: array<vec4f, EACH>;
    var log_sum: array<f32, EACH>;
    var delta: array<f32, EACH>;
    // Set to 0 for each tile: Chromium's software adapter does not where they are declared in a loop.
    var score: array<vec4f, EACH>;
    var d_share: array<vec4f, EACH>;
    var segment: array<i32, EACH>;
    for (var i = 0u; i < EACH; i++) {
        let row = local.y + i * DOWN;
        // Out of range repeats the last query; it is not written.
        let token = min(first_row + row, last);
        segment[i] = segments[first_token + token];
        log_sum[i] = stats[(first_token + token) * params.heads + head].x;
        let first = q_first + token * q_stride;
        for (var d = local.x; d < params.pairs; d += ACROSS) {
            delta[i] += dot(output[first + d], d_output[first + d]);
        }
    }
    // Each invocation has every ACROSSth part of the deltas of its rows.
    let at = (local.x * DOWN + local.y) * 2;
    tile[at] = vec4f(delta[0], delta[1], delta[2], delta[3]);
    tile[at + 1] = vec4f(delta[4], delta[5], delta[6], delta[7]);
    workgroupBarrier();
    var low = vec4f();
    var high = vec4f();
    for (var x = 0u; x < ACROSS; x++) {
        low += tile[(x * DOWN + local.y) * 2];
        high += tile[(x * DOWN + local.y) * 2 + 1];
    }
    delta = array<f32, EACH>(low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
    for (var i = 0u; i < EACH; i++) {
        let row = local.y + i * DOWN;
        if first_pair == 0 && local.x == 0 && first_row + row < params.tokens {
            stats[(first_token + first_row + row) * params.heads + head].y = delta[i];
        }
    }
    let end = min(first_row + ROWS, params.tokens);
    for (var first_key = 0u; first_key < end; first_key += KEYS) {
        for (var i = 0u; i < EACH; i++) {
            score[i] = vec4f();
            d_share[i] = vec4f();
        }
        for (var first = 0u; first < params.pairs; first += 2 * DEPTH) {
            workgroupBarrier();
            for (var e = lane; e < ROWS * DEPTH; e += LANES) {
                let source = q_first + min(first_row + e / DEPTH, last) * q_stride;
                let to = e / DEPTH * STRIDE + e % DEPTH;
                tile[to] = q_quad(source, first + e % DEPTH * 2);
                tile[ROWS * STRIDE + to] = d_quad(source, first + e % DEPTH * 2);
            }
            for (var e = lane; e < KEYS * DEPTH; e += LANES) {
                let source = kv_first + min(first_key + e / DEPTH, last) * kv_stride;
                let to = (2 * ROWS + e / DEPTH) * STRIDE + e % DEPTH;
                tile[to] = k_quad(source, first + e % DEPTH * 2);
                tile[KEYS * STRIDE + to] = v_quad(source, first + e % DEPTH * 2);
            }
            workgroupBarrier();
            for (var d = 0u; d < DEPTH; d++) {
                let keys = transpose(mat4x4f(
                    tile[(2 * ROWS + local.x) * STRIDE + d],
                    tile[(2 * ROWS + local.x + ACROSS) * STRIDE + d],
                    tile[(2 * ROWS + local.x + 2 * ACROSS) * STRIDE + d],
                    tile[(2 * ROWS + local.x + 3 * ACROSS) * STRIDE + d],
                ));
                for (var i = 0u; i < EACH; i++) {
                    let query = tile[(local.y + i * DOWN) * STRIDE + d];
                    score[i] += query.x * keys[0];
                    score[i] += query.y * keys[1];
                    score[i] += query.z * keys[2];
                    score[i] += query.w * keys[3];
                }
                let values = transpose(mat4x4f(
                    tile[(2 * ROWS + KEYS + local.x) * STRIDE + d],
                    tile[(2 * ROWS + KEYS + local.x + ACROSS) * STRIDE + d],
                    tile[(2 * ROWS + KEYS + local.x + 2 * ACROSS) * STRIDE + d],
                    tile[(2 * ROWS + KEYS + local.x + 3 * ACROSS) * STRIDE + d],
                ));
                for (var i = 0u; i < EACH; i++) {
                    let gradient = tile[(ROWS + local.y + i * DOWN) * STRIDE + d];
                    d_share[i] += gradient.x * values[0];
                    d_share[i] += gradient.y * values[1];
                    d_share[i] += gradient.z * values[2];
                    d_share[i] += gradient.w * values[3];
                }
            }
        }
        let key = first_key + local.x + vec4u(0, 1, 2, 3) * ACROSS;
        let at = first_token + min(key, vec4u(last));
        let key_segment = vec4i(segments[at.x], segments[at.y], segments[at.z], segments[at.w]);
        workgroupBarrier();
        for (var i = 0u; i < EACH; i++) {
            let row = local.y + i * DOWN;
            let same = (key_segment == vec4i(segment[i])) & vec4<bool>(segment[i] != 0);
            let seen = (key <= vec4u(first_row + row)) & same;
            let share = exp(select(vec4f(-100.0), params.scale * score[i] - log_sum[i], seen));
            let slope = params.scale * share * (d_share[i] - delta[i]);
            tile[row * ACROSS + local.x] = select(vec4f(), slope, seen);
        }
        // Keys local.x, + ACROSS, + 2·ACROSS, + 3·ACROSS make one vector of slopes: half of those vectors at a time.
        for (var half = 0u; half < ACROSS; half += ACROSS / 2) {
            if half > 0 {
                workgroupBarrier();
            }
            for (var e = lane; e < KEYS / 2 * ACROSS; e += LANES) {
                let slot = e / ACROSS;
                let key = first_key + half + slot % (ACROSS / 2) + slot / (ACROSS / 2) * ACROSS;
                tile[BEHIND + e] = k_quad(kv_first + min(key, last) * kv_stride, first_pair + e % ACROSS * 2);
            }
            workgroupBarrier();
            for (var c = 0u; c < ACROSS / 2; c++) {
                let k0 = tile[BEHIND + c * ACROSS + local.x];
                let k1 = tile[BEHIND + (c + ACROSS / 2) * ACROSS + local.x];
                let k2 = tile[BEHIND + (c + ACROSS) * ACROSS + local.x];
                let k3 = tile[BEHIND + (c + 3 * ACROSS / 2) * ACROSS + local.x];
                for (var i = 0u; i < EACH; i++) {
                    let slope = tile[(local.y + i * DOWN) * ACROSS + half + c];
                    sum[i] += slope.x * k0;
                    sum[i] += slope.y * k1;
                    sum[i] += slope.z * k2;
                    sum[i] += slope.w * k3;
                }
            }
        }
    }
    for (var i = 0u; i < EACH; i++) {
        let row = first_row + local.y + i * DOWN;
        let pair = first_pair + 2 * local.x;
        let at = q_first + row * q_stride + pair;
        if row < params.tokens && pair < params.pairs {
            d_q[at] = sum[i].xy;
        }
        if row < params.tokens && pair + 1 < params.pairs {
            d_q[at + 1] = sum[i].zw;
        }
    }
}
