#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lora_webgpu_fuzz::run("mlx", data));
