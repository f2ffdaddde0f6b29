// merge.wgsl for a weight in f16, two columns of a row to a word: each result is rounded to the nearest, half to even.
struct Params {
    out_features: u32,
    in_features: u32,
    rank: u32,
    scale: f32,
    has_magnitude: u32,
    back: u32, // 1: the way back
}
@group(0) @binding(0) var<storage, read> a: array<f32>; // [rank, in_features]
@group(0) @binding(1) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(2) var<storage, read> magnitude: array<f32>; // [out_features], or anything
@group(0) @binding(3) var<storage, read> norm: array<f32>; // [out_features], or anything
@group(0) @binding(4) var<storage, read_write> weight: array<u32>; // [out_features, 4·⌈in_features / 8⌉]
@group(0) @binding(5) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

// The bits of the nearest f16. pack2x16float may round as it likes.
fn f16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let size = bits & 0x7fffffff;
    let exponent = size >> 23;
    // Normal: the exponent less 112, and 13 places fewer. Else in units of 2⁻²⁴, of which the last 25 places are no half.
    let normal = exponent > 112;
    let places = min(max(126, exponent + 13) - exponent, 25);
    let long = select((size & 0x7fffff) | 0x800000, size - (112 << 23), normal);
    let short = (long + (1u << (places - 1)) - 1 + ((long >> places) & 1)) >> places;
    // Carries go into the exponent, up to infinity.
    return ((bits >> 16) & 0x8000) | select(min(short, 0x7c00), 0x7e00, size > 0x7f800000);
}

fn merged(o: u32, i: u32, old: f32) -> f32 {
    if i >= params.in_features {
        return 0.0;
    }
    var sum = 0.0;
    for (var r = 0u; r < params.rank; r++) {
        sum += b[o * params.rank + r] * a[r * params.in_features + i];
    }
    let row = o * params.has_magnitude;
    // A row of zeros stays one, and has its way back.
    let factor = select(1.0, magnitude[row] / norm[row], params.has_magnitude == 1 && norm[row] != 0.0);
    let forth = factor * (old + params.scale * sum);
    return select(forth, old / factor - params.scale * sum, params.back == 1);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let at = id.x + id.y * groups.x * WORKGROUP;
    let words = (params.in_features + 7) / 8 * 4;
    if at >= params.out_features * words {
        return;
    }
    let o = at / words;
    let i = at % words * 2;
    let old = unpack2x16float(weight[at]);
    weight[at] = f16_bits(merged(o, i, old.x)) | (f16_bits(merged(o, i + 1, old.y)) << 16);
}
