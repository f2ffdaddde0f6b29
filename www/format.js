// Numbers for people.

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** 10⁻⁹ */
export const power = (exponent) => `10${String(exponent).replace(/./g, (c) => SUPERSCRIPT[c])}`;

/** 0.0312, 1,024, 3.4 × 10⁻⁹ */
export function format(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 0.001 && size < 1e5) return value.toLocaleString("en", { maximumSignificantDigits: digits });
  const exponent = Math.floor(Math.log10(size));
  return `${(value / 10 ** exponent).toFixed(digits - 2)}\u00a0×\u00a0${power(exponent)}`;
}

/** 12.5 %, < 0.01 %: never longer than its place */
export const percent = (share) => (share > 0 && share < 1e-4 ? "<\u00a00.01\u00a0%" : `${format(100 * share)}\u00a0%`);

/** 3 steps, 1 step */
export const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
