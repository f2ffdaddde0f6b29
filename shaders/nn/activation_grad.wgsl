// d_input = f′(x)·d_output, f by kind: tanh, relu (0 at 0), gelu (with erf), silu.
struct Params {
    len: u32,
    kind: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>; // [len]
@group(0) @binding(1) var<storage, read> d_output: array<f32>; // [len]
@group(0) @binding(2) var<storage, read_write> d_input: array<f32>; // [len]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

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
        let above = vec4f(d_output[at.x], d_output[at.y], d_output[at.z], d_output[at.w]);
        for (var j = 0u; j < 4; j++) {
            let value = values[j];
            var slope = 0.0;
            switch params.kind {
                case 0u: {
                    // 1 − tanh², without its cancellation.
                    let e = exp(-2.0 * min(abs(value), 43.0));
                    slope = 4.0 * e / ((1.0 + e) * (1.0 + e));
                }
                case 1u: {
                    slope = select(0.0, 1.0, value > 0.0);
                }
                case 2u: {
                    let z = min(abs(value), 13.0);
                    slope = normal_cdf(value) + value * 0.39894228 * exp(-0.5 * z * z);
                }
                default: {
                    slope = sigmoid(value) * (1.0 + value * sigmoid(-value));
                }
            }
            if i[j] < len {
                d_input[i[j]] = slope * above[j];
            }
        }
    }
}
