//! The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes one after another.
//!
//! The header is read here and not by the `safetensors` crate, which takes the last of two equal keys, holds offsets in
//! `usize` (32 bits in a page, where a streamed model may be larger) and wants the whole file.

use std::ops::Range;

use super::json::{Reader, quote};
use super::{find, order, twice};
use crate::error::{Error, Result};

/// The element types of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // names of numbers
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

use Dtype::*;

/// Name and bytes, in the order of the enum, which is the order in which files are written from the end on.
const DTYPES: [(Dtype, &str, usize); 15] = [
    (Bool, "BOOL", 1),
    (U8, "U8", 1),
    (I8, "I8", 1),
    (F8E5M2, "F8_E5M2", 1),
    (F8E4M3, "F8_E4M3", 1),
    (I16, "I16", 2),
    (U16, "U16", 2),
    (F16, "F16", 2),
    (BF16, "BF16", 2),
    (I32, "I32", 4),
    (U32, "U32", 4),
    (F32, "F32", 4),
    (F64, "F64", 8),
    (I64, "I64", 8),
    (U64, "U64", 8),
];

impl Dtype {
    /// As the header writes it.
    pub fn name(self) -> &'static str {
        DTYPES[self as usize].1
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        DTYPES[self as usize].2
    }

    pub(crate) fn from_name(name: &str) -> Option<Dtype> {
        DTYPES.iter().find(|(_, known, _)| *known == name).map(|(dtype, _, _)| *dtype)
    }
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Its key.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the file's beginning.
    pub range: Range<u64>,
}

/// What a file says about its tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// In the order of the header.
    pub tensors: Vec<TensorInfo>,
    /// The texts under `__metadata__`.
    pub metadata: Vec<(String, String)>,
    /// Where the first tensor's bytes begin.
    pub data_start: u64,
    /// Bytes of the whole file.
    pub file_len: u64,
    /// The tensors in the order of their names.
    by_name: Vec<usize>,
}

/// Longer headers are refused, as the format's own library does.
const LONGEST_HEADER: u64 = 100_000_000;
/// What no tensor has more of.
const MOST_DIMENSIONS: usize = 8;

impl Header {
    /// Reads the header from a file's first bytes. `file` is named in errors; `file_len` is the whole file's length where it is
    /// known, `u64::MAX` where it is not.
    ///
    /// # Errors
    /// [`Incomplete`](crate::error::ErrorKind::Incomplete) where more of a file that has more is needed, saying how much; [`File`](crate::error::ErrorKind::File) for everything
    /// that is not a header: lengths beyond the file, tensors that overlap, leave holes or are longer than their shape, equal
    /// keys, unknown types. Memory grows with the bytes given, not with the numbers in them.
    pub fn parse(file: &str, bytes: &[u8], file_len: u64) -> Result<Header> {
        let more = |needed: u64| match needed <= file_len && (bytes.len() as u64) < file_len {
            true => Err(Error::incomplete(file, needed)),
            false => Err(Error::file(file, format!("is cut off: its header ends at byte {needed}"))),
        };
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return more(8) };
        let length = u64::from_le_bytes(*length);
        if length > LONGEST_HEADER {
            return Err(Error::file(file, format!("is no safetensors file: a header of {length} bytes")));
        }
        let data_start = 8 + length;
        let Some(text) = rest.get(..length as usize) else { return more(data_start) };

        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut metadata: Vec<(String, String)> = Vec::new();
        let mut reader = Reader::new(file, text)?;
        reader.object(&mut |reader, name| {
            if name == "__metadata__" {
                return reader.object(&mut |reader, key| {
                    metadata.push((key, reader.string()?));
                    Ok(())
                });
            }
            tensors.push(tensor_info(reader, name, data_start)?);
            Ok(())
        })?;
        reader.end()?;

