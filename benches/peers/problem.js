// The same work for every library: two LoRA layers with tanh between, mean squared error, Adam, the loss read each step.
export function makeProblem({ tokens, width, rank, seed = 1 }) {
  let state = seed;
  const numbers = (length, scale) => Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return scale * (state / 2 ** 31 - 1);
  });
  const layer = () => ({ w: numbers(width * width, Math.sqrt(3 / width)), a: numbers(rank * width, 1 / Math.sqrt(width)), b: numbers(width * rank, 0.05) });
  return { tokens, width, rank, scale: 2, lr: 1e-3, layers: [layer(), layer()], x: numbers(tokens * width, 1), target: numbers(tokens * width, 1) };
}

/** Runs `steps` steps of `start(problem)`, which gives a function that makes one and resolves to its loss. */
export async function run(start, { steps, ...options }) {
  const problem = makeProblem(options);
  const began = performance.now();
  const step = await start(problem);
  const losses = [await step()];
  const firstMs = performance.now() - began;
  const times = [];
  for (let i = 0; i < steps; i++) {
    const at = performance.now();
    losses.push(await step());
    times.push(performance.now() - at);
  }
  return { firstMs, times, losses };
}
