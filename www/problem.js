// The toy problem: a frozen weight W, a hidden low-rank change ΔW* of it, and random inputs. No GPU here.

/** Random numbers from a seed: mulberry32, uniform in [0, 1). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
  };
}

/** Fills `array` with numbers of mean 0 and variance `deviation²`, normally distributed (Box–Muller). */
export function fillNormal(array, uniform, deviation = 1) {
  for (let i = 0; i < array.length; i += 2) {
    const radius = deviation * Math.sqrt(-2 * Math.log(1 - uniform()));
    const angle = 2 * Math.PI * uniform();
    array[i] = radius * Math.cos(angle);
    if (i + 1 < array.length) array[i + 1] = radius * Math.sin(angle);
  }
  return array;
}

// `count` orthonormal vectors of length n, random but smooth, so that the eye recognises the heat map: random
// combinations of the lowest cosines, made orthogonal (Gram–Schmidt) while they are still coefficients.
function smoothVectors(n, count, uniform) {
  const waves = Math.min(n, Math.max(count, 10));
  const coefficients = [];
  while (coefficients.length < count) {
    const c = fillNormal(new Float64Array(waves), uniform);
    for (const other of coefficients) {
      const dot = c.reduce((sum, value, k) => sum + value * other[k], 0);
      c.forEach((_, k) => { c[k] -= dot * other[k]; });
    }
    const norm = Math.hypot(...c);
    if (norm > 1e-6) coefficients.push(c.map((value) => value / norm));
  }
  return coefficients.map((c) => Float64Array.from({ length: n }, (_, i) => c.reduce((sum, value, k) =>
    sum + value * Math.sqrt((k === 0 ? 1 : 2) / n) * Math.cos((Math.PI * (i + 0.5) * k) / n), 0)));
}

/**
 * A problem whose answer is known: `y = x·(W + ΔW*)ᵀ` with `W, ΔW* [outFeatures, inFeatures]`, without noise.
 *
 * `ΔW* = Σ σᵢ·uᵢ·vᵢᵀ`, with `Σ σᵢ² = outFeatures`: for inputs of variance 1 the frozen layer alone then has a loss of 1, and
 * an adapter of rank r cannot get below `Σ_{i>r} σᵢ² / outFeatures` (Eckart–Young).
 */
export function makeProblem({ inFeatures, outFeatures, targetRank, seed }) {
  const uniform = random(seed);
  const weight = fillNormal(new Float32Array(outFeatures * inFeatures), uniform, 1 / Math.sqrt(inFeatures));
  const u = smoothVectors(outFeatures, targetRank, uniform), v = smoothVectors(inFeatures, targetRank, uniform);
  const raw = u.map((_, i) => 0.85 ** i);
  const size = Math.sqrt(outFeatures) / Math.hypot(...raw);
  const sigma = raw.map((value) => value * size);
  const delta = new Float32Array(outFeatures * inFeatures);
  for (let i = 0; i < delta.length; i += 1) {
    const row = Math.floor(i / inFeatures), column = i % inFeatures;
    delta[i] = sigma.reduce((sum, s, k) => sum + s * u[k][row] * v[k][column], 0);
  }
  return { weight, delta, sigma, uniform };
}

/** The least loss that an adapter of this rank can reach, on average. */
export const leastLoss = ({ sigma }, rank, outFeatures) => sigma.slice(rank).reduce((sum, s) => sum + s * s, 0) / outFeatures;

/** `‖x‖`, the root of the sum of squares. */
export const norm = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));

/** `‖values − target‖ / ‖target‖` */
export function distance(values, target) {
  let difference = 0, size = 0;
  for (let i = 0; i < target.length; i += 1) {
    difference += (values[i] - target[i]) ** 2;
    size += target[i] ** 2;
  }
  return Math.sqrt(difference / size);
}
