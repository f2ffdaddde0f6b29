// What a strict TypeScript project makes of the declarations, without help of any other package's.
import {
  adamw, type Batch, crossEntropy, Gpu, type GpuFeature, init, LoraError, type LoraErrorCode, LoraLinear, mse, Optimizer, type StepRecord, tanh, Tensor, Trainer,
} from "lora-webgpu";

export async function use(device: GPUDevice, buffer: GPUBuffer): Promise<Float32Array> {
  await init(new URL("./lora_webgpu_bg.wasm", "https://example.org"));
  const features: GpuFeature[] = ["subgroups"];
  const own = await Gpu.request({ powerPreference: "high-performance", features });
  const gpu = await Gpu.fromDevice(device);
  const theirs: GPUDevice = own.device;
  const layer = new LoraLinear(gpu, { name: "fc", inFeatures: 4, outFeatures: 2, rank: 1, alpha: 2, weight: new Float32Array(8) });
  const x = Tensor.fromBuffer(gpu, { buffer, shape: [3, 4], byteOffset: 256, dtype: "float32" });
  const handed: GPUBuffer = x.buffer;
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw({ lr: 1e-3 }) });
  const trainer = new Trainer(own, { layers: [tanh()], loss: mse(), optimizer: adamw() });
  const batches: Batch[] = [{ x: new Float32Array(12), target: new Float32Array(12) }];
  for await (const record of trainer.train(batches, { epochs: 1 })) {
    const { step, loss }: StepRecord = record;
    if (step > 3 && Number.isNaN(loss)) break;
  }
  try {
    crossEntropy({ ignoreIndex: -100 });
  } catch (error) {
    if (error instanceof LoraError) {
      const code: LoraErrorCode = error.code;
      if (code === "foreign-buffer" || code === "missing-feature") throw error;
    }
  }
  const things: Disposable[] = [optimizer, layer, trainer, gpu, x];
  for (const thing of things) thing[Symbol.dispose]();
  void [theirs, handed];
  return x.read();
}

// @ts-expect-error: an unknown option
void Gpu.request({ power: "high" });
// @ts-expect-error: an unknown feature
void Gpu.request({ features: ["wings"] });
// @ts-expect-error: an unknown code
export const wrong: LoraErrorCode = "nothing";
