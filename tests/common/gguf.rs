//! GGUF files of models, written for tests, and the kinds of numbers in them.

use lora_webgpu::io::safetensors::{Dtype, to_f32};
use lora_webgpu::{WeightKind, pack};

/// A metadata value.
pub enum Value {
    Text(String),
    U32(u32),
    F32(f32),
    Texts(Vec<String>),
}

/// A tensor: name, row-major shape, type and bytes.
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

/// Name and number of the types that models are read in.
pub const KINDS: [(&str, u32); 6] = [("F32", 0), ("F16", 1), ("BF16", 30), ("Q8_0", 8), ("Q4_0", 2), ("Q4_1", 3)];

/// Numbers as a file has them.
pub fn quantize(kind: u32, values: &[f32]) -> Vec<u8> {
    let half = |v: f32| pack(WeightKind::F16, &[v]).unwrap();
    let blocks = |block: &dyn Fn(&[f32]) -> Vec<u8>| values.chunks_exact(32).flat_map(block).collect();
    let nibbles = |codes: Vec<u8>| (0..16).map(move |i| codes[i] | codes[i + 16] << 4);
    match kind {
        0 => pack(WeightKind::F32, values).unwrap(),
        1 => pack(WeightKind::F16, values).unwrap(),
        30 => pack(WeightKind::Bf16, values).unwrap(),
        8 => pack(WeightKind::Q8_0, values).unwrap(),
        2 => blocks(&|block| {
            let d = block.iter().fold(0f32, |m, v| m.max(v.abs())) / 7.0;
            let codes = block.iter().map(|v| (v / d + 8.0).round() as u8).collect();
            half(d).into_iter().chain(nibbles(codes)).collect()
        }),
        3 => blocks(&|block| {
            let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            let d = (high - low) / 15.0;
            let codes = block.iter().map(|v| ((v - low) / d).round() as u8).collect();
            half(d).into_iter().chain(half(low)).chain(nibbles(codes)).collect()
        }),
        _ => panic!("type {kind}"),
    }
}

/// What those bytes mean.
pub fn dequantize(kind: u32, bytes: &[u8]) -> Vec<f32> {
    let half = |b: &[u8]| to_f32("", Dtype::F16, &b[..2]).unwrap()[0];
    let nibble = |b: &[u8], i: usize| f32::from(b[i % 16] >> (4 * (i / 16)) & 15);
    match kind {
        0 => to_f32("", Dtype::F32, bytes).unwrap(),
        1 => to_f32("", Dtype::F16, bytes).unwrap(),
        30 => to_f32("", Dtype::BF16, bytes).unwrap(),
        8 => bytes.chunks(34).flat_map(|b| (0..32).map(move |i| half(b) * f32::from(b[2 + i] as i8))).collect(),
        2 => bytes.chunks(18).flat_map(|b| (0..32).map(move |i| half(b) * (nibble(&b[2..], i) - 8.0))).collect(),
        3 => {
            bytes.chunks(20).flat_map(|b| (0..32).map(move |i| half(b) * nibble(&b[4..], i) + half(&b[2..]))).collect()
        }
        _ => panic!("type {kind}"),
    }
}

/// A file of version 3.
pub fn file(metadata: &[(String, Value)], tensors: &[Tensor]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut out, key);
        match value {
            Value::U32(v) => out.extend([4u32.to_le_bytes(), v.to_le_bytes()].concat()),
            Value::F32(v) => out.extend([6u32.to_le_bytes(), v.to_le_bytes()].concat()),
            Value::Text(v) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, v);
            }
            Value::Texts(all) => {
                out.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
                out.extend((all.len() as u64).to_le_bytes());
                all.iter().for_each(|v| text(&mut out, v));
            }
        }
    }
    let mut offset = 0u64;
    for tensor in tensors {
        text(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend(tensor.kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += tensor.bytes.len().next_multiple_of(32) as u64;
    }
    for tensor in tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&tensor.bytes);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out
}
