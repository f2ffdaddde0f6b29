//! How the work of a step grows with tokens, width and rank: counted on the GPU, not timed.
//!
//! Every kernel is compiled from its own text with a counter in it, of the invocations that begin and of the rounds of their
//! loops. What is rounded up to whole tiles, workgroups or vectors keeps the bounds exactly, since ⌈2n/t⌉ ≤ 2·⌈n/t⌉: there
//! is no allowance in them.
#![cfg(not(target_arch = "wasm32"))] // in a browser the same numbers after minutes

mod common;
mod reference;

use std::collections::BTreeMap;
use std::rc::Rc;

use common::{Rng, fresh_gpu, say};
use lora_webgpu::kernels::{Kernel, all};
use lora_webgpu::{
    AdamW, CausalLM, FrozenLinear, Gpu, Input, LanguageTrainer, LoraConfig, LoraLinear, Loss, ModelConfig, Optimizer,
    OptimizerKind, OptimizerOptions, Profile, Recording, SequencesOptions, Tensor, TokenBatch, shift_labels,
};

/// The kernel's `text`, counting in the elements `index` of a buffer behind its parameters. Rounds are counted where they begin,
/// with main's as one; words where a body names a storage buffer, whether or not a condition keeps it from that.
fn counting(kernel: &Kernel, text: &str, index: usize) -> String {
    let text: String = text.lines().map(|line| format!("{}\n", line.split("//").next().unwrap())).collect();
    let text = text.as_str();
    let words: Vec<(String, u32)> =
        kernel.buffers.iter().map(|(name, _)| (format!("{name}["), width(text, name))).collect();
    // Of the bodies of functions and loops: where each begins, 1 if rounds of it count, the words that it names itself.
    let mut bodies: Vec<(usize, u32, u32)> = Vec::new();
    let mut open: Vec<Option<usize>> = Vec::new(); // for each brace the body that it opens
    let mut head = None;
    for (i, c) in text.char_indices() {
        let word_begins = !text[..i].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &text[i..];
        if word_begins && rest.starts_with("fn ") {
            head = Some(u32::from(rest.starts_with("fn main(")));
        } else if word_begins && ["for ", "while ", "loop "].iter().any(|word| rest.starts_with(word)) {
            head = Some(1);
        }
        match c {
            '{' => {
                open.push(head.take().map(|rounds| {
                    bodies.push((i + 1, rounds, 0));
                    bodies.len() - 1
                }));
            }
            '}' => drop(open.pop()),
            _ if word_begins => {
                let named = words.iter().find(|(name, _)| rest.starts_with(name));
                if let (Some((_, width)), Some(body)) = (named, open.iter().rev().find_map(|body| *body)) {
                    bodies[body].2 += width;
                }
            }
            _ => {}
        }
    }
    let binding = kernel.buffers.len() + 1;
    let mut out = String::new();
    let mut from = 0;
    for (begin, rounds, words) in bodies {
        out += &text[from..begin];
        for (what, count) in [(0, rounds), (1, words)].into_iter().filter(|(_, count)| *count > 0) {
            out += &format!(" atomicAdd(&counts[{}], {count}u);", 2 * index + what);
        }
        from = begin;
    }
    // At the end: a directive, as that of f16, comes before all declarations.
    format!(
        "{out}{}@group(0) @binding({binding}) var<storage, read_write> counts: array<atomic<u32>>;\n",
        &text[from..]
    )
}

/// Words of 4 bytes in an element of a storage buffer; those that are no arrays are a few words.
fn width(text: &str, name: &str) -> u32 {
    let declared = format!("> {name}: array<vec");
    text.find(&declared).map_or(1, |at| u32::from(text.as_bytes()[at + declared.len()] - b'0'))
}

/// A GPU whose kernels count.
struct Counter {
    gpu: Gpu,
    kernels: Vec<&'static str>,
    counts: wgpu::Buffer,
}

/// What a step did.
struct Work {
    dispatches: u64,
    /// Among its dispatches, those whose sums can be shared out, which takes a dispatch more for each.
    shared: u64,
    /// Of each kernel, the invocations and rounds of their loops, and the words that they read and write.
    counts: BTreeMap<&'static str, [u64; 2]>,
}

/// A layer's shape.
#[derive(Clone, Copy, Debug)]
struct Layer {
    tokens: usize,
    in_features: usize,
    out_features: usize,
    rank: usize,
}

