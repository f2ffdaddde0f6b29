// output = f(x), f by kind: tanh, relu, gelu (with erf, as PyTorch's default), silu.
struct Params {
    len: u32,
    kind: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>; // [len]
@group(0) @binding(1) var<storage, read_write> output: array<f32>; // [len]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

// From exp, since tanh of large arguments is NaN on some devices; near 0, where 1 − exp would cancel, and for NaN, which
// min may lose, the series.
fn tanh_of(x: f32) -> f32 {
    let e = exp(-2.0 * min(abs(x), 44.0));
    let s = x * x;
    let series = x * (1.0 - s * (1.0 / 3.0 - s * (2.0 / 15.0 - s * (17.0 / 315.0 - s * 62.0 / 2835.0))));
    return select(series, sign(x) * (1.0 - e) / (1.0 + e), abs(x) >= 0.25);
}

fn sigmoid(x: f32) -> f32 {
    let e = exp(-min(abs(x), 88.0));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// erfc(|x|) by a Chebyshev fit with a relative error of 1.2e-7 (Press et al., Numerical Recipes, erfcc).
fn normal_cdf(x: f32) -> f32 {
    let z = min(abs(x) * 0.70710678, 9.0);
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807
        + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    let half_erfc = 0.5 * t * exp(-z * z + p);
    return select(half_erfc, 1.0 - half_erfc, x >= 0.0);
}

// Four elements at a time, WORKGROUP apart.
@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let len = params.len;
    for (var first = group.x * 4 * WORKGROUP + lane; first < len; first += groups.x * 4 * WORKGROUP) {
        let i = first + vec4u(0, 1, 2, 3) * WORKGROUP;
        let at = min(i, vec4u(len - 1));
        let values = vec4f(x[at.x], x[at.y], x[at.z], x[at.w]);
        for (var j = 0u; j < 4; j++) {
            let value = values[j];
            var result = 0.0;
            switch params.kind {
                case 0u: {
                    result = tanh_of(value);
                }
                case 1u: {
                    // Below 0 by its bits: a driver may make max(value, 0) of a comparison, which loses a NaN.
                    let bits = bitcast<u32>(value);
                    result = select(value, 0.0, bits > 0x80000000u && bits <= 0xff800000u);
                }
                case 2u: {
                    result = value * normal_cdf(value);
                }
                default: {
                    result = value * sigmoid(value);
                }
            }
            if i[j] < len {
                output[i[j]] = result;
            }
        }
    }
}
