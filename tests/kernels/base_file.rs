//! Random weights as files have them.

use lora_webgpu::kernels::base::Layout;
use lora_webgpu::{FrozenLoader, Gpu, Packing, Result, WeightKind};

use crate::common::Rng;
use crate::reference::base as reference;

/// A weight as a file has it, and what it means.
pub struct File {
    pub kind: WeightKind,
    pub rows: usize,
    pub columns: usize,
    pub bytes: Vec<u8>,
    pub scale: Option<f32>,
    pub values: Vec<f64>,
}

/// Half-precision numbers up to 2, subnormal ones among them.
fn random_half(rng: &mut Rng, exponents: u32) -> u16 {
    let mut below = |n: u32| ((rng.number() + 1.0) * 0.5 * n as f32) as u16;
    below(2) << 15 | below(exponents) << 10 | below(1024)
}

fn random_byte(rng: &mut Rng) -> u8 {
    ((rng.number() + 1.0) * 128.0) as u8
}

impl File {
    /// Random numbers of about so many rows and columns.
    pub fn random(layout: Layout, rows: usize, columns: usize, rng: &mut Rng) -> File {
        let (rows, columns, kind) = match layout {
            Layout::F32 => (rows, columns.next_multiple_of(4), WeightKind::F32),
            Layout::F32Any => (rows, columns, WeightKind::F32),
            Layout::F16 => (rows, columns, WeightKind::F16),
            Layout::Bf16 => (rows, columns, WeightKind::Bf16),
            Layout::Q8_0 => (rows, columns.next_multiple_of(32), WeightKind::Q8_0),
            Layout::Q4_0 => (rows, columns.next_multiple_of(32), WeightKind::Q4_0),
            Layout::Q4_1 => (rows, columns.next_multiple_of(32), WeightKind::Q4_1),
            Layout::Ternary => {
                let i2_s = columns.is_multiple_of(128);
                let packing = if i2_s { Packing::I2S } else { Packing::Transformers };
                let rows = if i2_s { rows } else { rows.next_multiple_of(4) };
                (rows, columns, WeightKind::BitLinear { packing, int8_activations: false })
            }
        };
        let n = rows * columns;
        let halves = |header: usize, body: usize, rng: &mut Rng| {
            let block = |_| {
                let mut bytes: Vec<u8> = (0..header).flat_map(|_| random_half(rng, 14).to_le_bytes()).collect();
                bytes.extend((0..body).map(|_| random_byte(rng)));
                bytes
            };
            (0..n / 32).flat_map(block).collect::<Vec<u8>>()
        };
        let scale = -0.37;
        let (bytes, values) = match layout {
            Layout::F32 | Layout::F32Any => {
                let bytes: Vec<u8> = rng.numbers(n).iter().flat_map(|v| v.to_le_bytes()).collect();
                let values = reference::weight_f32(&bytes);
                (bytes, values)
            }
            Layout::F16 => {
                let bytes: Vec<u8> = (0..n).flat_map(|_| random_half(rng, 16).to_le_bytes()).collect();
                let values = reference::weight_f16(&bytes);
                (bytes, values)
            }
            Layout::Bf16 => {
                let bytes: Vec<u8> = rng.numbers(n).iter().flat_map(|v| v.to_le_bytes()[2..].to_vec()).collect();
                let values = reference::weight_bf16(&bytes);
                (bytes, values)
            }
            Layout::Ternary => {
                let mut code = || [0, 2, 1, 0, 2][((rng.number() + 1.0) * 2.5) as usize];
                let mut bytes: Vec<u8> = (0..n / 4).map(|_| (0..4).fold(0, |byte, _| byte << 2 | code())).collect();
                let packing = if columns.is_multiple_of(128) {
                    bytes.extend(f32::to_le_bytes(scale));
                    reference::Ternary::I2S
                } else {
                    reference::Ternary::Transformers
                };
                let values = reference::weight_ternary(&bytes, packing, rows, columns, scale.into());
                (bytes, values)
            }
            Layout::Q8_0 => {
                let bytes = halves(1, 32, rng);
                let values = reference::weight_q8_0(&bytes);
                (bytes, values)
            }
            Layout::Q4_0 => {
                let bytes = halves(1, 16, rng);
                let values = reference::weight_q4_0(&bytes);
                (bytes, values)
            }
            Layout::Q4_1 => {
                let bytes = halves(2, 16, rng);
                let values = reference::weight_q4_1(&bytes);
                (bytes, values)
            }
        };
        let scale = (layout == Layout::Ternary && !columns.is_multiple_of(128)).then_some(scale);
        File { kind, rows, columns, bytes, scale, values }
    }

    /// A loader that has its scale but no bytes yet.
    pub fn loader(&self, gpu: &Gpu, max_bytes: u64) -> Result<FrozenLoader> {
        let mut loader = FrozenLoader::with_limit(gpu, self.kind, self.rows, self.columns, max_bytes)?;
        if let Some(scale) = self.scale {
            loader.set_scale(scale)?;
        }
        Ok(loader)
    }
}
