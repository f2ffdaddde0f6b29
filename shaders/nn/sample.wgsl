// The next token of logits z: with temperature 0 the largest z, the first of several; else one by the probabilities of z less
// the largest, over temperature, of those that top_k and top_p leave. Logits of tokens seen before are divided by penalty, or
// multiplied where they are negative. −1 where a logit is NaN or infinite. Notes the token as seen and moves the cursor on.
//
// Thresholds are found a bit at a time, in an order of floats as unsigned integers: that of top_k is the largest that at least
// top_k tokens reach; that of top_p the largest below which lies no more than 1 − top_p of what is left. Equal logits stay or
// go together. The random number is pcg4d (Jarzynski and Olano 2020, JCGT 9(3)) of seed and cursor. One workgroup.
struct Params {
    vocabulary: u32,
    top_k: u32, // 0: all
    temperature: f32,
    top_p: f32,
    penalty: f32,
    seed_low: u32,
    seed_high: u32,
    advance: u32, // of the cursor
}
@group(0) @binding(0) var<storage, read> logits: array<f32>; // [vocabulary]
@group(0) @binding(1) var<storage, read_write> seen: array<f32>; // [vocabulary]: 1 where a token was seen, else 0
@group(0) @binding(2) var<storage, read_write> cursor: array<i32>; // [1]
@group(0) @binding(3) var<storage, read_write> next_id: array<i32>; // [1]
@group(0) @binding(4) var<uniform> params: Params;

override LANES: u32 = 256;
const INFINITY: u32 = 0xff800000u; // in the order of keys

var<workgroup> keys: array<u32, LANES>;
var<workgroup> partial: array<vec2f, LANES>;
var<workgroup> chosen: i32;

// Floats as unsigned integers of the same order.
fn key_of(z: f32) -> u32 {
    let bits = bitcast<u32>(z);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn logit(i: u32) -> f32 {
    let z = logits[i];
    let repeated = select(z * params.penalty, z / params.penalty, z > 0.0);
    return select(z, repeated, seen[i] > 0.0);
}

// Of token i over temperature, with the largest as 0. From e^-200 on down nothing is likely, however low the temperature.
fn score(i: u32, highest: f32) -> f32 {
    return max(logit(i) - highest, -200.0 * params.temperature) / params.temperature;
}

// Σ over the workgroup, in one order.
fn sum_up(lane: u32, value: vec2f) -> vec2f {
    partial[lane] = value;
    workgroupBarrier();
    var sum = vec2f();
    for (var i = 0u; i < LANES; i++) {
        sum += partial[i];
    }
    workgroupBarrier();
    return sum;
}

fn pcg4d(key: vec4u) -> vec4u {
    var v = key * 1664525u + 1013904223u;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    v ^= v >> vec4u(16);
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    return v;
}

@compute @workgroup_size(LANES)
fn main(@builtin(local_invocation_index) lane: u32) {
    // The largest, its first token, and NaN above all.
    var best = 0u;
    var first = 0u;
    for (var i = lane; i < params.vocabulary; i += LANES) {
        let z = logit(i);
        let bits = bitcast<u32>(z) & 0x7fffffffu;
        let key = select(key_of(z), 0xffffffffu, bits > 0x7f800000u);
        if key > best {
            best = key;
            first = i;
        }
    }
    keys[lane] = best;
    partial[lane] = vec2f(bitcast<f32>(first), 0.0);
    workgroupBarrier();
    for (var i = 0u; i < LANES; i++) {
        let other = bitcast<u32>(partial[i].x);
        if keys[i] > best || (keys[i] == best && other < first) {
            best = keys[i];
            first = other;
        }
    }
    workgroupBarrier();
    let highest = logit(first);
    if lane == 0 {
        chosen = i32(first);
    }

    if params.temperature > 0.0 {
        var threshold = 0u;
        if params.top_k > 0 && params.top_k < params.vocabulary {
            for (var bit = 0x80000000u; bit > 0; bit >>= 1) {
                var count = 0.0;
                for (var i = lane; i < params.vocabulary; i += LANES) {
                    count += select(0.0, 1.0, key_of(score(i, highest)) >= (threshold | bit));
                }
                if sum_up(lane, vec2f(count, 0.0)).x >= f32(params.top_k) {
                    threshold |= bit;
                }
            }
        }
        if params.top_p < 1.0 {
            let least = threshold;
            threshold = 0u;
            for (var bit = 0x80000000u; bit > 0; bit >>= 1) {
                var sums = vec2f(); // below the threshold, and of all
                for (var i = lane; i < params.vocabulary; i += LANES) {
                    let z = score(i, highest);
                    let weight = select(0.0, exp(z), key_of(z) >= least);
                    sums += vec2f(select(0.0, weight, key_of(z) < (threshold | bit)), weight);
                }
                sums = sum_up(lane, sums);
                if sums.x <= (1.0 - params.top_p) * sums.y {
                    threshold |= bit;
                }
            }
        }

        // Each lane has a range of tokens, so that the ranges' sums are in the tokens' order.
        let range = (params.vocabulary + LANES - 1) / LANES;
        let begin = min(lane * range, params.vocabulary);
        let end = min(begin + range, params.vocabulary);
        var own = 0.0;
        for (var i = begin; i < end; i++) {
            let z = score(i, highest);
            own += select(0.0, exp(z), key_of(z) >= threshold);
        }
        partial[lane] = vec2f(own, 0.0);
        workgroupBarrier();
        var before = 0.0;
        var total = 0.0;
        for (var i = 0u; i < LANES; i++) {
            if i == lane {
                before = total;
            }
            total += partial[i].x;
        }
        let random = pcg4d(vec4u(params.seed_low, params.seed_high, u32(cursor[0]), 0x73616d70u)).x >> 8;
        let goal = f32(random) / 16777216.0 * total;
        if before <= goal && goal < before + own {
            var sum = before;
            for (var i = begin; i < end; i++) {
                let z = score(i, highest);
                if key_of(z) >= threshold {
                    sum += exp(z);
                    chosen = i32(i);
                    if sum > goal {
                        break;
                    }
                }
            }
        }
    }
    workgroupBarrier();
    if lane == 0 {
        let finite = best < INFINITY;
        next_id[0] = select(-1, chosen, finite);
        if finite {
            seen[chosen] = 1.0;
        }
        cursor[0] += i32(params.advance);
    }
}
