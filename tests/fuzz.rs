//! What the fuzz targets found is kept in `fuzz/corpus` and replayed here, natively: no panic, no hang, no more memory than a
//! multiple of the input. `npm run fuzz` searches on.
#![cfg(not(target_arch = "wasm32"))]

#[path = "fuzz/counting.rs"]
mod counting;
#[path = "common/gguf.rs"]
#[allow(dead_code)] // each binary takes a part
mod gguf;
#[path = "fuzz/seeds.rs"]
mod seeds;
#[path = "fuzz/targets.rs"]
mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use seeds::seeds;
use targets::{SLACK, TARGETS};

/// For one input; unoptimised and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Name and bytes of all inputs of a target: its seeds, and the files of its folder.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> =
        seeds(target).into_iter().enumerate().map(|(i, bytes)| (format!("seed {i}"), bytes)).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    all.extend(paths.into_iter().map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        (path.file_name().unwrap().to_str().unwrap().into(), bytes)
    }));
    all
}

#[test]
fn what_the_fuzzers_found_neither_panics_nor_hangs_nor_takes_more_memory_than_the_input() {
    let mut bytes = 0;
    for (name, target, factor) in TARGETS {
        let (inputs, mut worst, mut slowest) = (inputs(name), 0f64, Duration::ZERO);
        //assert!(inputs.len() > seeds(name).len(), "{name}: there is no corpus");
        for (input, data) in &inputs {
            let start = Instant::now();
            let most = counting::most(|| target(data));
            assert!(most <= factor * data.len() + SLACK, "{name}, {input}: {most} bytes held for {}", data.len());
            assert!(start.elapsed() < PATIENCE, "{name}, {input}: {:?}", start.elapsed());
            worst = worst.max(most.saturating_sub(64 << 10) as f64 / data.len().max(1) as f64);
            slowest = slowest.max(start.elapsed());
            bytes += data.len();
        }
        println!(
            "{name}: {} inputs, at most {worst:.0} times their bytes and 64 KiB, {slowest:?} for one",
            inputs.len()
        );
    }
    assert!(bytes < 400 << 10, "the corpora are to be small: {bytes} bytes");
}

#[test]
fn good_files_are_read() {
    use lora_webgpu::io::{Adapter, AdapterConfig, safetensors::SafetensorsFile};
    let read = |target: &str, good: &dyn Fn(&[u8]) -> bool| seeds(target).iter().filter(|data| good(data)).count();
    let two = |data: &[u8]| data[2..].split_at(u16::from_le_bytes([data[0], data[1]]).into()).0.len() + 2;
    assert_eq!(read("adapter", &|data| Adapter::read(&data[2..two(data)], &data[two(data)..], true).is_ok()), 5);
    assert_eq!(read("adapter_config", &|data| AdapterConfig::parse(data).is_ok()), 6);
    assert_eq!(read("safetensors", &|data| SafetensorsFile::parse("f", data).is_ok()), 4);
    assert_eq!(read("model_config", &|data| lora_webgpu::ModelConfig::parse(data).is_ok()), 4);
    assert_eq!(read("mlx", &|data| Adapter::from_mlx(&data[2..two(data)], &data[two(data)..]).is_ok()), 2);
}

/// Writes the seeds where LORA_WRITE_SEEDS says, for the fuzzer.
#[test]
fn seeds_are_written_when_asked() {
    let Some(folder) = std::env::var_os("LORA_WRITE_SEEDS") else { return };
    for (name, ..) in TARGETS {
        let folder = Path::new(&folder).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (i, bytes) in seeds(name).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i}")), bytes).unwrap();
        }
    }
}
