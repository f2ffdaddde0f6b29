//! Tables of the rotary embedding, made on the CPU in float32 as transformers makes them: WGSL lets sin and cos err by 2⁻¹¹.

use super::config::{ModelConfig, RopeScaling};
use crate::error::Result;
use crate::gpu::{Gpu, Tensor};

/// Cosines and sines `[positions, head_dim/2]` of the angles position·inv_freq.
#[derive(Clone)]
pub(crate) struct RopeTables {
    pub cos: Tensor,
    pub sin: Tensor,
}

impl RopeTables {
    pub fn new(gpu: &Gpu, config: &ModelConfig, positions: usize) -> Result<RopeTables> {
        let frequencies = inverse_frequencies(config);
        let shape = [positions, frequencies.len()];
        // The tensors first: they know the limits.
        let zeros = |label| Tensor::zeros(gpu, label, &shape);
        let tables = RopeTables { cos: zeros("rope cos")?, sin: zeros("rope sin")? };
        let [mut cos, mut sin] = [(); 2].map(|()| Vec::with_capacity(positions * frequencies.len()));
        for position in 0..positions {
            for frequency in &frequencies {
                let (s, c) = sin_cos(f64::from(position as f32 * frequency));
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        tables.cos.write(&cos)?;
        tables.sin.write(&sin)?;
        Ok(tables)
    }

    /// Positions that there are rows for.
    pub fn positions(&self) -> usize {
        self.cos.shape()[0]
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        self.cos.destroy();
        self.sin.destroy();
    }
}

/// θ^(−2i/head_dim), scaled by the model's rule; each step rounded to float32 as in transformers.
fn inverse_frequencies(config: &ModelConfig) -> Vec<f32> {
    let dim = config.head_dim;
    let base = |i: usize| 1.0 / power(config.rope_theta, f64::from((2 * i) as f32 / dim as f32)) as f32;
    (0..dim / 2).map(|i| scaled(base(i), i, &config.rope_scaling)).collect()
}

fn scaled(frequency: f32, i: usize, scaling: &RopeScaling) -> f32 {
    match *scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor as f32,
        RopeScaling::Factors(ref factors) => frequency / factors[i],
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
            let [factor, low, high, original] =
                [factor, low_freq_factor, high_freq_factor, original_positions].map(|v| v as f32);
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            if wavelength < original / high {
                frequency
            } else if wavelength > original / low {
                frequency / factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

// In the browser by JavaScript, whose functions are there already.

fn sin_cos(angle: f64) -> (f64, f64) {
    #[cfg(target_arch = "wasm32")]
    return (js_sys::Math::sin(angle), js_sys::Math::cos(angle));
    #[cfg(not(target_arch = "wasm32"))]
    angle.sin_cos()
}

fn power(base: f64, exponent: f64) -> f64 {
    #[cfg(target_arch = "wasm32")]
    return js_sys::Math::pow(base, exponent);
    #[cfg(not(target_arch = "wasm32"))]
    base.powf(exponent)
}
