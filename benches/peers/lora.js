import { adamw, Gpu, init, LoraLinear, mse, tanh, Trainer } from "../../dist/index.js";

export const load = init;

export async function start({ width, rank, scale, lr, layers, x, target }) {
  const gpu = await Gpu.request();
  const [first, second] = layers.map(({ w, a, b }) => {
    const layer = new LoraLinear(gpu, { weight: w, inFeatures: width, outFeatures: width, rank, alpha: scale * rank });
    layer.a.write(a);
    layer.b.write(b);
    return layer;
  });
  const trainer = new Trainer(gpu, { layers: [first, tanh(), second], loss: mse(), optimizer: adamw({ lr, weightDecay: 0 }) });
  return async () => (await trainer.step({ x, target })).loss;
}
