//! Files: bytes in, bytes out, no GPU.
//!
//! [`safetensors`] reads and writes the container, [`Adapter`] is what PEFT's two files hold.

mod adapter;
mod combine;
mod config;
mod formats;
pub mod gguf;
mod init;
pub(crate) mod json;
mod linalg;
mod merge;
mod pattern;
pub mod safetensors;

/// The numbers below `count`, sorted by `less(i, j)`; those that are equal stay in their order. One sort for all: the
/// library's is compiled anew for each type.
pub(crate) fn order(count: usize, less: &mut dyn FnMut(usize, usize) -> bool) -> Vec<usize> {
    let mut now: Vec<usize> = (0..count).collect();
    let mut next = now.clone();
    let mut width = 1;
    while width < count {
        for start in (0..count).step_by(2 * width) {
            let (middle, end) = ((start + width).min(count), (start + 2 * width).min(count));
            let (mut i, mut j) = (start, middle);
            for slot in &mut next[start..end] {
                let left = i < middle && (j == end || !less(now[j], now[i]));
                let from = if left { &mut i } else { &mut j };
                *slot = now[*from];
                *from += 1;
            }
        }
        std::mem::swap(&mut now, &mut next);
        width *= 2;
    }
    now
}

/// The first of the texts that is `wanted`, by their sorted order.
pub(crate) fn find<'a>(order: &[usize], text: &dyn Fn(usize) -> &'a str, wanted: &str) -> Option<usize> {
    let at = order.partition_point(|i| text(*i) < wanted);
    order.get(at).copied().filter(|i| text(*i) == wanted)
}

/// Two neighbours in a sorted order that are equal, as one of them.
pub(crate) fn twice<'a>(count: usize, text: &dyn Fn(usize) -> &'a str) -> Option<usize> {
    let order = order(count, &mut |i, j| text(i) < text(j));
    order.windows(2).find(|pair| text(pair[0]) == text(pair[1])).map(|pair| pair[0])
}

pub(crate) use adapter::name_in_model;
pub use adapter::{Adapter, AdapterKind, AdapterModule, OtherTensor, Report};
pub use combine::Combination;
pub use config::{AdapterConfig, InitLoraWeights, ModelModule, ModuleConfig, ModuleKind, NewConfig, Targets};
pub use formats::{Format, HesperWidths};
pub use gguf::GgufModel;
pub use init::{Start, embedding_b, initialize};
