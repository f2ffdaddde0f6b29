// sums = Σ parts, or that added to them; the sums are some columns of output.
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

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.len {
        return;
    }
    var sum = 0.0;
    for (var part = 0u; part < params.parts; part++) {
        sum += parts[part * params.len + i];
    }
    let at = i / params.width * params.columns + params.first_column + i % params.width;
    output[at] = sum + select(0.0, output[at], params.accumulate == 1);
}
