//! GGUF: metadata, tensor descriptions, and adapters as llama.cpp reads them.
//!
//! A file begins with `GGUF`, u32 version, u64 tensors, u64 entries of metadata; strings are u64 length and bytes. Shapes are written
//! with the fastest dimension first; here they are row-major, as everywhere else.

use std::ops::Range;

use super::adapter::{Adapter, AdapterKind, AdapterModule};
use super::json::Reader;
use super::safetensors::{bf16_to_f32, f16_to_f32};
use super::{find, order, twice};
use crate::error::{Error, Result};

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned, whatever its width in the file.
    Unsigned(u64),
    /// Signed, whatever its width in the file.
    Signed(i64),
    /// Of 4 or 8 bytes in the file.
    Float(f64),
    /// A byte that is 0 or 1.
    Bool(bool),
    /// UTF-8.
    String(String),
    /// Elements that are read when they are asked for.
    Array(Array),
}

impl Value {
    /// A whole number from 0 on.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(value) => Some(*value),
            Value::Signed(value) => (*value).try_into().ok(),
            _ => None,
        }
    }

    /// Any number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Unsigned(value) => Some(*value as f64),
            Value::Signed(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }
}

/// Where the elements of an array lie in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    kind: u32,
    /// Number of elements.
    pub len: u64,
    /// Their bytes, counted from the file's beginning.
    pub range: Range<usize>,
}

impl Array {
    /// Calls `each` with every element, read from the file's first bytes.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for bytes that are not those the header was read from; what `each` returns.
    pub fn each(&self, bytes: &[u8], each: &mut dyn FnMut(Value) -> Result<()>) -> Result<()> {
        let mut cursor = Cursor { file: "GGUF array", bytes, at: self.range.start, len: bytes.len() as u64 };
        for _ in 0..self.len {
            each(cursor.value(self.kind, 0)?)?;
        }
        Ok(())
    }
}

/// The element types that have a width here; every other number is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgmlType(pub u32);

/// Number, name, elements of a block, bytes of a block.
const GGML_TYPES: [(u32, &str, u64, u64); 32] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (36, "I2_S", 4, 1), // bitnet.cpp's
];

impl GgmlType {
    /// Numbers of 4 bytes.
    pub const F32: GgmlType = GgmlType(0);
    /// Numbers of 2 bytes.
    pub const F16: GgmlType = GgmlType(1);
    /// Blocks of 32: an f16 scale, 32 integers of 4 bits less 8.
    pub const Q4_0: GgmlType = GgmlType(2);
    /// Blocks of 32: an f16 scale, an f16 minimum, 32 integers of 4 bits.
    pub const Q4_1: GgmlType = GgmlType(3);
    /// Blocks of 32: an f16 scale, 32 integers of 8 bits.
    pub const Q8_0: GgmlType = GgmlType(8);
    /// Numbers of 2 bytes, f32's upper half.
    pub const BF16: GgmlType = GgmlType(30);
    /// bitnet.cpp's ternary codes in 2 bits, 128 of them in 32 bytes, and behind all of them one f32, their scale, and 28 bytes more.
    pub const I2_S: GgmlType = GgmlType(36);

    fn entry(self) -> Option<&'static (u32, &'static str, u64, u64)> {
        GGML_TYPES.iter().find(|(number, ..)| *number == self.0)
    }

    /// As llama.cpp calls it.
    pub fn name(self) -> &'static str {
        self.entry().map_or("unknown", |entry| entry.1)
    }
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTensor {
    /// Its name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Type of its elements.
    pub kind: GgmlType,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the file's beginning.
    pub range: Range<u64>,
}

/// What a file says about itself and its tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    /// Keys and values, in the file's order.
    pub metadata: Vec<(String, Value)>,
    /// The tensors, in the file's order.
    pub tensors: Vec<GgufTensor>,
    /// Where tensors' bytes begin.
    pub data_start: u64,
    /// The tensors in the order of their names.
    by_name: Vec<usize>,
}

struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Bytes of the whole file.
    len: u64,
}

