const script = (path) => new Promise((resolve, reject) => {
  const element = document.createElement("script");
  Object.assign(element, { src: new URL(path, import.meta.url).href, onload: resolve, onerror: () => reject(new Error(path)) });
  document.head.append(element);
});

export async function load() {
  await script("./node_modules/@tensorflow/tfjs/dist/tf.min.js");
  await script("./node_modules/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js");
}

export async function start({ tokens, width, rank, scale, lr, layers, x, target }) {
  await tf.setBackend("webgpu");
  await tf.ready();
  const input = tf.tensor2d(x, [tokens, width]);
  const goal = tf.tensor2d(target, [tokens, width]);
  const weights = layers.map(({ w, a, b }) => ({
    w: tf.tensor2d(w, [width, width]),
    a: tf.variable(tf.tensor2d(a, [rank, width])),
    b: tf.variable(tf.tensor2d(b, [width, rank])),
  }));
  const linear = (x, { w, a, b }) =>
    tf.add(tf.matMul(x, w, false, true), tf.mul(tf.matMul(tf.matMul(x, a, false, true), b, false, true), scale));
  const loss = () => tf.losses.meanSquaredError(goal, linear(tf.tanh(linear(input, weights[0])), weights[1]));
  const optimizer = tf.train.adam(lr, 0.9, 0.999, 1e-8);
  const variables = weights.flatMap(({ a, b }) => [a, b]);
  return async () => {
    const value = optimizer.minimize(loss, true, variables);
    const [number] = await value.data();
    value.dispose();
    return number;
  };
}
