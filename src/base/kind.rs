//! How weights are stored: in files, and in GPU memory.

use crate::error::{Error, Result};
use crate::kernels::base::Layout;

/// What a frozen weight is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// 4 bytes a weight.
    F32,
    /// IEEE 754 half precision, 2 bytes.
    F16,
    /// The upper half of an f32, 2 bytes.
    Bf16,
    /// BitNet's `scale·{−1, 0, 1}`, a quarter of a byte.
    BitLinear {
        /// How the file packs the codes; the sizes of both agree.
        packing: Packing,
        /// Round each token's activations to 8 bits by their absolute maximum. The gradient goes straight through.
        int8_activations: bool,
    },
    /// GGUF's `q8_0`: blocks of 32 in 34 bytes.
    Q8_0,
    /// GGUF's `q4_0`: blocks of 32 in 18 bytes.
    Q4_0,
    /// GGUF's `q4_1`: blocks of 32 in 20 bytes.
    Q4_1,
}

/// How ternary codes, weight + 1, lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// bitnet.cpp's `i2_s`, row-major: 128 weights in 32 bytes, whose bits 7-6, 5-4, 3-2 and 1-0 are the weights 0–31, 32–63,
    /// 64–95 and 96–127; after all of them the scale, one f32.
    I2S,
    /// transformers': `[out_features / 4, in_features]` bytes, whose bits `2k+1, 2k` are row `i + k·out_features/4`. The scale
    /// is a tensor of its own, which `bitlinear` divides by and `autobitlinear` multiplies by.
    Transformers,
}

/// Weights of one block of the quantised kinds.
const BLOCK: usize = 32;

impl WeightKind {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            WeightKind::F32 => "f32",
            WeightKind::F16 => "f16",
            WeightKind::Bf16 => "bf16",
            WeightKind::BitLinear { .. } => "bitlinear",
            WeightKind::Q8_0 => "q8_0",
            WeightKind::Q4_0 => "q4_0",
            WeightKind::Q4_1 => "q4_1",
        }
    }

    pub(crate) fn layout(self, in_features: usize) -> Layout {
        match self {
            WeightKind::F32 if in_features.is_multiple_of(4) => Layout::F32,
            WeightKind::F32 => Layout::F32Any,
            WeightKind::F16 => Layout::F16,
            WeightKind::Bf16 => Layout::Bf16,
            WeightKind::BitLinear { .. } => Layout::Ternary,
            WeightKind::Q8_0 => Layout::Q8_0,
            WeightKind::Q4_0 => Layout::Q4_0,
            WeightKind::Q4_1 => Layout::Q4_1,
        }
    }

    /// Bytes of `[out_features, in_features]` in a file, the scale of `i2_s` included.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) for features that the kind cannot have.
    pub fn source_bytes(self, out_features: usize, in_features: usize) -> Result<u64> {
        let (unit, units) = self.units(out_features, in_features)?;
        let scale = if self.has_own_scale() { 4 } else { 0 };
        let too_large = || Error::shape("weight", "a size that can be counted", "more");
        (unit as u64).checked_mul(units as u64).and_then(|bytes| bytes.checked_add(scale)).ok_or_else(too_large)
    }

    /// Whether the file's bytes end with the scale.
    pub(crate) fn has_own_scale(self) -> bool {
        matches!(self, WeightKind::BitLinear { packing: Packing::I2S, .. })
    }

    /// Bytes of the smallest piece of a file that is turned into rows, and the number of them.
    pub(crate) fn units(self, out_features: usize, in_features: usize) -> Result<(usize, usize)> {
        let divisible = |name: &str, features: usize, by: usize| match features.is_multiple_of(by) && features > 0 {
            true => Ok(()),
            false => {
                let expected =
                    if by == 1 { "at least 1".into() } else { format!("a multiple of {by} for {}", self.name()) };
                Err(Error::shape(name, expected, features.to_string()))
            }
        };
        let (columns, rows) = match self {
            WeightKind::Q8_0 | WeightKind::Q4_0 | WeightKind::Q4_1 => (BLOCK, 1),
            WeightKind::BitLinear { packing: Packing::I2S, .. } => (128, 1),
            WeightKind::BitLinear { packing: Packing::Transformers, .. } => (1, 4),
            WeightKind::F32 | WeightKind::F16 | WeightKind::Bf16 => (1, 1),
        };
        divisible("in_features", in_features, columns)?;
        divisible("out_features", out_features, rows)?;
        let bytes = match self {
            WeightKind::F32 => in_features.checked_mul(4),
            WeightKind::F16 | WeightKind::Bf16 => in_features.checked_mul(2),
            WeightKind::BitLinear { packing: Packing::I2S, .. } => Some(in_features / 4),
            WeightKind::BitLinear { packing: Packing::Transformers, .. } => Some(in_features),
            WeightKind::Q8_0 => (in_features / BLOCK).checked_mul(34),
            WeightKind::Q4_0 => Some(in_features / BLOCK * 18),
            WeightKind::Q4_1 => Some(in_features / BLOCK * 20),
        };
        let limit = || Error::shape("in_features", "a size that can be counted", in_features.to_string());
        Ok((bytes.ok_or_else(limit)?, out_features / rows))
    }

    /// Turns one unit of a file into a row in GPU memory; of a unit that has several rows, into its row `k`. `row` has the
    /// size of the row and is all zeros.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for the ternary code 3.
    pub(crate) fn convert(self, unit: &[u8], k: usize, row: &mut [u8]) -> Result<()> {
        match self {
            WeightKind::F32 | WeightKind::F16 | WeightKind::Bf16 => row[..unit.len()].copy_from_slice(unit),
            WeightKind::Q8_0 => split_blocks(unit, 2, 32, row, |body, bytes| body.copy_from_slice(bytes)),
            WeightKind::Q4_0 => split_blocks(unit, 2, 16, row, put_halves),
            WeightKind::Q4_1 => split_blocks(unit, 4, 16, row, put_halves),
            WeightKind::BitLinear { packing: Packing::I2S, .. } => {
                for (group, bytes) in unit.chunks_exact(4).enumerate() {
                    // Bytes 4·group… of a block are columns 4·group…, and those 32, 64 and 96 further.
                    let column = group / 8 * 128 + group % 8 * 4;
                    for subgroup in 0..4 {
                        put_ternary(bytes, 6 - 2 * subgroup, column + 32 * subgroup, row)?;
                    }
                }
            }
            WeightKind::BitLinear { packing: Packing::Transformers, .. } => {
                for (group, bytes) in unit.chunks(4).enumerate() {
                    put_ternary(bytes, 2 * k, 4 * group, row)?;
                }
            }
        }
        Ok(())
    }
}

