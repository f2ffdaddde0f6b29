// Singular values, of the hidden change and of what the adapter has learnt, as pairs of bars.

/**
 * The singular values of `scaling·B·A`, the largest first, for A [rank, inFeatures] and B [outFeatures, rank]: the roots of
 * the eigenvalues of the small matrix `Lᵀ·(BᵀB)·L`, where `L·Lᵀ = A·Aᵀ`.
 */
export function singularValues(a, b, rank, scaling) {
  const inFeatures = a.length / rank, outFeatures = b.length / rank;
  const square = (element) => Array.from({ length: rank }, (_, i) => Float64Array.from({ length: rank }, (_, j) => element(i, j)));
  const sum = (n, term) => { let total = 0; for (let k = 0; k < n; k += 1) total += term(k); return total; };
  const gramA = square((i, j) => sum(inFeatures, (k) => a[i * inFeatures + k] * a[j * inFeatures + k]));
  const gramB = square((i, j) => sum(outFeatures, (k) => b[k * rank + i] * b[k * rank + j]));
  const l = square(() => 0);
  for (let i = 0; i < rank; i += 1) {
    for (let j = 0; j <= i; j += 1) {
      const rest = gramA[i][j] - sum(j, (k) => l[i][k] * l[j][k]);
      l[i][j] = i === j ? Math.sqrt(Math.max(rest, 0)) : l[j][j] > 0 ? rest / l[j][j] : 0;
    }
  }
  const half = square((i, j) => sum(rank, (k) => gramB[i][k] * l[k][j]));
  const eigenvalues = symmetricEigenvalues(square((i, j) => sum(rank, (k) => l[k][i] * half[k][j])));
  return eigenvalues.map((value) => scaling * Math.sqrt(Math.max(value, 0))).sort((x, y) => y - x);
}

/** Jacobi's method: rotations that make one pair of elements zero after the other. */
function symmetricEigenvalues(m) {
  const n = m.length;
  for (let sweep = 0; sweep < 30; sweep += 1) {
    let off = 0, all = 0;
    m.forEach((row, i) => row.forEach((value, j) => { all += value * value; if (i !== j) off += value * value; }));
    if (off <= 1e-28 * all) break;
    for (let p = 0; p < n; p += 1) {
      for (let q = p + 1; q < n; q += 1) {
        if (m[p][q] === 0) continue;
        const theta = (m[q][q] - m[p][p]) / (2 * m[p][q]);
        const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1), s = t * c;
        for (let k = 0; k < n; k += 1) [m[k][p], m[k][q]] = [c * m[k][p] - s * m[k][q], s * m[k][p] + c * m[k][q]];
        for (let k = 0; k < n; k += 1) [m[p][k], m[q][k]] = [c * m[p][k] - s * m[q][k], s * m[p][k] + c * m[q][k]];
      }
    }
  }
  return m.map((row, i) => row[i]);
}

/** Draws `learnt` beside `target`, places beyond the rank being out of the adapter's reach. */
export function drawSpectrum(element, target, learnt, rank) {
  const places = Math.max(target.length, rank, 4);
  const largest = Math.max(...target, ...learnt);
  while (element.children.length < places) {
    const place = element.appendChild(document.createElement("span"));
    place.append(document.createElement("i"), document.createElement("b"));
  }
  while (element.children.length > places) element.lastChild.remove();
  [...element.children].forEach((place, i) => {
    place.classList.toggle("beyond", i >= rank);
    [target, learnt].forEach((values, bar) => { place.children[bar].style.height = `${(100 * (values[i] ?? 0)) / largest}%`; });
  });
}
