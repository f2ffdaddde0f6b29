// What the examples beside a host library learn: which of four directions an input points to most. The host's frozen encoder
// hidden = tanh(x·W + b) knows nothing of it; the adapter on the layer after it learns it.
export const [tokens, inFeatures, hiddenFeatures, classes] = [64, 16, 128, 4];

// Numbers in ±scale that are the same every time.
let state = 1;
const numbers = (length, scale) => Float32Array.from({ length }, () => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return scale * (state / 2 ** 31 - 1);
});

/** The host's: `weight [inFeatures, hiddenFeatures]`, as both hosts multiply, and `bias [hiddenFeatures]`. */
export const encoder = { weight: numbers(inFeatures * hiddenFeatures, 0.5), bias: numbers(hiddenFeatures, 0.2) };

/** The frozen layer under the adapter, `[classes, hiddenFeatures]`. */
export const headWeight = numbers(classes * hiddenFeatures, 0.1);

/** `x [tokens, inFeatures]` and the label of each token. */
export const batches = Array.from({ length: 8 }, () => {
  const x = numbers(tokens * inFeatures, 1);
  const labels = Int32Array.from({ length: tokens }, (_, t) => {
    const score = (k) => x[t * inFeatures + 2 * k] - x[t * inFeatures + 2 * k + 1];
    return [0, 1, 2, 3].reduce((best, k) => (score(k) > score(best) ? k : best));
  });
  return { x, labels };
});

/** The share of tokens whose largest of `[tokens, classes]` probabilities is that of their label. */
export function accuracy(probabilities, labels) {
  const right = labels.filter((label, t) => {
    const row = probabilities.subarray(t * classes, (t + 1) * classes);
    return row.every((value) => value <= row[label]);
  });
  return right.length / labels.length;
}

/** The page around `run`: shows its progress, and leaves its result for whoever opened the page. */
export async function show(run) {
  const status = document.querySelector("#status");
  const steps = Number(new URLSearchParams(location.search).get("steps") ?? 200);
  try {
    globalThis.result = await run({ steps, report: ({ step, loss }) => { status.value = `step ${step}: loss ${loss.toFixed(3)}`; } });
    const { before, after } = globalThis.result;
    status.value = `of the tokens ${(100 * before.accuracy).toFixed(0)} % were right before the training, ${(100 * after.accuracy).toFixed(0)} % are after it`;
    document.documentElement.dataset.state = "done";
  } catch (error) {
    status.value = `${error.code ?? error.name}: ${error.message}`;
    document.documentElement.dataset.state = "failed";
    throw error;
  }
}