        let keys = |key: &str| Error::file(file, format!("two entries have the key `{key}`"));
        let name = |i: usize| tensors[i].name.as_str();
        let by_name = order(tensors.len(), &mut |i, j| name(i) < name(j));
        if let Some(pair) = by_name.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
            return Err(keys(name(pair[0])));
        }
        if let Some(i) = twice(metadata.len(), &|i| &metadata[i].0) {
            return Err(keys(&metadata[i].0));
        }
        let ends = |i: usize| (tensors[i].range.start, tensors[i].range.end);
        let by_bytes = order(tensors.len(), &mut |i, j| ends(i) < ends(j));
        let mut end = data_start;
        for tensor in by_bytes.iter().map(|i| &tensors[*i]) {
            if tensor.range.start != end {
                let what =
                    if tensor.range.start < end { "overlaps the tensor before it" } else { "leaves a hole before it" };
                return Err(Error::file(file, format!("tensor `{}` {what}", tensor.name)));
            }
            end = tensor.range.end;
        }
        if file_len != u64::MAX && end != file_len {
            let what = if end > file_len { "is cut off" } else { "has bytes that belong to no tensor" };
            return Err(Error::file(file, format!("{what}: its tensors end at byte {end}, the file at {file_len}")));
        }
        Ok(Header { tensors, metadata, data_start, file_len: end, by_name })
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        find(&self.by_name, &|i| &self.tensors[i].name, name).map(|i| &self.tensors[i])
    }
}

/// `{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`
fn tensor_info(reader: &mut Reader, name: String, data_start: u64) -> Result<TensorInfo> {
    let (mut dtype, mut shape, mut offsets) = (None, None, None);
    reader.object(&mut |reader, key| {
        match key.as_str() {
            "dtype" => {
                let found = reader.string()?;
                let known = Dtype::from_name(&found);
                dtype = Some(
                    known.ok_or_else(|| Error::file(&name, format!("has elements of the unknown type {found:?}")))?,
                );
            }
            "shape" => shape = Some(integers(reader, MOST_DIMENSIONS)?),
            "data_offsets" => offsets = Some(integers(reader, 2)?),
            _ => return Err(reader.fail("dtype, shape or data_offsets before this")),
        }
        Ok(())
    })?;
    let (Some(dtype), Some(shape), Some([start, end])) = (dtype, shape, offsets.as_deref()) else {
        return Err(reader.fail("dtype, shape and both data_offsets before this"));
    };
    let elements = shape.iter().try_fold(dtype.size() as u64, |product: u64, &d| product.checked_mul(d));
    let length = end.checked_sub(*start);
    if length.is_none() || elements != length {
        return Err(Error::file(&name, "has another number of bytes than its type and shape say"));
    }
    let range = match (data_start.checked_add(*start), data_start.checked_add(*end)) {
        (Some(start), Some(end)) => start..end,
        _ => return Err(Error::file(&name, "ends beyond any file")),
    };
    let narrow = |d: &u64| usize::try_from(*d).map_err(|_| Error::file(&name, "has a dimension beyond this machine's"));
    let shape = shape.iter().map(narrow).collect::<Result<_>>()?;
    Ok(TensorInfo { name, dtype, shape, range })
}

fn integers(reader: &mut Reader, most: usize) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    reader.array(&mut |reader| {
        if found.len() == most {
            return Err(reader.fail("fewer numbers"));
        }
        found.push(reader.integer()?);
        Ok(())
    })?;
    Ok(found)
}

/// A file in memory.
pub struct SafetensorsFile<'a> {
    /// What it says about its tensors.
    pub header: Header,
    bytes: &'a [u8],
}

impl<'a> SafetensorsFile<'a> {
    /// Reads a whole file; `file` is named in errors.
    ///
    /// # Errors
    /// Those of [`Header::parse`].
    pub fn parse(file: &str, bytes: &'a [u8]) -> Result<SafetensorsFile<'a>> {
        Ok(SafetensorsFile { header: Header::parse(file, bytes, bytes.len() as u64)?, bytes })
    }

    /// The bytes of one of its tensors.
    pub fn data(&self, tensor: &TensorInfo) -> &'a [u8] {
        self.bytes.get(tensor.range.start as usize..tensor.range.end as usize).unwrap_or_default()
    }
}

/// Elements as f32: f32, f16 and bf16 exactly, f64 rounded to the nearest. `name` is named in errors.
///
/// # Errors
/// [`File`](crate::error::ErrorKind::File) for other types.
pub fn to_f32(name: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>> {
    Ok(match dtype {
        F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        F16 => bytes.as_chunks().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect(),
        BF16 => bytes.as_chunks().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b))).collect(),
        other => {
            let reason = format!("has elements of type {}; expected F32, F16, BF16 or F64", other.name());
            return Err(Error::file(name, reason));
        }
    })
}