const DEPTH: usize = 4;

impl<'a> Cursor<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let needed = (self.at as u64).checked_add(count).filter(|needed| *needed <= self.len);
        let Some(needed) = needed else {
            return Err(Error::file(
                self.file,
                format!("is cut off, or says more than it has: {count} bytes at {}", self.at),
            ));
        };
        let taken = usize::try_from(needed).ok().and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| Error::incomplete(self.file, needed))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Result<String> {
        let length = self.u64()?;
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Error::file(self.file, "has a string that is not UTF-8"))?;
        Ok(text.into())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>()?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::String(self.string()?),
            9 => {
                let (kind, len) = (self.u32()?, self.u64()?);
                let start = self.at;
                self.skip(kind, len, depth)?;
                Value::Array(Array { kind, len, range: start..self.at })
            }
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(Error::file(self.file, format!("has a value of the unknown type {kind}"))),
        })
    }

    /// Passes the elements of an array.
    fn skip(&mut self, kind: u32, len: u64, depth: usize) -> Result<()> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..len {
                    let length = self.u64()?;
                    self.take(length)?;
                }
                return Ok(());
            }
            9 if depth < DEPTH => {
                for _ in 0..len {
                    self.value(9, depth + 1)?;
                }
                return Ok(());
            }
            _ => return Err(Error::file(self.file, format!("has an array of the unknown type {kind}"))),
        };
        self.take(len.saturating_mul(size)).map(drop)
    }
}

