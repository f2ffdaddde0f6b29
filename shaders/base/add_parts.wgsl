// sums = Σ parts, or that added to them; the sums are some columns of output. One invocation makes EACH, WORKGROUP apart.
struct Params {
    len: u32,
    parts: u32,
    width: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
}
@group(0) @binding(0) var<storage, read> parts: array<f32>; // [parts, len]
@group(0) @binding(1) var<storage, read_write> output: array<f32>; // [len / width, columns]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 256;
const EACH: u32 = 2;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let step = groups.x * EACH * WORKGROUP;
    for (var first = group.x * EACH * WORKGROUP + index; first < params.len; first += step) {
        let second = min(first + WORKGROUP, params.len - 1); // Out of range repeats the last one; it is not written.
        var sum = vec2f();
        for (var part = 0u; part < params.parts; part++) {
            let of_part = part * params.len;
            sum += vec2f(parts[of_part + first], parts[of_part + second]);
        }
        for (var j = 0u; j < EACH; j++) {
            let i = first + j * WORKGROUP;
            if i < params.len {
                let at = i / params.width * params.columns + params.first_column + i % params.width;
                output[at] = sum[j] + select(0.0, output[at], params.accumulate == 1);
            }
        }
    }
}
