//! Trains an adapter on one layer, natively: `cargo run --release --example layer`.

use std::rc::Rc;

use lora_webgpu::{
    AdamW, Batch, FrozenLinear, Gpu, GpuRequest, Inputs, LoraConfig, LoraLinear, Loss, Module, Network, OptimizerKind,
    OptimizerOptions, Result, Targets, Trainer,
};

const WIDTH: usize = 64;
const TOKENS: usize = 8;

/// Numbers in [−0.5, 0.5), by a congruential generator.
fn numbers(n: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

/// The loss of each of `steps` steps.
pub async fn train(steps: usize) -> Result<Vec<f32>> {
    let gpu = Gpu::request(GpuRequest::default()).await?;

    // A frozen weight [WIDTH, WIDTH], row-major, and on it an adapter of rank 8.
    let base = FrozenLinear::new(&gpu, WIDTH, WIDTH, &numbers(WIDTH * WIDTH, 1), None)?;
    let layer = Rc::new(LoraLinear::new(&gpu, Some("encoder.fc"), base, &LoraConfig::new(8, 16.0))?);

    let network = Network::new(vec![Module::Linear(layer.clone())])?;
    let options = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-2);
    let trainer = Trainer::new(&gpu, network, Loss::Mse, options)?;
    let (x, targets) = (numbers(TOKENS * WIDTH, 2), numbers(TOKENS * WIDTH, 3));
    for _ in 0..steps {
        trainer.step(&[Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) }]).await?;
    }
    let records = trainer.records(0).await?;
    let a = layer.weight().a.read().await?; // [8, WIDTH]
    println!("{} steps; A has {} numbers, the first of them {}", records.len(), a.len(), a[0]);
    Ok(records.iter().map(|record| record.loss).collect())
}

#[cfg(not(target_arch = "wasm32"))]
fn main() -> Result<()> {
    let losses = pollster::block_on(train(100))?;
    losses.iter().enumerate().step_by(20).for_each(|(step, loss)| println!("step {step}: loss {loss:.6}"));
    Ok(())
}

#[cfg(target_arch = "wasm32")]
fn main() {}
