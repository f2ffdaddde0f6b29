// Advances the optimiser's step counter t, which lives on the GPU, and looks up what step t uses: the learning rate and
// the bias corrections 1/(1−β₁ᵗ) and 1/√(1−β₂ᵗ), tabulated in f64 on the CPU. A table's last row holds for all later steps.
struct Params {
    lr_rows: u32,
    bias_rows: u32,
}
struct State {
    step: u32,
    lr: f32,
    inv_bias1: f32,
    inv_sqrt_bias2: f32,
}
@group(0) @binding(0) var<storage, read> lr: array<f32>; // [lr_rows]
@group(0) @binding(1) var<storage, read> bias: array<f32>; // [bias_rows, 2]
@group(0) @binding(2) var<storage, read_write> state: State;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(1)
fn main() {
    let step = state.step;
    let row = min(step, params.bias_rows - 1);
    state.lr = lr[min(step, params.lr_rows - 1)];
    state.inv_bias1 = bias[2 * row];
    state.inv_sqrt_bias2 = bias[2 * row + 1];
    state.step = step + 1;
}
