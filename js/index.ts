/// <reference lib="esnext.disposable" preserve="true" />
/**
 * LoRA fine-tuning inside a web page, on WebGPU.
 *
 * @packageDocumentation
 */
export { FrozenLinear, type FrozenLinearOptions, type WeightKind } from "./base.js";
export { type CheckpointInfo, Checkpoints, type Resumable } from "./checkpoints.js";
export { LoraError, type LoraErrorCode } from "./error.js";
export { Gpu, type GpuFeature, type GpuInfo, type GpuOptions, type GpuStats } from "./gpu.js";
export type { GpuProfile } from "./profile.js";
export { type AdapterInit, type AdapterOptions, LoraAdapter, LoraGrad, LoraLinear, type LoraLinearOptions, LoraWeight, type Trained } from "./lora.js";
export { type GgufInfo, type GgufValue, readGguf } from "./gguf.js";
export { bceWithLogits, crossEntropy, type LossSpec, mse } from "./loss.js";
export {
  CausalLM,
  type EstimateOptions,
  type GenerateOptions,
  LanguageTrainer,
  type LanguageTrainerOptions,
  type LanguageTrainOptions,
  type MemoryEstimate,
  type ModelAdapterOptions,
} from "./model.js";
export { gelu, layerNorm, type NetworkPart, relu, residual, rmsNorm, silu, tanh } from "./network.js";
export {
  adamw,
  constantSchedule,
  cosineSchedule,
  linearSchedule,
  Optimizer,
  type OptimizerSpec,
  type ScheduleSpec,
  sgd,
} from "./optim.js";
export {
  combine,
  type ExportFormat,
  type FileSource,
  importAdapter,
  type LoadPeftOptions,
  loadPeft,
  makePeft,
  merge,
  mergeInto,
  type ModelModule,
  modelModules,
  type ModuleSource,
  type OtherAdapter,
  PeftAdapter,
  type PeftFiles,
  PeftModule,
  type PeftModuleOptions,
  type PeftReport,
  type PeftSource,
  type PeftTensor,
  savePeft,
  type SavePeftOptions,
  type WeightType,
} from "./peft.js";
export { Recording } from "./recording.js";
export { clearModelCache, modelFile, type ModelFile, type ModelProgress, type ModelSource } from "./source.js";
export { type BufferOptions, Tensor, type TensorOptions } from "./tensor.js";
export {
  type ChatMessage,
  chunkTokens,
  type LineError,
  parseJsonl,
  type TextExample,
  type TokenExample,
  type TokenizedExamples,
  tokenizeExamples,
  type TokenizeOptions,
} from "./text.js";
export {
  type Batch,
  type Batches,
  type BatchIterable,
  Trainer,
  type TrainerOptions,
  type TrainOptions,
} from "./trainer.js";
export { type NotFinite, type RunOptions, type StepRecord, Training } from "./training.js";
export { init, type WasmSource } from "./wasm.js";

// `using` disposes of them too, where the engine has it.
declare module "./base.js" {
  interface FrozenLinear extends Disposable {}
}
declare module "./gpu.js" {
  interface Gpu extends Disposable {}
}
declare module "./lora.js" {
  interface LoraGrad extends Disposable {}
  interface LoraLinear extends Disposable {}
  interface LoraWeight extends Disposable {}
}
declare module "./model.js" {
  interface CausalLM extends Disposable {}
}
declare module "./optim.js" {
  interface Optimizer extends Disposable {}
}
declare module "./tensor.js" {
  interface Tensor extends Disposable {}
}
declare module "./training.js" {
  interface Training<B> extends Disposable {}
}
