// Curves over the steps on a logarithmic scale, drawn by uPlot.
import uPlot from "uplot";
import { power } from "./format.js";

const MOST_POINTS = 3000;

/** A chart of named series, `[{ colour: "--accent", dash?: [4, 4], points?: true }, …]`, in `element`. */
export class Chart {
  /** How many steps there is room for from the start. */
  steps = 50;
  #plot; #columns; #log; #skip = 1; #count = 0;

  constructor(element, series, { log = true } = {}) {
    this.#log = log;
    const css = (name) => () => getComputedStyle(element).getPropertyValue(name).trim();
    this.#columns = [[], ...series.map(() => [])];
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: css("--muted"), font, grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    this.#plot = new uPlot({
      width: 300, height: 200,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, range: (_, low, high) => [0, Math.max(high ?? 0, this.steps)] },
        y: log
          ? { distr: 3, range: (plot, low, high) => (low > 0 ? uPlot.rangeLog(low, Math.max(high, low * 10), 10, true) : [1e-3, 10]) }
          : { range: (plot, low, high) => (high > 0 ? [Math.min(low, high - 0.5) - 0.1, high + 0.1] : [0, 4]) },
      },
      axes: [
        { ...axis, size: 28, gap: 4, space: 60, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : "")) },
        log ? {
          ...axis, size: 42, gap: 6,
          // Whole powers of ten only, thinned to what fits.
          splits: (plot, _, low, high) => {
            const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
            const room = Math.max(1, Math.floor(plot.bbox.height / devicePixelRatio / 26));
            const every = Math.max(1, Math.ceil((last - first) / room));
            return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => 10 ** (last - i * every)).reverse();
          },
          filter: (_, splits) => splits,
          values: (_, ticks) => ticks.map((tick) => power(Math.round(Math.log10(tick)))),
        } : { ...axis, size: 42, gap: 6 },
      ],
      series: [{}, ...series.map(({ colour, dash, points = false }) => ({ stroke: css(colour), width: dash ? 1.25 : 2, dash, points: { show: points, fill: css(colour), size: 6 }, spanGaps: true }))],
    }, this.#columns, element);
    new ResizeObserver(() => this.#plot.setSize({ width: element.clientWidth, height: element.clientHeight })).observe(element);
    // Its colours are those of the theme.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#plot.redraw());
  }

  /** Adds a point to every series; null is none; what is not positive has no place on a logarithmic scale. */
  add(step, ...values) {
    if (this.#count++ % this.#skip) return;
    this.#columns[0].push(step);
    values.forEach((value, i) => this.#columns[i + 1].push(Number.isFinite(value) && (value > 0 || !this.#log) ? value : null));
    if (this.#columns[0].length <= MOST_POINTS) return;
    this.#columns = this.#columns.map((column) => column.filter((_, i) => i % 2 === 0));
    this.#skip *= 2;
  }

  clear() {
    this.#columns = this.#columns.map(() => []);
    this.#skip = 1;
    this.#count = 0;
  }

  draw() {
    this.#plot.setData(this.#columns);
  }
}
