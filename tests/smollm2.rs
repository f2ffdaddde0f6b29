//! The real SmolLM2-135M from its GGUF file: `npm run test:model` fetches it and names it in LORA_SMOLLM2.
#![cfg(not(target_arch = "wasm32"))]

mod common;
mod reference;

use std::fs::File as Disk;
use std::io::{Read, Seek, SeekFrom};
use std::rc::Rc;
use std::time::Instant;

use common::files::{File, bytes};
use common::{gpu, say};
use lora_webgpu::io::gguf::GgufHeader;
use lora_webgpu::io::{Adapter, AdapterConfig, NewConfig};
use lora_webgpu::{
    AdamW, CausalLM, Gpu, Input, LanguageTrainer, ModelConfig, ModelLoader, OptimizerKind, OptimizerOptions, Sampling,
    SequencesOptions, Store, TokenBatch, gguf_sources, shift_labels,
};

/// The model, its tensors read one after the other.
fn load(gpu: &Gpu, path: &str) -> Rc<CausalLM> {
    let mut disk = Disk::open(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let len = disk.metadata().unwrap().len();
    let mut start = vec![0; 8 << 20];
    disk.read_exact(&mut start).unwrap();
    let header = GgufHeader::parse(path, &start, len).unwrap();
    let mut loader =
        ModelLoader::new(gpu, ModelConfig::from_gguf(&header).unwrap(), gguf_sources(0, &header), Store::AsIs).unwrap();
    for i in 0..loader.sources().len() {
        let range = loader.sources()[i].range.clone();
        disk.seek(SeekFrom::Start(range.start)).unwrap();
        let mut left = (range.end - range.start) as usize;
        while left > 0 {
            let mut piece = vec![0; left.min(4 << 20)];
            disk.read_exact(&mut piece).unwrap();
            loader.write(i, &piece).unwrap();
            left -= piece.len();
        }
    }
    Rc::new(loader.finish().unwrap())
}

/// The largest difference, as a share of the largest golden number.
fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let off = got.iter().zip(expected).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY });
    off.fold(0.0, f32::max) / largest
}

