// output = round(s·x)/s with s = 127/max(max|x|, 10⁻⁵) of each row, as BitNet quantises activations; 0 in the columns that x has
// not. A workgroup makes a row. What is not finite stays so.
struct Params {
    features: u32,
    padded: u32,
    rows: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>; // [rows, features]
@group(0) @binding(1) var<storage, read_write> output: array<f32>; // [rows, padded]
@group(0) @binding(2) var<uniform> params: Params;

override LANES: u32 = 64;

var<workgroup> largest: array<f32, LANES>;
const INFINITY: u32 = 0x7f800000;

// 127/m, rounded to nearest as IEEE 754 has it, which WGSL's division need not be: the mantissa by long division.
fn divide_127_by(m: f32) -> f32 {
    let bits = bitcast<u32>(m);
    let divisor = (bits & 0x7fffff) | 0x800000;
    var rest = 0xfe0000u; // 127·2¹⁷
    var exponent = 260 - (bits >> 23);
    if rest < divisor {
        rest *= 2;
        exponent -= 1;
    }
    var quotient = 0u;
    for (var i = 0; i < 24; i++) {
        quotient *= 2;
        if rest >= divisor {
            rest -= divisor;
            quotient += 1;
        }
        rest *= 2;
    }
    quotient += u32(rest > divisor || (rest == divisor && quotient % 2 == 1));
    return bitcast<f32>((exponent << 23) + quotient - 0x800000);
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = min(group.x + group.y * groups.x, params.rows - 1);
    var m = 1e-5;
    for (var i = lane; i < params.features; i += LANES) {
        let value = abs(x[row * params.features + i]);
        if bitcast<u32>(value) < INFINITY {
            m = max(m, value);
        }
    }
    largest[lane] = m;
    workgroupBarrier();
    for (var i = 0u; i < LANES; i++) {
        m = max(m, largest[i]);
    }
    let s = divide_127_by(m);
    for (var i = lane; i < params.padded; i += LANES) {
        let value = x[row * params.features + min(i, params.features - 1)];
        let finite = (bitcast<u32>(value) & INFINITY) != INFINITY;
        let rounded = clamp(round(value * s), -128.0, 127.0) * (m / 127);
        output[row * params.padded + i] = select(0.0, select(value, rounded, finite), i < params.features);
    }
}
