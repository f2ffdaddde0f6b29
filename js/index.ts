/**
 * LoRA fine-tuning inside a web page, on WebGPU.
 *
 * @packageDocumentation
 */
export { LoraError, type LoraErrorCode } from "./error.js";
export { Gpu, type GpuInfo, type GpuOptions, type GpuStats } from "./gpu.js";
export { type AdapterOptions, LoraGrad, LoraLinear, type LoraLinearOptions, LoraWeight } from "./lora.js";
export { adamw, Optimizer, type OptimizerSpec, sgd } from "./optim.js";
export { Recording } from "./recording.js";
export { Tensor, type TensorOptions } from "./tensor.js";
export { init, type WasmSource } from "./wasm.js";