#[test]
#[ignore = "npm run test:model: needs the model's file, and minutes"]
fn the_real_smollm2_computes_pytorch_s_numbers() {
    pollster::block_on(async {
        let path = std::env::var("LORA_SMOLLM2").expect("LORA_SMOLLM2 names the GGUF file: npm run test:model");
        let gpu = gpu().await;
        let trace = File::read("smollm2/trace.safetensors").await;
        let begin = Instant::now();
        let said = |text: String| say(&format!("SmolLM2-135M, {:.0} s: {text}", begin.elapsed().as_secs_f64()));
        let model = load(&gpu, &path);
        // An embedding in q8_0 and linear layers in q4_1.
        said(format!("{} bytes of weights on the GPU", model.bytes()));

        let [batch, tokens] = <[usize; 2]>::try_from(trace.shape("input_ids")).unwrap();
        let (ids, mask) = (trace.labels("input_ids"), trace.labels("attention_mask"));
        let classes = trace.shape("logits_row0_last8")[1];
        let first: Vec<i32> = ids[..tokens].iter().zip(&mask).filter(|(_, m)| **m == 1).map(|(id, _)| *id).collect();
        let logits = model.logits(1, &Input { input_ids: &first, ..Input::default() }).await.unwrap();
        let golden = trace.tensor("logits_row0_last8");
        let off = worst(&logits[logits.len() - golden.len()..], golden);
        said(format!("{} rows of {classes} logits, off by {off:.1e} of the largest (2e-5)", golden.len() / classes));
        assert!(off <= 2e-5);

        let greedy = trace.labels("greedy_ids");
        let prompt = trace.number("prompt_len") as usize;
        let generation = model.generate(&greedy[..prompt], greedy.len() - prompt, &Sampling::default()).unwrap();
        let mut text = greedy[..prompt].to_vec();
        while let Some(id) = generation.next().await.unwrap() {
            text.push(id);
        }
        generation.destroy();
        said(format!("{} greedy tokens", text.len() - prompt));
        assert_eq!(text, greedy);

        let own: Vec<i32> = ids.iter().zip(&mask).map(|(id, m)| if *m == 1 { *id } else { -100 }).collect();
        let labels = shift_labels(tokens, &own);
        let input = Input { input_ids: &ids, attention_mask: Some(&mask), labels: Some(&labels), position_ids: None };
        let step = TokenBatch { batch, input };
        let adam = AdamW { weight_decay: trace.number("weight_decay"), ..AdamW::default() };
        let options = OptimizerOptions::new(OptimizerKind::AdamW(adam), trace.number("lr"));
        let losses = |kind: &str| -> Vec<f32> {
            trace.meta("losses")[kind].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap() as f32).collect()
        };

        // All linear layers: B is zero, so that the first loss is the base's whatever A is.
        let new = NewConfig {
            rank: 8,
            alpha: 16.0,
            target_modules: &["all-linear".into()],
            ranks: &[],
            alphas: &[],
            base_model: None,
        };
        let mut config = AdapterConfig::new(&new).unwrap();
        config.set("target_modules", "\"all-linear\"").unwrap();
        let all = model.new_adapter(&config, 1).unwrap();
        let trainer = LanguageTrainer::new(&model, options, SequencesOptions::default(), 0).unwrap();
        let (loss, _) = trainer.evaluate(&step).await.unwrap();
        let off = (loss - losses("all")[0]).abs();
        said(format!("{} adapters on all linear layers, loss {loss}, off by {off:.1e} (2e-5)", all.len()));
        assert!(off <= 2e-5);
        trainer.destroy();
        all.iter().for_each(|lora| model.remove_lora(lora));

        let folder = "smollm2/adapter_start_qv";
        let config = bytes(&format!("{folder}/adapter_config.json")).await;
        let weights = bytes(&format!("{folder}/adapter_model.safetensors")).await;
        let adapter = Adapter::read(&config, &weights, true).unwrap();
        let estimate = model.estimate(&adapter.config, batch, tokens, true).unwrap();
        model.load_adapter(&adapter).unwrap();
        let trainer = LanguageTrainer::new(&model, options, SequencesOptions::default(), 0).unwrap();
        let counted = labels.iter().filter(|label| **label != -100).count() as f32;
        let mut most = 0.0f32;
        for attempt in 0..losses("qv").len() {
            trainer.step(&[step]).await.unwrap();
            if attempt > 0 {
                continue;
            }
            let held = gpu.memory().bytes;
            said(format!("{} bytes estimated, {held} held", estimate.total()));
            assert!((estimate.total() as f64 / held as f64 - 1.0).abs() < 0.1);
            let mut compared = 0;
            for lora in model.loras() {
                let key = format!("grad.base_model.model.{}.lora_B.weight", lora.name().unwrap());
                if !trace.has(&key) {
                    continue;
                }
                let got: Vec<f32> = lora.grad().b.read().await.unwrap().iter().map(|g| g / counted).collect();
                let off = worst(&got, trace.tensor(&key));
                said(format!("{key} off by {off:.1e} of the largest (1e-4)"));
                most = most.max(off);
                compared += 1;
            }
            assert_eq!(compared, trace.names().filter(|name| name.starts_with("grad.")).count());
        }
        let got: Vec<f32> = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect();
        let off: Vec<f32> = got.iter().zip(losses("qv")).map(|(a, b)| (a - b).abs()).collect();
        said(format!("losses {got:?}, off by {off:?} (2e-5, later 2e-4)"));
        assert!(most <= 1e-4 && off[0] <= 2e-5 && off.iter().all(|off| *off <= 2e-4));
        trainer.destroy();
        model.destroy();
    });
}
