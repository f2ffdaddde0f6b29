import { defaultDevice, init, jit, numpy as np, valueAndGrad } from "./node_modules/@jax-js/jax/dist/index.js";

export async function load() {
  await init("webgpu");
  defaultDevice("webgpu");
}

const [BETA1, BETA2, EPS] = [0.9, 0.999, 1e-8];

export async function start({ tokens, width, rank, scale, lr, layers, x, target }) {
  const array = (data, shape) => np.array(data).reshape(shape);
  const constants = [array(x, [tokens, width]), array(target, [tokens, width]), ...layers.map(({ w }) => array(w, [width, width]))];
  let parameters = layers.flatMap(({ a, b }) => [array(a, [rank, width]), array(b, [width, rank])]);
  let [m, v] = [0, 1].map(() => parameters.map((p) => np.zeros(p.shape)));
  // Every use but the last takes a reference.
  const linear = (x, w, a, b) =>
    np.matmul(x.ref, w.transpose()).add(np.matmul(np.matmul(x, a.transpose()), b.transpose()).mul(scale));
  const loss = (parameters, x, target, w1, w2) => {
    const [a1, b1, a2, b2] = parameters;
    const difference = linear(np.tanh(linear(x, w1, a1, b1)), w2, a2, b2).sub(target);
    return np.mean(difference.ref.mul(difference));
  };
  const update = jit((parameters, m, v, corrections, x, target, w1, w2) => {
    const [value, gradients] = valueAndGrad(loss)(parameters.map((p) => p.ref), x, target, w1, w2);
    const [c1, c2] = [corrections.ref.slice(0), corrections.slice(1)];
    const newM = m.map((m, i) => m.mul(BETA1).add(gradients[i].ref.mul(1 - BETA1)));
    const newV = v.map((v, i) => v.mul(BETA2).add(gradients[i].ref.mul(gradients[i]).mul(1 - BETA2)));
    const newP = parameters.map((p, i) =>
      p.sub(newM[i].ref.mul(c1.ref).mul(lr).div(np.sqrt(newV[i].ref.mul(c2.ref)).add(EPS))));
    c1.dispose();
    c2.dispose();
    return [value, newP, newM, newV];
  });
  let step = 0;
  return async () => {
    step += 1;
    const corrections = np.array([1 / (1 - BETA1 ** step), 1 / (1 - BETA2 ** step)]);
    const [value, ...next] = update(parameters, m, v, corrections, ...constants.map((c) => c.ref));
    [parameters, m, v] = next;
    return (await value.data())[0];
  };
}