/// The bytes of `values` as one of the types that [`to_f32`] reads, rounded to the nearest, ties to even.
///
/// # Errors
/// [`File`](crate::error::ErrorKind::File) for other types, and for finite numbers that are beyond the type's.
pub fn from_f32(name: &str, dtype: Dtype, values: &mut dyn Iterator<Item = f64>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut beyond = false;
    let mut half = |out: &mut Vec<u8>, value: f64, bits: u16, infinity: u16| {
        beyond |= value.is_finite() && bits & 0x7fff == infinity;
        out.extend(bits.to_le_bytes());
    };
    match dtype {
        F32 => values.for_each(|v| out.extend((v as f32).to_le_bytes())),
        F64 => values.for_each(|v| out.extend(v.to_le_bytes())),
        F16 => values.for_each(|v| half(&mut out, v, f16_from_f64(v), 0x7c00)),
        BF16 => values.for_each(|v| half(&mut out, v, bf16_from_f64(v), 0x7f80)),
        other => {
            let reason = format!("cannot be written as {}; expected F32, F16, BF16 or F64", other.name());
            return Err(Error::file(name, reason));
        }
    }
    if beyond {
        return Err(Error::file(name, format!("has numbers that are too large for {}", dtype.name())));
    }
    Ok(out)
}

/// Exact.
pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Exact: the exponent's bias is moved by a product with 2¹¹², which makes subnormal numbers normal ones.
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let value = if half & 0x7c00 == 0x7c00 {
        f32::from_bits(magnitude | 0x7f80_0000)
    } else {
        f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)
    };
    if half & 0x8000 == 0 { value } else { -value }
}

/// To the nearest number with `mantissa` bits behind the point, of exponents from `1 - bias` to `bias`, ties to even; as the bits
/// of 1 + its exponent's + `mantissa` bits.
fn round_bits(value: f64, mantissa: u32, bias: i32) -> u16 {
    let sign = if value.is_sign_negative() { 1 << 15 } else { 0 };
    let infinity = (2 * bias as u16 + 1) << mantissa;
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | infinity | 1 << (mantissa - 1);
    }
    // The weight of the last bit: that of the number's own exponent, or the smallest there is.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    if exponent > bias {
        return sign | infinity;
    }
    let unit = f64::from_bits(((exponent - mantissa as i32 + 1023) as u64) << 52);
    // A carry into the next exponent, or to infinity, is the right result.
    let steps = (magnitude / unit).round_ties_even() as u16;
    let biased = (exponent + bias - 1) as u16;
    sign | ((biased << mantissa) + steps).min(infinity)
}

/// From f64 in one rounding.
pub(crate) fn f16_from_f64(value: f64) -> u16 {
    round_bits(value, 10, 15)
}

/// From f64 in one rounding.
pub(crate) fn bf16_from_f64(value: f64) -> u16 {
    round_bits(value, 7, 127)
}

/// A tensor to write.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its key.
    pub name: &'a str,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its bytes.
    pub data: &'a [u8],
}

/// A whole file, byte for byte as the format's own library writes it: tensors by falling width of their type, then by name;
/// the header padded to 8 bytes.
pub fn write(entries: &[Entry], metadata: &[(String, String)]) -> Vec<u8> {
    let key = |i: usize| (DTYPES.len() - entries[i].dtype as usize, entries[i].name);
    let order = order(entries.len(), &mut |i, j| key(i) < key(j));
    let mut header = String::from("{");
    if !metadata.is_empty() {
        header.push_str("\"__metadata__\":{");
        for (i, (key, value)) in metadata.iter().enumerate() {
            header.push_str(if i == 0 { "" } else { "," });
            quote(&mut header, key, false);
            header.push(':');
            quote(&mut header, value, false);
        }
        header.push('}');
    }
    let mut end = 0;
    for entry in order.iter().map(|i| &entries[*i]) {
        header.push_str(if header.len() == 1 { "" } else { "," });
        quote(&mut header, entry.name, false);
        let start = end;
        end += entry.data.len();
        let shape = entry.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let dtype = entry.dtype.name();
        header.push_str(&format!(":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}"));
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.as_bytes());
    order.iter().for_each(|i| file.extend(entries[*i].data));
    file
}
