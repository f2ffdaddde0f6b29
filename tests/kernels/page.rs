//! `docs/numerics.md`: written by the last kernel to finish when LORA_WRITE_DOCS=1.

use crate::cases::Spec;
use crate::common::tolerance::Worst;
use lora_webgpu::Gpu;

/// A kernel's row of the table.
pub fn add(gpu: &Gpu, spec: &Spec, worst: Worst) {
    let shapes: Vec<String> = spec.shapes.iter().map(spec.show).collect();
    let Worst { share, absolute } = worst;
    let (name, shapes) = (spec.kernel.name, shapes.join(", "));
    let row = format!("| `{name}` | {share:.2} | {absolute:.1e} | {} | {shapes} |", spec.bound);
    #[cfg(target_arch = "wasm32")]
    crate::common::say(&format!("{row} {}", gpu.device().adapter_info().name));
    #[cfg(not(target_arch = "wasm32"))]
    collect(gpu, name, row);
}

#[cfg(not(target_arch = "wasm32"))]
fn collect(gpu: &Gpu, name: &'static str, row: String) {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    static ROWS: Mutex<BTreeMap<&str, String>> = Mutex::new(BTreeMap::new());

    let mut rows = ROWS.lock().unwrap();
    rows.insert(name, row);
    if rows.len() == lora_webgpu::kernels::all().count() && std::env::var("LORA_WRITE_DOCS").is_ok_and(|v| v == "1") {
        let adapter = gpu.device().adapter_info();
        let rows: Vec<&str> = rows.values().map(String::as_str).collect();
        let words = [("{adapter}", adapter.name), ("{driver}", adapter.driver_info), ("{rows}", rows.join("\n"))];
        let page = words.iter().fold(PAGE.to_string(), |page, (word, value)| page.replace(word, value));
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");
        std::fs::create_dir_all(docs).unwrap();
        std::fs::write(format!("{docs}/numerics.md"), page).unwrap();
    }
}

#[cfg(not(target_arch = "wasm32"))]
const PAGE: &str = "\
# Numerics

<!-- Written by tests/kernels.rs: LORA_WRITE_DOCS=1 npm run test:native -- --test kernels -->

Every kernel is compared with a reference in f64, element by element, over shapes of one row, one column, primes, and each
tile's size and its neighbours. The proof is a chain: finite differences hold the reference's gradients to 1e-6
(`tests/layer.rs`), the reference holds the kernels (`tests/kernels.rs`), and PyTorch's numbers hold both
(`tests/golden.rs`, `tests/training.rs`). The same tests run natively and in the browser.

A sum of K products may err by 4·√K·2⁻²⁴·S + 2⁻²³·|reference|, S being the sum of the products' absolute values; an
accumulating kernel's old value is one of the products. AdamW's parameter may err by 31·2⁻²⁴·S + 2⁻²³·|reference|, where
S is |p| plus the step that |β₁·m| + |(1−β₁)·g| would make: each part meets at most 31 roundings, nine of them in WGSL's
square root and five in its division. Copies, counts and table look-ups must agree in every bit.

Kernels with functions may err by the same, and by what WGSL lets the functions err by, carried through the formula to the
result (`tests/reference/` says how for each): exp 3 + 2·|x| ulp, log 2⁻²¹ between ½ and 2 and 3 ulp elsewhere, a quotient
2.5 ulp, an inverse square root 2 ulp; gelu's fit of erfc has a relative error of 1.2e-7. Where a formula subtracts, the
bound grows by what cancels. What is below 2⁻¹⁰⁰ counts as 0.

A comparison that zeros, or the untouched output, would pass is itself a failure, and so is a deliberately wrong shader
that passes.

Below, the worst error over all elements, shapes and both kinds of device that kernels are chosen for, as a share of its
bound and in absolute terms. A shape is tokens × in_features × out_features × rank, tokens × columns × rank, rows × classes,
rows × features, or a number of elements. Adapter:
{adapter}, {driver}.

| kernel | worst share of its bound | worst absolute error | bound | shapes |
| --- | ---: | ---: | --- | --- |
{rows}

Run `LORA_WRITE_DOCS=1 npm run test:native -- --test kernels` to write this page again.
";
