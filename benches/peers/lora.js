import { adamw, Gpu, init, LoraLinear, mse, tanh, Tensor, Trainer } from "../../dist/index.js";

export const load = init;

export async function start({ tokens, width, rank, scale, lr, layers, x, target }) {
  const gpu = await Gpu.request();
  const [first, second] = layers.map(({ w, a, b }) => {
    const layer = new LoraLinear(gpu, { weight: w, inFeatures: width, outFeatures: width, rank, alpha: scale * rank });
    layer.a.write(a);
    layer.b.write(b);
    return layer;
  });
  const trainer = new Trainer(gpu, { layers: [first, tanh(), second], loss: mse(), optimizer: adamw({ lr, weightDecay: 0 }) });
  // Inputs and targets stay on the GPU, as those of the other libraries do.
  const onGpu = (data) => new Tensor(gpu, { shape: [tokens, width], data });
  const batch = { x: onGpu(x), target: onGpu(target) };
  return async () => (await trainer.step(batch)).loss;
}