impl GgufHeader {
    /// Reads a file's first bytes. `file` is named in errors; `file_len` is the whole file's length where it is known, `u64::MAX`
    /// where it is not.
    ///
    /// # Errors
    /// [`Incomplete`](crate::error::ErrorKind::Incomplete) where more of a file that has more is needed, saying how much at least; [`File`](crate::error::ErrorKind::File) for everything that
    /// is no GGUF of version 2 or 3: lengths beyond the file, equal names, unknown types, tensors that overlap or are not aligned.
    /// Memory grows with the bytes given, not with the numbers in them.
    pub fn parse(file: &str, bytes: &[u8], file_len: u64) -> Result<GgufHeader> {
        let mut cursor = Cursor { file, bytes, at: 0, len: file_len };
        if cursor.take(4)? != b"GGUF" {
            return Err(Error::file(file, "is no GGUF file"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(Error::file(file, format!("is GGUF of version {version}; expected 2 or 3")));
        }
        let (count, entries) = (cursor.u64()?, cursor.u64()?);
        let mut metadata: Vec<(String, Value)> = Vec::new();
        for _ in 0..entries {
            let key = cursor.string()?;
            let kind = cursor.u32()?;
            metadata.push((key, cursor.value(kind, 0)?));
        }
        let mut tensors: Vec<GgufTensor> = Vec::new();
        for _ in 0..count {
            tensors.push(tensor(&mut cursor)?);
        }
        let name = |i: usize| match metadata.get(i) {
            Some((key, _)) => key.as_str(),
            None => &tensors[i - metadata.len()].name,
        };
        if let Some(i) = twice(metadata.len() + tensors.len(), &name) {
            return Err(Error::file(file, format!("two entries have the name `{}`", name(i))));
        }
        let alignment =
            metadata.iter().find(|(key, _)| key == "general.alignment").map_or(Some(32), |(_, v)| v.as_u64());
        let Some(alignment) = alignment.filter(|a| a.is_power_of_two() && *a <= 1 << 20) else {
            return Err(Error::file(file, "has a general.alignment that is no power of two"));
        };
        let data_start = (cursor.at as u64).next_multiple_of(alignment);
        let by_bytes = order(tensors.len(), &mut |i, j| tensors[i].range.start < tensors[j].range.start);
        let mut end = data_start;
        for i in by_bytes {
            let t = &mut tensors[i];
            let aligned = t.range.start.is_multiple_of(alignment);
            let (Some(start), Some(stop)) =
                (data_start.checked_add(t.range.start), data_start.checked_add(t.range.end))
            else {
                return Err(Error::file(&t.name, "ends beyond any file"));
            };
            if !aligned || start < end || stop > file_len {
                return Err(Error::file(&t.name, "overlaps another tensor, is not aligned, or ends beyond the file"));
            }
            t.range = start..stop;
            end = stop;
        }
        let by_name = order(tensors.len(), &mut |i, j| tensors[i].name < tensors[j].name);
        Ok(GgufHeader { metadata, tensors, data_start, by_name })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<&GgufTensor> {
        find(&self.by_name, &|i| &self.tensors[i].name, name).map(|i| &self.tensors[i])
    }
}

/// A description, its range counted from where tensors' bytes begin.
fn tensor(cursor: &mut Cursor) -> Result<GgufTensor> {
    let name = cursor.string()?;
    let dimensions = cursor.u32()?;
    if dimensions > 4 {
        return Err(Error::file(&name, format!("has {dimensions} dimensions; expected at most 4")));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let size = cursor.u64()?;
        shape
            .insert(0, usize::try_from(size).map_err(|_| Error::file(&name, "has a dimension beyond this machine's"))?);
    }
    let kind = GgmlType(cursor.u32()?);
    let offset = cursor.u64()?;
    let (_, _, elements, bytes) =
        kind.entry().ok_or_else(|| Error::file(&name, format!("is of the unknown type {}", kind.0)))?;
    let count = shape.iter().try_fold(1, |product: u64, d| product.checked_mul(*d as u64));
    let whole = shape.last().is_none_or(|row| (*row as u64).is_multiple_of(*elements));
    let more = if kind == GgmlType::I2_S { 32 } else { 0 };
    let length = count.filter(|_| whole).and_then(|count| (count / elements).checked_mul(*bytes)?.checked_add(more));
    let end = length.and_then(|length| offset.checked_add(length));
    let end = end.ok_or_else(|| Error::file(&name, "is of a size that its type cannot have"))?;
    Ok(GgufTensor { name, kind, shape, range: offset..end })
}

/// Elements as f32, of the types that adapters come in.
fn dequantized(tensor: &GgufTensor, data: &[u8]) -> Result<Vec<f32>> {
    let half = |b: &[u8; 2]| u16::from_le_bytes(*b);
    Ok(match tensor.kind {
        GgmlType::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        GgmlType::F16 => data.as_chunks().0.iter().map(|b| f16_to_f32(half(b))).collect(),
        GgmlType::BF16 => data.as_chunks().0.iter().map(|b| bf16_to_f32(half(b))).collect(),
        GgmlType::Q8_0 => {
            let block = |b: &[u8; 34]| {
                let scale = f16_to_f32(half(&[b[0], b[1]]));
                let values: [f32; 32] = std::array::from_fn(|i| scale * f32::from(b[2 + i] as i8));
                values
            };
            data.as_chunks().0.iter().flat_map(block).collect()
        }
        other => {
            let text = format!("{}: an adapter of type {}; expected F32, F16, BF16 or Q8_0", tensor.name, other.name());
            return Err(Error::unsupported(text));
        }
    })
}

/// What of a model GGUF's form of its adapter depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufModel {
    /// llama.cpp's name: `llama` (also for mistral), `qwen2`, `qwen3`, `bitnet`.
    pub architecture: String,
    /// `num_attention_heads`
    pub heads: usize,
    /// `num_key_value_heads`
    pub kv_heads: usize,
    /// Whether the output head is the embedding, so that the file has none of its own.
    pub tied: bool,
}

impl GgufModel {
    /// From the model's `config.json`.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for what is no such file; [`Unsupported`](crate::error::ErrorKind::Unsupported) for a `model_type` whose names are not known here.
    pub fn from_config(config: &[u8]) -> Result<GgufModel> {
        let (mut kind, mut heads, mut kv_heads, mut tied) = (String::new(), 0, None, false);
        let mut reader = Reader::new("config.json", config)?;
        reader.object(&mut |reader, key| {
            match key.as_str() {
                "model_type" => kind = reader.string()?,
                "num_attention_heads" => heads = reader.integer()? as usize,
                "num_key_value_heads" if !reader.null() => kv_heads = Some(reader.integer()? as usize),
                "num_key_value_heads" => {}
                "tie_word_embeddings" => tied = reader.boolean()?,
                _ => drop(reader.raw()?),
            }
            Ok(())
        })?;
        reader.end()?;
        let architecture = match kind.as_str() {
            "llama" | "mistral" => "llama",
            "qwen2" | "qwen3" | "bitnet" => kind.as_str(),
            _ => {
                return Err(Error::unsupported(format!(
                    "config.json: model_type {kind:?} has no names in GGUF here; expected llama, mistral, qwen2, qwen3 or bitnet"
                )));
            }
        };
        Ok(GgufModel { architecture: architecture.into(), heads, kv_heads: kv_heads.unwrap_or(heads), tied })
    }

    /// The heads over which this module's rows are permuted, if they are: llama.cpp pairs neighbours where transformers pairs
    /// halves.
    fn permuted(&self, module: &str) -> Option<usize> {
        match module.rsplit('.').next() {
            Some("q_proj") if self.architecture == "llama" => Some(self.heads),
            Some("k_proj") if self.architecture == "llama" => Some(self.kv_heads),
            _ => None,
        }
    }
}

/// Ends of a layer's module names, in transformers and in GGUF.
const LAYER_NAMES: [(&str, &str); 7] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
const WHOLE_NAMES: [(&str, &str); 2] = [("model.embed_tokens", "token_embd"), ("lm_head", "output")];

/// `model.layers.0.self_attn.q_proj` as `blk.0.attn_q`.
fn to_gguf_name(name: &str) -> Option<String> {
    if let Some((_, gguf)) = WHOLE_NAMES.iter().find(|(own, _)| *own == name) {
        return Some(gguf.to_string());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    layer.parse::<u32>().ok()?;
    let (_, gguf) = LAYER_NAMES.iter().find(|(own, _)| *own == rest)?;
    Some(format!("blk.{layer}.{gguf}"))
}

fn from_gguf_name(name: &str) -> Option<String> {
    if let Some((own, _)) = WHOLE_NAMES.iter().find(|(_, gguf)| *gguf == name) {
        return Some(own.to_string());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse::<u32>().ok()?;
    let (own, _) = LAYER_NAMES.iter().find(|(_, gguf)| *gguf == rest)?;
    Some(format!("model.layers.{layer}.{own}"))
}

/// Norms of a layer, as [`LAYER_NAMES`].
const NORM_NAMES: [(&str, &str); 6] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.attn_sub_norm", "attn_sub_norm"),
    ("mlp.ffn_sub_norm", "ffn_sub_norm"),
];

/// Hugging Face's name of a model's tensor, with its `.weight` or `.bias`; a name that is not known stays.
pub(crate) fn model_tensor(name: &str) -> String {
    let known = || {
        let (base, part) = name.rsplit_once('.')?;
        if base == "output_norm" {
            return Some(format!("model.norm.{part}"));
        }
        if let Some(own) = from_gguf_name(base) {
            return Some(format!("{own}.{part}"));
        }
        let (layer, rest) = base.strip_prefix("blk.")?.split_once('.')?;
        let (own, _) = NORM_NAMES.iter().find(|(_, gguf)| *gguf == rest)?;
        Some(format!("model.layers.{layer}.{own}.{part}"))
    };
    known().unwrap_or_else(|| name.into())
}

/// Rows `[head][half][pair]` as `[head][pair][half]`, or with `back` the other way round.
fn permute(rows: &mut [f32], rank: usize, heads: usize, back: bool) {
    let old = rows.to_vec();
    let head = rows.len() / rank / heads; // rows of one head
    let half = head / 2;
    for row in 0..head * heads {
        let (start, within) = (row / head * head, row % head);
        let from = if back { (within % half) * 2 + within / half } else { (within % 2) * half + within / 2 };
        let from = (start + from) * rank;
        rows[row * rank..][..rank].copy_from_slice(&old[from..from + rank]);
    }
}

/// That the heads divide the rows into pairs.
fn check_heads(module: &str, rows: usize, heads: usize) -> Result<()> {
    if heads == 0 || !rows.is_multiple_of(heads) || !(rows / heads).is_multiple_of(2) {
        let text =
            format!("{module}: {rows} rows are not {heads} heads of pairs; expected the model's own numbers of heads");
        return Err(Error::unmatched(text));
    }
    Ok(())
}

impl Adapter {
    /// What GGUF cannot hold of this adapter, named; empty where it can hold everything.
    pub(crate) fn not_in_gguf(&self, model: Option<&GgufModel>) -> Vec<String> {
        let mut lost = self.more_than_a_and_b();
        for m in &self.modules {
            if m.kind == AdapterKind::Conv1x1 || to_gguf_name(&m.name).is_none() {
                lost.push(format!("{}: llama.cpp has no name for it", m.name));
            }
            // llama.cpp finds adapters by the tensor's name, and would multiply by the turned A of token_embd.
            if (m.kind == AdapterKind::Embedding || m.name == "lm_head") && model.is_some_and(|model| model.tied) {
                lost.push(format!("{}: the model's output head is its embedding, one tensor in GGUF", m.name));
            }
        }
        lost
    }

    /// An adapter file of llama.cpp, in float32: tensors, names, order and metadata as its own converter writes them. One alpha is
    /// that of the file; where alpha/rank is not what a module is scaled by (its own alpha, rsLoRA), the rest is folded into B.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) where something would be lost ([`Adapter::can_export`] names all of it); [`Unmatched`](crate::error::ErrorKind::Unmatched) where the
    /// model's heads do not divide a module's rows.
    pub fn to_gguf(&self, model: &GgufModel, name: Option<&str>) -> Result<Vec<u8>> {
        if let Some(lost) = self.not_in_gguf(Some(model)).first() {
            return Err(Error::unsupported(format!("GGUF cannot hold all of this adapter: {lost}")));
        }
        // llama.cpp takes an alpha of 0 for a scale of 1.
        let alpha = if self.config.alpha() == 0.0 { 1.0 } else { self.config.alpha() } as f32;
        let mut tensors: Vec<(String, [usize; 2], Vec<f32>)> = Vec::new();
        for m in &self.modules {
            let gguf = to_gguf_name(&m.name).unwrap_or_default();
            let (mut a, mut b) = (m.a.clone(), m.b.clone());
            let fold = m.scaling * m.rank as f64 / f64::from(alpha);
            if fold != 1.0 {
                b.iter_mut().for_each(|v| *v = (f64::from(*v) * fold) as f32);
            }
            if let Some(heads) = model.permuted(&m.name) {
                check_heads(&m.name, m.out_features(), heads)?;
                permute(&mut b, m.rank, heads, false);
            }
            let mut a_shape = [m.rank, m.in_features()];
            if m.kind == AdapterKind::Embedding {
                a = super::linalg::Matrix::from_f32(a_shape[0], a_shape[1], &a).transposed().to_f32();
                a_shape.reverse();
            }
            tensors.push((format!("{gguf}.weight.lora_a"), a_shape, a));
            tensors.push((format!("{gguf}.weight.lora_b"), [m.out_features(), m.rank], b));
        }
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        let string = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        let text = |out: &mut Vec<u8>, key: &str, value: &str| {
            string(out, key);
            out.extend(8u32.to_le_bytes());
            string(out, value);
        };
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((5 + u64::from(name.is_some())).to_le_bytes());
        text(&mut out, "general.architecture", &model.architecture);
        text(&mut out, "general.type", "adapter");
        text(&mut out, "adapter.type", "lora");
        if let Some(name) = name {
            text(&mut out, "general.name", name);
        }
        string(&mut out, "adapter.lora.alpha");
        out.extend(6u32.to_le_bytes());
        out.extend(alpha.to_le_bytes());
        string(&mut out, "general.quantization_version");
        out.extend(4u32.to_le_bytes());
        out.extend(2u32.to_le_bytes());
        let mut offset = 0;
        for (name, [rows, columns], values) in &tensors {
            string(&mut out, name);
            out.extend(2u32.to_le_bytes());
            out.extend((*columns as u64).to_le_bytes());
            out.extend((*rows as u64).to_le_bytes());
            out.extend(GgmlType::F32.0.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += (values.len() * 4).next_multiple_of(32);
        }
        for (_, _, values) in &tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        out.resize(out.len().next_multiple_of(32), 0);
        Ok(out)
    }

    /// Reads an adapter file of llama.cpp. `model` gives what the file leaves out: the numbers of heads, by which rows of q and k are
    /// put back for `llama`.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for bytes that are no such file; [`Unsupported`](crate::error::ErrorKind::Unsupported) for tensors whose names or types are not known here;
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) where the heads are needed and missing or wrong.
    pub fn from_gguf(bytes: &[u8], model: Option<&GgufModel>) -> Result<Adapter> {
        let file = "the GGUF adapter";
        let header = GgufHeader::parse(file, bytes, bytes.len() as u64)?;
        let word = |key: &str| header.get(key).and_then(Value::as_str).unwrap_or("nothing");
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            if word(key) != expected {
                return Err(Error::file(file, format!("{key}: expected {expected}, got {}", word(key))));
            }
        }
        let architecture = word("general.architecture");
        if let Some(model) = model.filter(|model| model.architecture != architecture) {
            let text = format!("the adapter is for {architecture}, the model is {}", model.architecture);
            return Err(Error::unmatched(text));
        }
        let alpha = header.get("adapter.lora.alpha").and_then(Value::as_f64).unwrap_or(0.0);
        let mut modules: Vec<AdapterModule> = Vec::new();
        for tensor in &header.tensors {
            let Some(base) = tensor.name.strip_suffix(".weight.lora_a") else {
                let partner = tensor.name.strip_suffix(".lora_b").map(|base| format!("{base}.lora_a"));
                if partner.is_some_and(|partner| header.find(&partner).is_some()) {
                    continue;
                }
                return Err(Error::unsupported(format!("{}: expected pairs of lora_a and lora_b only", tensor.name)));
            };
            let name = from_gguf_name(base)
                .ok_or_else(|| Error::unsupported(format!("{}: no module of that name is known here", tensor.name)))?;
            let partner = header.find(&format!("{base}.weight.lora_b"));
            let partner = partner.ok_or_else(|| Error::file(&tensor.name, "has no lora_b beside it"))?;
            let read = |t: &GgufTensor| {
                dequantized(t, bytes.get(t.range.start as usize..t.range.end as usize).unwrap_or_default())
            };
            let (mut a, b) = (read(tensor)?, read(partner)?);
            let embedding = base == "token_embd";
            let mut shape = tensor.shape.clone();
            if embedding && let [rows, columns] = shape[..] {
                a = super::linalg::Matrix::from_f32(rows, columns, &a).transposed().to_f32();
                shape.reverse();
            }
            // As llama.cpp has it: no alpha is a scale of 1.
            let alpha = (alpha != 0.0).then_some(alpha);
            let mut module = AdapterModule::of_tensors(name, embedding, (&shape, a), (&partner.shape, b), alpha)?;
            let llama = GgufModel { architecture: architecture.into(), heads: 0, kv_heads: 0, tied: false };
            if let Some(heads) = model.unwrap_or(&llama).permuted(&module.name) {
                let name = &module.name;
                if model.is_none() {
                    let text =
                        format!("{name}: rows of q and k are permuted by heads; expected the model's config.json");
                    return Err(Error::unmatched(text));
                }
                check_heads(name, module.out_features(), heads)?;
                permute(&mut module.b, module.rank, heads, true);
            }
            modules.push(module);
        }
        if modules.is_empty() {
            return Err(Error::file(file, "has no pairs of lora_a and lora_b"));
        }
        Adapter::new(modules, None)
    }
}
