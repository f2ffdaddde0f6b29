// window.micro_batches += 1, by which the next micro-batch of the step draws other random numbers.
struct Params {
    count: u32,
}
struct Window {
    micro_batches: u32,
    bad_output: u32,
    bad_gradient: u32,
    unused: u32,
}
@group(0) @binding(0) var<storage, read_write> window: Window;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(1)
fn main() {
    window.micro_batches += params.count;
}
