//! Numbers to test with.

use lora_webgpu::{Gpu, Tensor};

/// Random numbers of the tests, the same in every run.
pub struct Rng(pub u64);

impl Rng {
    /// In [-1, 1), with 24 bits.
    pub fn number(&mut self) -> f32 {
        // SplitMix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
    }

    pub fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }

    /// A tensor on the GPU with its values.
    pub fn tensor(&mut self, gpu: &Gpu, label: &str, shape: &[usize]) -> (Tensor, Vec<f64>) {
        let data = self.numbers(shape.iter().product());
        (Tensor::from_slice(gpu, label, shape, &data).unwrap(), f64s(&data))
    }
}

pub fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}