/// Blocks of a header and some bytes: all the bytes first, as `put` turns them, then all the headers.
fn split_blocks(unit: &[u8], header: usize, body: usize, row: &mut [u8], put: impl Fn(&mut [u8], &[u8])) {
    let blocks = unit.len() / (header + body);
    let (bodies, headers) = row.split_at_mut(blocks * body);
    for (i, block) in unit.chunks_exact(header + body).enumerate() {
        headers[header * i..][..header].copy_from_slice(&block[..header]);
        put(&mut bodies[body * i..][..body], &block[header..]);
    }
}

/// A block's columns 0–15 in the lower halves of its bytes and 16–31 in the upper ones, as four words of eight columns each:
/// four in lower halves, four in upper ones.
fn put_halves(body: &mut [u8], bytes: &[u8]) {
    for i in 0..4 {
        let (low, high) = (bytes[i], bytes[4 + i]);
        let (low2, high2) = (bytes[8 + i], bytes[12 + i]);
        body[i] = low & 15 | high << 4;
        body[4 + i] = low2 & 15 | high2 << 4;
        body[8 + i] = low >> 4 | high & 0xf0;
        body[12 + i] = low2 >> 4 | high2 & 0xf0;
    }
}

/// Four columns from `column` on, whose codes are the bits `shift + 1, shift` of up to four bytes, as the byte in which
/// `weight_ternary.wgsl` reads them: two bits each, sign and not zero, the first column uppermost.
fn put_ternary(bytes: &[u8], shift: usize, column: usize, row: &mut [u8]) -> Result<()> {
    const ONES: u32 = 0x0101_0101;
    let mut word = [0x55; 4]; // zeros where there are no more columns
    word[..bytes.len()].copy_from_slice(bytes);
    let code = u32::from_le_bytes(word) >> shift;
    if code & code >> 1 & ONES != 0 {
        return Err(Error::argument("weight", "the ternary codes 0, 1 and 2", "code 3"));
    }
    let not_zero = !code & ONES;
    let sign = not_zero & !(code >> 1);
    let [a, b, c, d] = (sign << 1 | not_zero).to_le_bytes();
    row[column / 16 * 4 + 3 - column % 16 / 4] = a << 6 | b << 4 | c << 2 | d;
    Ok(())
}

/// Packs numbers as a file of this kind has them: f16 and bf16 rounded to nearest, half to even; `q8_0` as the gguf package does.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a kind that is only read, [`Shape`](crate::error::ErrorKind::Shape) where the numbers are no whole blocks.
pub fn pack(kind: WeightKind, values: &[f32]) -> Result<Vec<u8>> {
    match kind {
        WeightKind::F32 => Ok(bytemuck::cast_slice(values).to_vec()),
        WeightKind::F16 => Ok(values.iter().flat_map(|v| f16(*v).to_le_bytes()).collect()),
        WeightKind::Bf16 => Ok(values.iter().flat_map(|v| bf16(*v).to_le_bytes()).collect()),
        WeightKind::Q8_0 if values.len().is_multiple_of(BLOCK) => {
            Ok(values.chunks_exact(BLOCK).flat_map(q8_0).collect())
        }
        WeightKind::Q8_0 => Err(Error::shape("values", "a multiple of 32", values.len().to_string())),
        _ => Err(Error::argument("kind", "f32, f16, bf16 or q8_0, which floats can be packed to", kind.name())),
    }
}

fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = match magnitude {
        0x7f80_0001.. => 0x7e00, // NaN
        0x4780_0000.. => 0x7c00, // 65536 and more
        0x3880_0000.. => {
            // Normal: the exponent less 112; carries go into it, up to infinity.
            let shifted = magnitude - (112 << 23);
            (shifted + 0xfff + (shifted >> 13 & 1)) >> 13
        }
        // Subnormal, in units of 2⁻²⁴: what is added to 2⁻¹ has its last bit there, and f32 rounds as wanted.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    };
    sign | rounded as u16
}

fn q8_0(block: &[f32]) -> [u8; 34] {
    let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut packed = [0; 34];
    packed[..2].copy_from_slice(&f16(d).to_le_bytes());
    for (byte, value) in packed[2..].iter_mut().zip(block) {
        *byte = (value * inverse).round() as i8 as u8; // half away from zero
    }
    packed
}
