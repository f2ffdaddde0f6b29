//! PyTorch's numbers, computed in f64 and stored as f32: see tests/golden/README.md.

mod common;
mod reference;

use common::files::{File, list};
use common::tolerance::{assert_close, products, rounded_once_more, updated};
use common::{f64s, gpu, say};
use lora_webgpu::{
    AdamW, FrozenLinear, LoraConfig, LoraGrad, LoraLinear, LoraWeight, Optimizer, OptimizerKind, OptimizerOptions,
    Recording, Sgd, Tensor,
};
use reference::lora::{Old, lora_backward, lora_forward, project_a};
use reference::{Dims, Sum};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// The files of a folder, less those left out by name.
async fn files(folder: &str, left_out: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    for path in list().await.iter().filter(|path| path.starts_with(folder)) {
        match left_out.iter().any(|name| path.ends_with(name)) {
            true => say(&format!("golden {path}: left out, not what this test is about")),
            false => found.push(File::read(path).await),
        }
    }
    found
}

/// Says what was compared; nothing is a failure.
fn report(folder: &str, files: usize, tensors: usize) {
    say(&format!("golden {folder} {files} files, {tensors} tensors compared"));
    assert!(files > 0 && tensors > 0, "nothing was compared in {folder}");
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_projections() {
    let gpu = gpu().await;
    let files = files("projection/", &[]).await;
    let mut tensors = 0;
    for file in &files {
        let size = |name| file.number(name) as usize;
        let d = Dims {
            tokens: size("tokens"),
            in_features: size("in_features"),
            out_features: size("out_features"),
            rank: size("rank"),
        };
        let scale = LoraConfig::new(d.rank, file.number("alpha")).scaling().unwrap();
        assert!((f64::from(scale) - file.number("scaling")).abs() <= 1e-7 * file.number("scaling").abs());
        let upload =
            |name: &str, rows, columns| Tensor::from_slice(&gpu, name, &[rows, columns], file.tensor(name)).unwrap();
        let zeros = |name: &str, rows, columns| Tensor::zeros(&gpu, name, &[rows, columns]).unwrap();
        let Dims { tokens, in_features, out_features, rank } = d;

        let weight = LoraWeight::from_tensors(upload("A", rank, in_features), upload("B", out_features, rank)).unwrap();
        let grad = LoraGrad::from_tensors(zeros("dA", rank, in_features), zeros("dB", out_features, rank));
        let (x, d_output) = (upload("x", tokens, in_features), upload("dY", tokens, out_features));
        let output = upload("y0", tokens, out_features);
        let (h, dh) = (zeros("h", tokens, rank), zeros("dh", tokens, rank));
        let d_input = zeros("dX", tokens, in_features);
        let accumulated = upload("dX0", tokens, in_features);
        let more = LoraGrad::from_tensors(zeros("dA", rank, in_features), zeros("dB", out_features, rank));

        let rec = Recording::new(&gpu);
        rec.lora_forward_fused(&weight, &x, &h, &output, scale).unwrap();
        rec.lora_backward(&weight, &d_output, &x, &h, &dh, &grad, Some(&d_input), scale).unwrap();
        rec.lora_backward(&weight, &d_output, &x, &h, &dh, &more, Some(&accumulated), scale).unwrap();
        rec.submit().await.unwrap();

        let [a, b, x, y0, d_output, x0] = ["A", "B", "x", "y0", "dY", "dX0"].map(|name| f64s(file.tensor(name)));
        let scaling = file.number("scaling");
        let old = Old { d_a: vec![0.0; a.len()], d_b: vec![0.0; b.len()], d_input: vec![0.0; x.len()] };
        let backward = lora_backward(d, &a, &b, &x, &d_output, &old, scaling);
        let accumulating = lora_backward(d, &a, &b, &x, &d_output, &Old { d_input: x0, ..old }, scaling);
        let expected: [(&str, Vec<Sum>, &Tensor); 7] = [
            ("h", project_a(d, &a, &x), &h),
            ("y", lora_forward(d, &a, &b, &x, &y0, scaling), &output),
            ("dH_unscaled", backward.dh, &dh),
            ("dA", backward.d_a, &grad.a),
            ("dB", backward.d_b, &grad.b),
            ("dX", backward.d_input, &d_input),
            ("dX_accumulated", accumulating.d_input, &accumulated),
        ];
        for (name, sums, tensor) in expected {
            let name_in_file = format!("{} {name}", file.path);
            let golden = f64s(file.tensor(name));
            // The reference is exact but for f64's rounding, and the file for f32's.
            for (golden, sum) in golden.iter().zip(&sums) {
                let bound = sum.value.abs() / (1u64 << 24) as f64 + 1e-12 * sum.abs;
                assert!(
                    (golden - sum.value).abs() <= bound,
                    "{name_in_file}: the reference disagrees: {golden} {sum:?}"
                );
            }
            let expected = rounded_once_more(&golden, &products(&sums));
            assert_close(&name_in_file, &tensor.read().await.unwrap(), &expected);
            tensors += 1;
        }
    }
    report("projection/", files.len(), tensors);
}

/// p and q are the A and B of one layer of rank 1, of whatever shape they are in the file.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_optimizers() {
    let gpu = gpu().await;
    // Gradient clipping and schedules belong to the trainer.
    let files = files("optimizer/", &["/adamw_clip.safetensors", "/clip.safetensors", "/schedules.json"]).await;
    let mut tensors = 0;
    for file in &files {
        let hyper = file.meta("hyper");
        let option = |name: &str, default: f64| hyper.get(name).map_or(default, |v| v.as_f64().unwrap());
        let kind = if file.path.contains("adamw") {
            let beta = |i: usize| hyper["betas"][i].as_f64().unwrap();
            let (eps, weight_decay) = (option("eps", 1e-8), option("weight_decay", 0.01));
            OptimizerKind::AdamW(AdamW { beta1: beta(0), beta2: beta(1), eps, weight_decay })
        } else {
            let [momentum, weight_decay] = ["momentum", "weight_decay"].map(|name| option(name, 0.0));
            OptimizerKind::Sgd(Sgd { momentum, weight_decay })
        };
        let (p, q) = (file.tensor("p_0"), file.tensor("q_0"));
        let base = FrozenLinear::new(&gpu, q.len(), p.len(), &vec![0.0; p.len() * q.len()], None).unwrap();
        let layer = LoraLinear::new(&gpu, None, base, &LoraConfig::new(1, 1.0)).unwrap();
        layer.weight().a.write(p).unwrap();
        layer.weight().b.write(q).unwrap();
        let optimizer = Optimizer::new(&gpu, &[&layer], OptimizerOptions::new(kind, option("lr", f64::NAN))).unwrap();
        let rec = Recording::new(&gpu);
        optimizer.step(&rec).unwrap();

        let steps = (1..).take_while(|i| file.has(&format!("p_{i}"))).count();
        let mut history = [vec![f64s(p)], vec![f64s(q)]];
        for i in 1..=steps {
            layer.grad().a.write(file.tensor(&format!("dp_{i}"))).unwrap();
            layer.grad().b.write(file.tensor(&format!("dq_{i}"))).unwrap();
            rec.submit().await.unwrap();
            for ((name, tensor), so_far) in
                [("p", &layer.weight().a), ("q", &layer.weight().b)].iter().zip(&mut history)
            {
                so_far.push(f64s(file.tensor(&format!("{name}_{i}"))));
                // 2e-6 and f32's own rounding: momentum takes q to 57, where an ulp is 3.8e-6.
                let expected = updated(2e-6, so_far);
                assert_close(&format!("{} {name}_{i}", file.path), &tensor.read().await.unwrap(), &expected);
                tensors += 1;
            }
        }
        optimizer.destroy();
        layer.destroy();
    }
    report("optimizer/", files.len(), tensors);
}