/// A language model's, and a batch's.
#[derive(Clone, Copy, Debug)]
struct Language {
    batch: usize,
    tokens: usize,
    heads: usize,
    intermediate: usize,
    vocabulary: usize,
    rank: usize,
}

const HEAD_DIM: usize = 10;

fn adam() -> OptimizerOptions {
    OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-3)
}

impl Counter {
    /// `change` may change the text of a kernel of this name.
    async fn new(profile: Profile, change: impl Fn(&str, String) -> String) -> Counter {
        let gpu = fresh_gpu(Some(profile)).await;
        let kernels: Vec<&Kernel> = all().collect();
        let counts = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("counts"),
            size: 8 * kernels.len() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        gpu.count_in(counts.clone());
        for (i, kernel) in kernels.iter().enumerate() {
            gpu.replace_shader(kernel.name, counting(kernel, &change(kernel.name, kernel.text()), i));
        }
        Counter { gpu, kernels: kernels.iter().map(|kernel| kernel.name).collect(), counts }
    }

    /// What was counted since the last time.
    fn take(&self) -> BTreeMap<&'static str, [u64; 2]> {
        let (device, size) = (self.gpu.device(), self.counts.size());
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let read = device.create_buffer(&descriptor);
        let mut encoder = device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.counts, 0, &read, 0, size);
        encoder.clear_buffer(&self.counts, 0, None);
        self.gpu.queue().submit([encoder.finish()]);
        read.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let view = read.slice(..).get_mapped_range().unwrap();
        let count = |bytes: &[u8]| u64::from(u32::from_le_bytes(bytes.try_into().unwrap()));
        let counts = view.chunks_exact(8).map(|pair| [count(&pair[..4]), count(&pair[4..])]);
        self.kernels.iter().copied().zip(counts).filter(|(_, [rounds, _])| *rounds > 0).collect()
    }

    async fn work(&self, shared: u64, step: impl AsyncFn()) -> Work {
        self.take();
        let before = self.gpu.stats().dispatches;
        step().await;
        Work { dispatches: self.gpu.stats().dispatches - before, shared, counts: self.take() }
    }

    /// Forward, loss, backward with the gradient of the input, update.
    async fn layer(&self, shape: Layer) -> Work {
        let Layer { tokens, in_features, out_features, rank } = shape;
        let (gpu, rng) = (&self.gpu, &mut Rng(11));
        let w = rng.numbers(out_features * in_features);
        let base = FrozenLinear::new(gpu, out_features, in_features, &w, None).unwrap();
        let layer = LoraLinear::new(gpu, None, base, &LoraConfig::new(rank, 16.0)).unwrap();
        let (x, _) = rng.tensor(gpu, "x", &[tokens, in_features]);
        let (targets, _) = rng.tensor(gpu, "targets", &[tokens, out_features]);
        let d_output = Tensor::zeros(gpu, "d_output", &[tokens, out_features]).unwrap();
        let d_input = Tensor::zeros(gpu, "d_input", &[tokens, in_features]).unwrap();
        let loss = Tensor::zeros(gpu, "loss", &[1]).unwrap();
        let optimizer = Optimizer::new(gpu, &[&layer], adam()).unwrap();
        let rec = Recording::new(gpu);
        let output = layer.forward(&rec, &x).unwrap();
        Loss::Mse.record(&rec, &output, &targets, &d_output, &loss).unwrap();
        layer.backward(&rec, &x, &d_output, Some(&d_input)).unwrap();
        optimizer.step(&rec).unwrap();
        // dA and dB; what the base shares out its adapters add up.
        let work = self.work(2, async || rec.submit().await.unwrap()).await;
        drop(optimizer);
        layer.destroy();
        [x, targets, d_output, d_input, loss].iter().for_each(Tensor::destroy);
        work
    }

    /// A steady step of a trainer, adapters being on all linear layers.
    async fn language(&self, shape: Language) -> Work {
        let Language { batch, tokens, heads, intermediate, vocabulary, rank } = shape;
        let config = format!(
            r#"{{"model_type":"llama","vocab_size":{vocabulary},"hidden_size":{},"intermediate_size":{intermediate},
            "num_hidden_layers":2,"num_attention_heads":{heads},"num_key_value_heads":{heads},"head_dim":{HEAD_DIM},
            "max_position_embeddings":1024,"tie_word_embeddings":true}}"#,
            heads * HEAD_DIM
        );
        let (gpu, rng) = (&self.gpu, &mut Rng(5));
        let model = Rc::new(CausalLM::new(gpu, ModelConfig::parse(config.as_bytes()).unwrap()).unwrap());
        for parameter in model.parameters() {
            parameter.tensor.write(&rng.numbers(parameter.tensor.len())).unwrap();
        }
        let names: Vec<String> = model.linears().iter().map(|linear| linear.name().to_string()).collect();
        names.iter().for_each(|name| drop(model.add_lora(name, &LoraConfig::new(rank, 16.0)).unwrap()));
        let trainer = LanguageTrainer::new(&model, adam(), SequencesOptions::default(), 3).unwrap();
        let ids: Vec<i32> = (0..batch * tokens).map(|i| (i * 7919 % vocabulary) as i32).collect();
        let labels = shift_labels(tokens, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        let step = async || trainer.step(&[TokenBatch { batch, input }]).await.unwrap();
        // The first is submitted in pieces, each of which looks for room for its parameters.
        step().await;
        step().await;
        let (memory, before) = (gpu.memory(), gpu.stats());
        let work = self.work(2 * names.len() as u64 + 2, step).await;
        let after = gpu.stats();
        assert_eq!(gpu.memory(), memory, "{shape:?}");
        let made = |s: lora_webgpu::Stats| [s.buffers_created, s.bind_groups, s.pipelines];
        assert_eq!(made(after), made(before), "{shape:?}: a steady step makes nothing");
        assert_eq!(after.submits - before.submits, 1, "{shape:?}");
        // Ids, labels, positions and segments.
        assert_eq!(after.uploaded_bytes - before.uploaded_bytes, 4 * 4 * (batch * tokens) as u64, "{shape:?}");
        trainer.destroy();
        model.destroy();
        work
    }
}

