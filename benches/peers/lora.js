import { adamw, Gpu, init, LoraLinear, mse, tanh, Tensor, Trainer } from "../../dist/index.js";

export const load = init;

// Inputs and targets stay on the GPU, as those of the other libraries do.
const onGpu = (data, gpu, shape) => new Tensor(gpu, { shape, data });

export async function start({ tokens, width, rank, scale, lr, layers, x, target }, keep = onGpu) {
  const gpu = await Gpu.request();
  const [first, second] = layers.map(({ w, a, b }) => {
    const layer = new LoraLinear(gpu, { weight: w, inFeatures: width, outFeatures: width, rank, alpha: scale * rank });
    layer.a.write(a);
    layer.b.write(b);
    return layer;
  });
  const trainer = new Trainer(gpu, { layers: [first, tanh(), second], loss: mse(), optimizer: adamw({ lr, weightDecay: 0 }) });
  const shape = [tokens, width];
  const batch = { x: keep(x, gpu, shape), target: keep(target, gpu, shape) };
  return async () => (await trainer.step(batch)).loss;
}
