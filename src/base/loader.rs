//! A weight that comes in pieces.

use std::rc::Rc;

use super::FrozenLinear;
use super::kind::WeightKind;
use crate::error::{Error, Result, show_number};
use crate::gpu::{Gpu, Tensor};
use crate::kernels::base::{Layout, Rows};

/// Bytes that are turned and uploaded at a time, at least one row.
const PIECE: usize = 4 << 20;
/// Bytes of one upload at most.
const UPLOAD: usize = 16 << 20;

/// A [`FrozenLinear`] whose weight is on its way: as a file has it, in pieces of any size, in order.
///
/// A loader that is dropped before [`finish`](FrozenLoader::finish) frees what it allocated.
pub struct FrozenLoader {
    linear: FrozenLinear,
    /// Bytes that came, and those that must come.
    received: u64,
    total: u64,
    /// Bytes of what is turned into rows, and the start of the next.
    unit: usize,
    pending: Vec<u8>,
    scale: Option<f32>,
    /// Rows of a head, where a file has them in pairs.
    paired: Option<usize>,
}

/// Where the row `row` of Hugging Face's order, `[head][half][pair]`, lies in llama.cpp's, `[head][pair][half]`.
pub(crate) fn paired_row(row: usize, head: usize) -> usize {
    let (within, half) = (row % head, head / 2);
    row - within + within % half * 2 + within / half
}

impl FrozenLoader {
    /// Allocates `[out_features, in_features]` of a kind.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) for features that the kind cannot have: of blocks and of `i2_s` in_features must be a multiple of 32
    /// and 128, of transformers' packing out_features one of 4. [`Limit`](crate::error::ErrorKind::Limit) where a row is larger than a binding.
    pub fn new(gpu: &Gpu, kind: WeightKind, out_features: usize, in_features: usize) -> Result<FrozenLoader> {
        FrozenLoader::with_limit(gpu, kind, out_features, in_features, u64::MAX)
    }

    /// As [`FrozenLoader::new`], with buffers of at most `max_bytes` each instead of what the device allows.
    pub fn with_limit(
        gpu: &Gpu,
        kind: WeightKind,
        out_features: usize,
        in_features: usize,
        max_bytes: u64,
    ) -> Result<FrozenLoader> {
        let total = kind.source_bytes(out_features, in_features)?;
        let (unit, _) = kind.units(out_features, in_features)?;
        let layout = kind.layout(in_features);
        let row_bytes = layout.row_bytes(in_features);
        let limits = gpu.limits();
        let limit = max_bytes.min(limits.max_buffer_size).min(limits.max_storage_buffer_binding_size);
        let most = usize::try_from(limit / row_bytes as u64).unwrap_or(usize::MAX).min(out_features);
        if most == 0 {
            let which = "maxStorageBufferBindingSize";
            return Err(Error::limit("a row of the weight", row_bytes as u64, limit, which));
        }
        const SHARDS: usize = 4096;
        if out_features.div_ceil(most) > SHARDS {
            let which = "maxStorageBufferBindingSize, 4,096 times";
            return Err(Error::limit("the weight", total, SHARDS as u64 * limit, which));
        }
        let shard = |first: usize| {
            let count = most.min(out_features - first);
            let shape = [count, row_bytes / 4];
            let weight = match layout {
                Layout::F32 | Layout::F32Any => Tensor::zeros(gpu, "weight", &shape)?,
                _ => Tensor::words(gpu, "weight", &shape)?,
            };
            Ok((first, Rows { layout, weight, in_features, first: 0, count, scale: 1.0 }))
        };
        let shards: Rc<[_]> = (0..out_features).step_by(most).map(shard).collect::<Result<_>>()?;
        let (gpu, bias, input) = (gpu.clone(), None, Rc::default());
        let linear = FrozenLinear { gpu, kind, in_features, out_features, shards, bias, input };
        Ok(FrozenLoader { linear, received: 0, total, unit, pending: Vec::new(), scale: None, paired: None })
    }

    /// Bytes that the weight has in a file.
    pub fn source_bytes(&self) -> u64 {
        self.total
    }

    /// Says, before the first byte, that the file has the rows of each head in llama.cpp's order; they get Hugging Face's.
    /// `head` is even and divides out_features.
    pub(crate) fn unpair_rows(&mut self, head: usize) {
        self.paired = Some(head);
    }

    /// Uploads the bias `[out_features]`.
    pub fn set_bias(&mut self, bias: &[f32]) -> Result<()> {
        self.linear.bias = Some(Tensor::from_slice(&self.linear.gpu, "bias", &[self.linear.out_features], bias)?);
        Ok(())
    }

    /// What ternary weights are to be multiplied by. `i2_s` brings its own; of transformers' `bitlinear` it is
    /// `1/weight_scale`, of `autobitlinear` `weight_scale`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for other kinds and for what is no finite number.
    pub fn set_scale(&mut self, scale: f32) -> Result<()> {
        if !matches!(self.linear.kind, WeightKind::BitLinear { .. }) || self.linear.kind.has_own_scale() {
            return Err(Error::argument("scale", "none for this kind", show_number(scale.into())));
        }
        self.put_scale(scale)
    }

    fn put_scale(&mut self, scale: f32) -> Result<()> {
        if !scale.is_finite() {
            return Err(Error::argument("scale", "a finite number", show_number(scale.into())));
        }
        self.scale = Some(scale);
        Ok(())
    }