/// By how much work may grow: kernels of this word, and others.
type Bounds = [(&'static str, u64); 2];
const TWICE: Bounds = [("", 2), ("", 2)];
const FOUR_TIMES: Bounds = [("", 4), ("", 4)];

/// That the work grew no more than it may, and the largest growth of a sum.
fn compare(what: &str, [first, before, after]: [&Work; 3], bounds: Bounds) -> Result<f64, String> {
    const PARTS: &str = "base/add_parts";
    let bound = |kernel: &str| bounds[usize::from(!kernel.contains(bounds[0].0))].1;
    // Sums in parts begin at some number of terms.
    let begin = after.counts.contains_key(PARTS) && !before.counts.contains_key(PARTS);
    let more = if after.counts.contains_key(PARTS) { after.shared } else { 0 };
    if after.dispatches > first.dispatches + more {
        return Err(format!("{what}: {} dispatches, then {}", first.dispatches, after.dispatches));
    }
    let same = before.counts.keys().eq(after.counts.keys());
    for (kernel, counts) in after.counts.iter().filter(|_| same) {
        let (was, most) = (before.counts[kernel], bound(kernel));
        if (0..2).any(|i| counts[i] > most * was[i]) {
            return Err(format!("{what}: {kernel}: {was:?}, then {counts:?}, more than {most} times as much"));
        }
    }
    // Where other kernels take over, what they read and write can be compared; their rounds are others.
    let most: u64 = before.counts.iter().map(|(kernel, counts)| bound(kernel) * counts[1]).sum();
    let sum = |work: &Work| -> u64 {
        work.counts.iter().filter(|(kernel, _)| !begin || **kernel != PARTS).map(|(_, counts)| counts[1]).sum()
    };
    if sum(after) > most {
        let [before, after] = [before, after].map(|work| &work.counts);
        return Err(format!("{what}: more than {most} words: {before:?}, then {after:?}"));
    }
    Ok(sum(after) as f64 / sum(before) as f64)
}

/// Doubles again and again with `double`, `times` times.
async fn chain<S: Copy + std::fmt::Debug>(
    what: &str,
    first: S,
    times: usize,
    bounds: Bounds,
    work: impl AsyncFn(S) -> Work,
    double: impl Fn(&mut S),
) -> Result<(), String> {
    let (mut shape, mut largest) = (first, 0.0f64);
    let mut works = vec![work(shape).await];
    for _ in 0..times {
        double(&mut shape);
        works.push(work(shape).await);
        let [.., before, after] = &works[..] else { unreachable!() };
        largest = largest.max(compare(&format!("{what}: up to {shape:?}"), [&works[0], before, after], bounds)?);
    }
    let [dispatches, end] = [0, times].map(|i| works[i].dispatches);
    say(&format!(
        "{what}: {first:?} doubled {times} times: at most {largest:.3} times the words; {dispatches} to {end} dispatches"
    ));
    Ok(())
}

async fn layers(counter: &Counter) -> Result<(), String> {
    let of = |tokens, in_features, out_features, rank| Layer { tokens, in_features, out_features, rank };
    let work = async |shape| counter.layer(shape).await;
    // From two tokens on: one has kernels of its own, and two pay for a whole tile of them.
    for first in [of(2, 64, 64, 8), of(3, 65, 31, 3)] {
        chain("tokens", first, 10, TWICE, work, |shape| shape.tokens *= 2).await?;
    }
    for tokens in [1, 33, 1100] {
        let times = if tokens > 1000 { 2 } else { 4 };
        for first in [of(tokens, 16, 24, 4), of(tokens, 7, 5, 3)] {
            chain("width", first, times, FOUR_TIMES, work, |shape| {
                shape.in_features *= 2;
                shape.out_features *= 2;
            })
            .await?;
            chain("in_features", first, times, TWICE, work, |shape| shape.in_features *= 2).await?;
            chain("out_features", first, times, TWICE, work, |shape| shape.out_features *= 2).await?;
        }
        for first in [of(tokens, 64, 64, 1), of(tokens, 65, 31, 3)] {
            chain("rank", first, times + 1, TWICE, work, |shape| shape.rank *= 2).await?;
        }
    }
    Ok(())
}

async fn languages(counter: &Counter) -> Result<(), String> {
    let plain = Language { batch: 1, tokens: 16, heads: 2, intermediate: 32, vocabulary: 96, rank: 4 };
    let awkward = Language { batch: 3, tokens: 7, heads: 3, intermediate: 35, vocabulary: 61, rank: 3 };
    let work = async |shape| counter.language(shape).await;
    for first in [plain, awkward] {
        chain("sequences", first, 3, TWICE, work, |shape| shape.batch *= 2).await?;
        // Each token looks at all before it.
        chain("tokens", first, 4, [("attention", 4), ("", 2)], work, |shape| shape.tokens *= 2).await?;
        chain("width", first, 2, FOUR_TIMES, work, |shape| {
            shape.heads *= 2;
            shape.intermediate *= 2;
        })
        .await?;
        chain("vocabulary", first, 3, TWICE, work, |shape| shape.vocabulary *= 2).await?;
        chain("rank", first, 3, TWICE, work, |shape| shape.rank *= 2).await?;
    }
    Ok(())
}

async fn all_chains(profile: Profile) {
    let counter = Counter::new(profile, |_, text| text).await;
    layers(&counter).await.unwrap_or_else(|e| panic!("{e}"));
    languages(&counter).await.unwrap_or_else(|e| panic!("{e}"));
}

#[pollster::test]
async fn doubling_what_a_step_is_given_at_most_doubles_its_work_and_adds_no_dispatch() {
    all_chains(Profile::Hardware).await;
}

#[pollster::test]
async fn the_same_of_the_kernels_for_software_adapters() {
    all_chains(Profile::Software).await;
}

#[pollster::test]
async fn a_kernel_that_does_more_is_caught() {
    // Rounds for each pair of tokens, and words that are read for each pair.
    let rounds = "for (var u = 0u; u < params.tokens * params.tokens; u++)";
    for (name, more) in
        [("lora/grad_a", format!("{rounds} {{}}")), ("lora/grad_b", format!("{rounds} {{ _ = h[0]; }}"))]
    {
        let head = "for (var t = local.y;";
        let change = |kernel: &str, text: String| match kernel == name {
            true => text.replace(head, &format!("{more}\n{head}")),
            false => text,
        };
        let counter = Counter::new(Profile::Hardware, change).await;
        let refused = layers(&counter).await.unwrap_err();
        assert!(refused.contains(&format!("{name}: ")), "{refused}");
    }
}