    /// Takes the file's bytes from `byte_offset` on, which is where the piece before ended.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) for a piece that leaves out bytes or goes past the end, [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for the ternary
    /// code 3 or a scale that is not finite, [`Disposed`](crate::error::ErrorKind::Disposed), [`DeviceLost`](crate::error::ErrorKind::DeviceLost).
    pub fn write(&mut self, byte_offset: u64, bytes: &[u8]) -> Result<()> {
        let end = byte_offset.checked_add(bytes.len() as u64);
        if byte_offset != self.received || end.is_none_or(|end| end > self.total) {
            let expected = format!("bytes from {} on, {} in all", self.received, self.total);
            return Err(Error::shape("weight", expected, format!("{} from {byte_offset} on", bytes.len())));
        }
        let kind = self.linear.kind;
        let codes = self.total - if kind.has_own_scale() { 4 } else { 0 };
        let (mut rows, tail) = bytes.split_at(bytes.len().min(codes.saturating_sub(self.received) as usize));
        if !self.pending.is_empty() && !rows.is_empty() && self.received < codes {
            let (rest, more) = rows.split_at(rows.len().min(self.unit - self.pending.len()));
            self.pending.extend_from_slice(rest);
            self.received += rest.len() as u64;
            rows = more;
            if self.pending.len() == self.unit {
                let row = std::mem::take(&mut self.pending);
                self.put_units(self.received / self.unit as u64 - 1, &row)?;
            }
        }
        for piece in rows.chunks(self.unit * (PIECE / self.unit).max(1)) {
            let (whole, rest) = piece.split_at(piece.len() - piece.len() % self.unit);
            self.put_units(self.received / self.unit as u64, whole)?;
            self.pending.extend_from_slice(rest);
            self.received += piece.len() as u64;
        }
        if !tail.is_empty() {
            self.pending.extend_from_slice(tail);
            self.received += tail.len() as u64;
            if let Ok(scale) = <[u8; 4]>::try_from(self.pending.as_slice()) {
                self.put_scale(f32::from_le_bytes(scale))?;
                self.pending.clear();
            }
        }
        Ok(())
    }

    /// Turns whole units, of which `first` is the index of the first, into rows and uploads them.
    fn put_units(&self, first: u64, units: &[u8]) -> Result<()> {
        let FrozenLinear { kind, in_features, out_features, .. } = self.linear;
        let first = first as usize; // no larger than out_features
        let row_bytes = kind.layout(in_features).row_bytes(in_features);
        if row_bytes == self.unit && matches!(kind, WeightKind::F32 | WeightKind::F16 | WeightKind::Bf16) {
            return self.upload(first, units);
        }
        let (_, count) = kind.units(out_features, in_features)?;
        for k in 0..out_features / count {
            let mut rows = vec![0; units.len() / self.unit * row_bytes];
            for (unit, row) in units.chunks_exact(self.unit).zip(rows.chunks_exact_mut(row_bytes)) {
                kind.convert(unit, k, row)?;
            }
            self.upload(first + k * count, &rows)?;
        }
        Ok(())
    }

    /// Uploads rows as they lie in GPU memory, from the file's row `first` on.
    fn upload(&self, first: usize, rows: &[u8]) -> Result<()> {
        let Some(head) = self.paired else { return self.upload_rows(first, rows) };
        let row_bytes = self.linear.kind.layout(self.linear.in_features).row_bytes(self.linear.in_features);
        for (row, bytes) in (first..).zip(rows.chunks_exact(row_bytes)) {
            // The inverse of paired_row.
            let within = row % head;
            self.upload_rows(row - within + within % 2 * (head / 2) + within / 2, bytes)?;
        }
        Ok(())
    }

    fn upload_rows(&self, first: usize, rows: &[u8]) -> Result<()> {
        for (shard_first, shard) in self.linear.shards.iter() {
            let row_bytes = 4 * shard.weight.shape()[1];
            let start = first.max(*shard_first);
            let end = (first + rows.len() / row_bytes).min(shard_first + shard.count);
            if start >= end {
                continue;
            }
            let offset = (start - shard_first) as u64 * row_bytes as u64;
            let bytes = &rows[(start - first) * row_bytes..(end - first) * row_bytes];
            for (i, piece) in bytes.chunks(UPLOAD).enumerate() {
                shard.weight.write_at(offset + (i * UPLOAD) as u64, piece)?;
            }
        }
        Ok(())
    }

    /// Whether [`FrozenLoader::finish`] will succeed.
    pub(crate) fn check_complete(&self) -> Result<()> {
        if self.received != self.total {
            return Err(Error::shape("weight", format!("{} bytes", self.total), self.received.to_string()));
        }
        if matches!(self.linear.kind, WeightKind::BitLinear { .. }) && self.scale.is_none() {
            return Err(Error::argument("scale", "a number for ternary weights", "none"));
        }
        self.linear.shards.iter().try_for_each(|(_, rows)| rows.weight.check_made())
    }

    /// The layer, once all bytes came.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where some are missing, [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where a ternary weight has no scale, [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory)
    /// where that is known by now.
    pub fn finish(self) -> Result<FrozenLinear> {
        self.check_complete()?;
        let mut linear = self.linear;
        if let Some(scale) = self.scale {
            // The shader reads ternary weights as −2, 0 and 2.
            let scaled = |(first, rows): &(usize, Rows)| (*first, Rows { scale: 0.5 * scale, ..rows.clone() });
            linear.shards = linear.shards.iter().map(scaled).collect();
        }
        Ok(linear)
    }
}
